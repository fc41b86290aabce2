package index

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/script"
)

// choices says how a history goes on: at random, or as a fuzzer wants it.
type choices interface{ IntN(n int) int }

// history does the same to an index and to the model, and compares what they say after each step.
type history struct {
	choices
	t     *testing.T
	ix    *Index
	model *model
	log   []string

	holders []Holder // open ones
	next    uint32   // the next engine
	hashes  int      // how engines name their blocks, see hash
	hybrid  bool
	paths   [][]uint32
}

const testBlock = 2

func newHistory(t *testing.T, c choices) *history {
	config := Config{Model: "m", BlockSize: testBlock, Limit: 12 + c.IntN(60)}
	h := &history{choices: c, t: t, ix: New(config), model: newModel(config), hashes: c.IntN(4), hybrid: c.IntN(3) == 0}
	h.ix.epochs.batch = 1 + c.IntN(40)
	h.ix.recall = 1 + c.IntN(8)
	h.model.recall = h.ix.recall
	return h
}

func (h *history) logf(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

func (h *history) fail(format string, args ...any) {
	h.t.Helper()
	h.t.Fatalf("%s\nafter:\n%s", fmt.Sprintf(format, args...), strings.Join(h.log[max(0, len(h.log)-60):], "\n"))
}

// step does one thing.
func (h *history) step() {
	switch n := h.IntN(40); {
	case len(h.holders) == 0 || n == 0 && len(h.holders) < 12:
		h.open()
	case n == 1:
		h.change()
	case n == 2:
		budget := h.IntN(50)
		h.logf("sweep %d", budget)
		h.ix.Sweep(budget)
	case n == 3:
		a, b := h.any(), h.any()
		h.logf("attach %d %d", a, b)
		h.ix.Attach(a, b)
		h.model.attach(a, b)
	default:
		h.apply(h.any(), h.event())
	}
}

func (h *history) any() Holder { return h.holders[h.IntN(len(h.holders))] }

func (h *history) open() {
	store := h.IntN(4) == 0
	var no Holder
	if store {
		no = h.ix.OpenStore()
	} else {
		no = h.ix.Open(h.next/2, int32(h.next%2))
	}
	h.model.open(no, store, h.next/2, int32(h.next%2))
	h.logf("open %d store=%v engine=%d rank=%d", no, store, h.next/2, h.next%2)
	h.next++
	h.holders = append(h.holders, no)
	if h.IntN(4) > 0 {
		h.ix.Mark(no, Exact)
		h.model.mark(no, Exact)
	}
}

func (h *history) change() {
	x := h.any()
	what := h.IntN(9)
	h.logf("change %d %d", x, what)
	switch what {
	case 0:
		h.ix.Close(x)
		h.model.close(x)
		h.holders = slices.DeleteFunc(h.holders, func(y Holder) bool { return x == y })
	case 1:
		h.ix.Withdraw(x)
		h.model.withdraw(x)
	case 2, 3:
		h.ix.Doubt(x)
		h.model.doubt(x)
	case 4:
		h.ix.Settle(x)
		h.model.settle(x)
	case 5:
		y := h.any()
		h.ix.Detach(x, y)
		h.model.detach(x, y)
	case 6:
		n := h.IntN(40)
		h.ix.SetLimit(x, n)
		h.model.holders[x].limit = n
	default:
		s := State(h.IntN(4))
		h.ix.Mark(x, s)
		h.model.mark(x, s)
	}
}

// event makes one of few tokens, so that chains share their beginnings and holders share chains.
func (h *history) event() *prefix.Event {
	e := &prefix.Event{Tier: prefix.Tier(max(0, h.IntN(8)-4)), BlockSize: testBlock}
	n := 9
	if h.hybrid {
		n = h.IntN(10)
	}
	switch n {
	case 0:
		e.Group = 1 + h.IntN(2)
	case 1:
		e.Group, e.Recurrent = 2, true
	case 2:
		e.Group, e.Window = 1, 1+h.IntN(8)
	}
	switch n := h.IntN(30); {
	case n == 0:
		e.Kind = prefix.Cleared
	case n < 11:
		e.Kind = prefix.Removed
		e.AnyTier = h.IntN(3) == 0
		for range 1 + h.IntN(4) {
			e.Hashes = append(e.Hashes, h.hash(h.path()))
		}
	default:
		h.stored(e)
	}
	if h.IntN(40) == 0 {
		e.Tier = 4
	}
	return e
}

// path is the tokens of a prompt up to a block, with its LoRA in front.
func (h *history) path() []uint32 {
	if len(h.paths) > 0 && h.IntN(3) > 0 {
		return h.paths[h.IntN(len(h.paths))]
	}
	p := []uint32{uint32(max(0, h.IntN(8)-6))}
	for range 1 + h.IntN(5) {
		p = append(p, uint32(h.IntN(2)), 7)
	}
	if h.paths = append(h.paths, p); len(h.paths) > 30 {
		h.paths = h.paths[1:]
	}
	return p
}

// hash is what an engine calls the block at the end of a path: the same on all engines, one of a few that are used again and again, or
// in a way that two kinds of engines do not share.
func (h *history) hash(p []uint32) prefix.Hash {
	x := uint64(1)
	for _, t := range p {
		x = mix(x + uint64(t))
	}
	switch h.hashes {
	case 0:
		return prefix.Hash(x)
	case 1:
		return prefix.Hash(x % 16)
	case 2:
		return prefix.Hash(h.IntN(16))
	default:
		return prefix.Hash(x + uint64(h.IntN(2)))
	}
}

var adapters = [...]string{"", "a", "b"}

func (h *history) stored(e *prefix.Event) {
	p := h.path()
	blocks := (len(p) - 1) / testBlock
	from := h.IntN(blocks)
	e.LoRA = adapters[p[0]]
	if from > 0 {
		e.HasParent, e.Parent = true, h.hash(p[:1+from*testBlock])
	}
	for i := from + 1; i <= blocks; i++ {
		e.Hashes = append(e.Hashes, h.hash(p[:1+i*testBlock]))
	}
	e.Tokens = p[1+from*testBlock : 1+blocks*testBlock]
	switch h.IntN(20) {
	case 0, 5:
		e.Tokens = nil
	case 1:
		e.Extras = make([][]byte, len(e.Hashes))
		e.Extras[0] = []byte("x")
	case 2:
		e.Salt = "s"
	case 3:
		e.BlockSize = 1 + h.IntN(3)
	case 4:
		e.Tokens = e.Tokens[1:]
	}
}

func (h *history) apply(no Holder, e *prefix.Event) {
	h.logf("apply %d %+v", no, *e)
	got, want := h.ix.Apply(no, e), h.model.apply(no, e)
	if got != want {
		h.fail("outcome %+v, want %+v", got, want)
	}
}

// compare asks for a few prompts, and for what is known of all holders.
func (h *history) compare(prompts int) {
	var got prefix.Match
	for range prompts {
		p := h.path()
		q := prefix.Query{Model: "m", LoRA: adapters[p[0]], Tokens: append(slices.Clone(p[1:]), uint32(h.IntN(2)))}
		if h.IntN(8) == 0 {
			q.Salt = "s"
		}
		if h.IntN(2) == 0 {
			h.ix.Lookup(&q, &got)
		} else {
			h.ix.LookupKeys(chain.Root{Model: q.Model, BlockSize: testBlock, LoRA: q.LoRA, Salt: q.Salt}.Key().Append(nil, q.Tokens, testBlock), &got)
		}
		want := h.model.lookup(&q)
		if !slices.Equal(got.Held, want.Held) || !slices.Equal(got.Blind, want.Blind) {
			h.fail("lookup %+v: %+v, want %+v", q, got, want)
		}
	}
	for no, x := range h.model.holders {
		about := h.ix.About(no)
		if about.State != x.seen() || about.Claims != len(x.cur) || about.Doubted != len(x.old) {
			h.fail("holder %d: %+v, want %v with %d claims, %d doubted", no, about, x.seen(), len(x.cur), len(x.old))
		}
	}
}

// end sweeps all, and holds what is left against the model.
func (h *history) end() {
	for h.ix.Sweep(100) {
	}
	h.compare(20)
	h.ix.checkForTest(h.t)
	h.copy()
	names := map[string]bool{}
	for _, x := range h.model.holders {
		for _, claims := range []map[prefix.Hash]*modelClaim{x.cur, x.old} {
			for _, c := range claims {
				names[c.name] = true
			}
		}
	}
	if s := h.ix.Stats(); s.Blocks != len(names) || s.Dead != 0 {
		h.fail("%+v, want %d blocks", s, len(names))
	}
	for _, no := range slices.Clone(h.holders) {
		h.ix.Close(no)
		h.model.close(no)
	}
	for h.ix.Sweep(100) {
	}
	if s := h.ix.Stats(); s != (Stats{}) {
		h.fail("nobody is left, and %+v", s)
	}
}

// copy brings all claims to a new index, a few at a time, and compares that one instead; the old one goes on.
func (h *history) copy() {
	old := h.ix
	defer func() { h.ix = old }()
	h.ix = New(Config{Model: "m", BlockSize: testBlock, Limit: h.model.limit})
	doubted := map[*modelHolder]map[prefix.Hash]*modelClaim{}
	for no := range Holder(len(old.holders)) { // the same numbers
		x := h.model.holders[no]
		switch {
		case x == nil || x.store:
			h.ix.OpenStore()
		default:
			h.ix.Open(x.engine, x.rank)
		}
		if x == nil {
			continue
		}
		doubted[x], x.old = x.old, nil
		h.ix.SetLimit(no, 1<<20) // it may have been lowered below what is claimed
		h.ix.SetGroups(no, old.Groups(no))
		var at Cursor
		var claims [3]Claim
		for !at.Done {
			n := old.Copy(no, &at, claims[:])
			if out := h.ix.Paste(no, claims[:n]); at.Void || out.Result != Applied {
				h.fail("copying holder %d: %+v, %+v", no, at, out)
			}
		}
		h.ix.SetLimit(no, x.limit)
		if x.state == CutOff { // which only the index itself can make
			h.ix.holders[no].state = CutOff
		}
		h.ix.Mark(no, x.state)
	}
	for store, x := range h.model.holders {
		for engine := range x.attached {
			h.ix.Attach(store, engine)
		}
	}
	h.ix.change(0, func(*holder) {})
	h.compare(20)
	h.ix.checkForTest(h.t)
	for x, old := range doubted {
		x.old = old
	}
}

func TestRandomHistories(t *testing.T) {
	r := script.Rand(t)
	for range histories {
		h := newHistory(t, rand.New(rand.NewPCG(r.Uint64(), 1)))
		for range 400 {
			h.step()
			h.compare(1)
		}
		h.end()
	}
}

// bytesChoices chooses as bytes say, and the first of everything when they are used up.
type bytesChoices struct{ b []byte }

func (c *bytesChoices) IntN(n int) int {
	if len(c.b) == 0 {
		return 0
	}
	x := int(c.b[0])
	c.b = c.b[1:]
	return x % n
}

func FuzzHistory(f *testing.F) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 2))
		b := make([]byte, 600)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &bytesChoices{b}
		h := newHistory(t, c)
		for steps := 0; len(c.b) > 0 && steps < 400; steps++ {
			h.step()
			h.compare(1)
		}
		h.end()
	})
}

// checkForTest holds the index's own figures against each other.
func (ix *Index) checkForTest(t *testing.T) {
	t.Helper()
	blocks, uses := map[uint32]int{}, map[uint32]int{}
	members := 0
	for c, chunk := range *ix.blocks.dir.Load() {
		for i := 0; chunk != nil && i < chunkSize; i++ {
			set := chunk.set[i]
			if set == 0 {
				continue
			}
			id := uint32(c<<chunkBits + i)
			uses[set]++
			for _, m := range ix.sets.members(set) {
				blocks[member(m).tenure()]++
				members++
			}
			if found, s := ix.find(chunk.name[i], 0); found != id || s != set {
				t.Errorf("block %d with set %d is found as %d with %d", id, set, found, s)
			}
		}
	}
	for no, tenure := range ix.tenures {
		if tenure != nil && tenure.blocks != blocks[uint32(no)] {
			t.Errorf("tenure %d has %d blocks, want %d", no, tenure.blocks, blocks[uint32(no)])
		}
	}
	for s, n := range uses {
		if got := int(ix.sets.words(s)[1]); got != n {
			t.Errorf("set %d is used by %d, want %d", s, got, n)
		}
	}
	if len(uses) != ix.sets.live {
		t.Errorf("%d sets, want %d", ix.sets.live, len(uses))
	}
	inNames, inAliases := 0, 0
	for i := range ix.names.shards {
		inNames += ix.names.shards[i].live
		inAliases += ix.aliases.shards[i].live
	}
	if inNames != ix.live || inAliases != ix.live {
		t.Errorf("%d names and %d aliases of %d blocks", inNames, inAliases, ix.live)
	}
}
