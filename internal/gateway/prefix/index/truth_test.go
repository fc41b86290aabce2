package index

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/script"
)

// truth is an engine that tells what it does, and of which we lose events now and then. The model says what the index should make of events; this
// says what the engine really has, so that the model's own rules are on trial too.
//
// Its blocks have one token, of two, and its prompts five. On the device a block stays as long as one behind it does.
type truth struct {
	*rand.Rand
	t      *testing.T
	ix     *Index
	h      Holder
	names  int // for how many blocks with the same tokens it has hashes of their own
	room   int // of the index, in blocks
	state  State
	mute   bool // it stores on slower tiers without tokens
	blocks []*trueBlock
	lost   bool // something was, since the index was told last
	log    []string
}

// trueBlock is one that the engine has had.
type trueBlock struct {
	hash   prefix.Hash
	parent *trueBlock
	path   string // its tokens and those before it
	kind   int
	bits   uint8 // where it is
}

const trueDepth = 5

func newTruth(t *testing.T, r *rand.Rand, names int) *truth {
	x := &truth{Rand: r, t: t, names: names}
	if r.IntN(3) == 0 {
		x.room = 4 + r.IntN(20)
	}
	x.mute = r.IntN(2) == 0
	x.ix = New(Config{Model: "m", BlockSize: 1, MaxBlocks: x.room})
	x.h = x.ix.Open(0, 0)
	x.mark(Exact)
	return x
}

func (x *truth) logf(format string, args ...any) { x.log = append(x.log, fmt.Sprintf(format, args...)) }

func (x *truth) mark(s State) {
	x.state = s
	x.ix.Mark(x.h, s)
}

// has picks a block for which the condition holds, or nil.
func (x *truth) has(good func(*trueBlock) bool) *trueBlock {
	var all []*trueBlock
	for _, b := range x.blocks {
		if b.bits != 0 && good(b) {
			all = append(all, b)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[x.IntN(len(all))]
}

// block returns the one of a kind with that token behind another.
func (x *truth) block(parent *trueBlock, token byte, kind int) *trueBlock {
	path := string(token)
	if parent != nil {
		path = parent.path + path
	}
	for _, b := range x.blocks {
		if b.parent == parent && b.path == path && b.kind == kind {
			return b
		}
	}
	b := &trueBlock{hash: prefix.Hash(len(x.blocks) + 1), parent: parent, path: path, kind: kind}
	x.blocks = append(x.blocks, b)
	return b
}

// tell publishes an event, or loses it.
func (x *truth) tell(e *prefix.Event) {
	if x.IntN(20) == 0 {
		x.logf("lost %+v", *e)
		x.lost = true
		return
	}
	if x.lost {
		x.logf("doubt")
		x.ix.Doubt(x.h)
		x.mark(Partial)
		x.lost = false
	}
	out := x.ix.Apply(x.h, e)
	x.logf("%+v: %+v", *e, out)
	switch {
	case e.Kind == prefix.Cleared:
		x.mark(Exact)
	case out.Result != Applied && out.Result != Full, e.Kind == prefix.Stored && out.Unknown > 0:
		x.mark(Partial) // as whoever reads the events does: the engine has what was not taken
	}
}

// store is an event by which a block is on a tier.
func (x *truth) store(b *trueBlock, t prefix.Tier) *prefix.Event {
	b.bits |= 1 << t
	e := &prefix.Event{Tier: t, BlockSize: 1, Tokens: []uint32{uint32(b.path[len(b.path)-1])}, Hashes: []prefix.Hash{b.hash}}
	switch {
	case x.mute && t != prefix.Device:
		e.Tokens = nil
	case b.parent != nil:
		e.HasParent, e.Parent = true, b.parent.hash
	}
	return e
}

func (x *truth) step() {
	switch n := x.IntN(40); {
	case n == 0:
		x.administer()
	case n < 16: // computed, or restored
		parent := x.has(func(b *trueBlock) bool { return b.bits&1 != 0 && len(b.path) < trueDepth })
		if x.IntN(3) == 0 {
			parent = nil
		}
		x.tell(x.store(x.block(parent, "ab"[x.IntN(2)], x.IntN(x.names)), prefix.Device))
	case n < 20: // offloaded
		if b := x.has(func(*trueBlock) bool { return true }); b != nil {
			e := x.store(b, prefix.Tier(1+x.IntN(2)))
			if x.IntN(2) == 0 && b.bits&1 != 0 && !x.stoodOn(b) { // told when it has left the device
				b.bits &^= 1
				x.tell(&prefix.Event{Kind: prefix.Removed, Hashes: []prefix.Hash{b.hash}})
			}
			x.tell(e)
		}
	default:
		tier := prefix.Tier(x.IntN(3))
		b := x.has(func(b *trueBlock) bool { return b.bits>>tier&1 != 0 && (tier != prefix.Device || !x.stoodOn(b)) })
		if b != nil {
			b.bits &^= 1 << tier
			x.tell(&prefix.Event{Kind: prefix.Removed, Tier: tier, Hashes: []prefix.Hash{b.hash}})
		}
	}
}

func (x *truth) stoodOn(b *trueBlock) bool {
	return slices.ContainsFunc(x.blocks, func(c *trueBlock) bool { return c.parent == b && c.bits&1 != 0 })
}

// administer does what happens seldom.
func (x *truth) administer() {
	switch x.IntN(7) {
	case 0, 1:
		x.logf("settle")
		x.ix.Settle(x.h)
	case 2:
		x.empty()
		x.tell(&prefix.Event{Kind: prefix.Cleared})
	case 3: // a restart
		x.logf("restart")
		x.empty()
		x.ix.Withdraw(x.h)
		x.mark(Exact)
		x.lost = false
	case 4: // the connection broke, and is there again
		x.logf("break")
		x.ix.Mark(x.h, Hidden)
		x.ix.Mark(x.h, x.state)
	default:
		x.move()
	}
}

func (x *truth) empty() {
	for _, b := range x.blocks {
		b.bits = 0
	}
}

// move goes on with a copy.
func (x *truth) move() {
	x.logf("copy")
	state := x.ix.About(x.h).State
	to := New(Config{Model: "m", BlockSize: 1, MaxBlocks: x.room})
	h := to.Open(0, 0)
	to.SetGroups(h, x.ix.Groups(x.h))
	var at Cursor
	var claims [3]Claim
	for !at.Done {
		to.Paste(h, claims[:x.ix.Copy(x.h, &at, claims[:])])
	}
	x.ix, x.h = to, h
	x.mark(state)
}

// holds tells whether a block with this path is on a tier or on a faster one.
func (x *truth) holds(path string, t prefix.Tier) bool {
	return slices.ContainsFunc(x.blocks, func(b *trueBlock) bool { return b.path == path && b.bits&(2<<t-1) != 0 })
}

// check asks for a prompt: nothing is credited that the engine does not have, and all that it has where it is exact.
func (x *truth) check() {
	if x.lost {
		return // the numbers of batches have not shown it yet
	}
	prompt, q := "", prefix.Query{Model: "m"}
	for range trueDepth {
		prompt += string("ab"[x.IntN(2)])
		q.Tokens = append(q.Tokens, uint32(prompt[len(prompt)-1]))
	}
	var m prefix.Match
	x.ix.Lookup(&q, &m)
	exact := !m.IsBlind(0)
	for t := range prefix.Tier(prefix.Tiers) {
		got, has := int(m.Of(0)[t]), 0
		for has < trueDepth && x.holds(prompt[:has+1], t) {
			has++
		}
		if got > has || exact && got < has {
			x.t.Fatalf("%s on %v: credited with %d blocks, exact %v, and has %d after:\n%s", prompt, t, got, exact, has, strings.Join(x.log, "\n"))
		}
	}
}

// TestTruth: whatever is lost, an engine is credited with nothing that it does not have, also where it has several hashes for the same tokens.
func TestTruth(t *testing.T) {
	r := script.Rand(t)
	for i := range 5 * histories {
		x := newTruth(t, rand.New(rand.NewPCG(r.Uint64(), 3)), 1+i%3)
		for range 200 {
			x.step()
			x.check()
		}
	}
}
