package index

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/script"
)

// hybridTruth is an engine with several KV cache groups that tells what it does, as [truth] is one with several hashes. It computes in all groups
// at once, keeps states behind some blocks only, and evicts from each group as it likes; from full attention the last blocks first.
type hybridTruth struct {
	*rand.Rand
	t      *testing.T
	ix     *Index
	h      Holder
	groups []trueGroup
	hashes map[string]prefix.Hash
	shown  bool // all groups have stored something: what nobody has said nobody can know
	holed  bool // something was lost since it began
	lost   bool // and the index was not told yet
	log    []string
}

// trueGroup is one of them.
type trueGroup struct {
	number, window int
	recurrent      bool
	has            map[string]bool // by the tokens up to a block's end
}

func newHybridTruth(t *testing.T, r *rand.Rand) *hybridTruth {
	x := &hybridTruth{Rand: r, t: t, ix: New(Config{Model: "m", BlockSize: 1}), hashes: map[string]prefix.Hash{}}
	x.h = x.ix.Open(0, 0)
	x.ix.Mark(x.h, Exact)
	for n := range 1 + r.IntN(5) {
		g := trueGroup{number: n, has: map[string]bool{}}
		if n > 0 {
			switch r.IntN(4) {
			case 0:
				g.recurrent = true
			case 1, 2:
				g.window = 1 + r.IntN(4)
			}
		}
		x.groups = append(x.groups, g)
	}
	r.Shuffle(len(x.groups), func(i, j int) { x.groups[i], x.groups[j] = x.groups[j], x.groups[i] })
	return x
}

func (x *hybridTruth) path(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = "ab"[x.IntN(2)]
	}
	return string(b)
}

func (x *hybridTruth) hash(path string) prefix.Hash {
	if x.hashes[path] == 0 {
		x.hashes[path] = prefix.Hash(len(x.hashes) + 1)
	}
	return x.hashes[path]
}

func (x *hybridTruth) tell(e *prefix.Event) {
	if x.shown && x.IntN(40) == 0 {
		x.log = append(x.log, fmt.Sprintf("lost %+v", *e))
		x.lost, x.holed = true, true
		return
	}
	if x.lost {
		x.log = append(x.log, "doubt")
		x.ix.Doubt(x.h)
		x.ix.Mark(x.h, Partial)
		x.lost = false
	}
	out := x.ix.Apply(x.h, e)
	x.log = append(x.log, fmt.Sprintf("%+v: %+v", *e, out))
	switch {
	case e.Kind == prefix.Cleared:
		x.holed = false
		x.ix.Mark(x.h, Exact)
	case out.Result == Orphan:
		x.ix.Mark(x.h, Partial)
	}
}

// compute has a prompt in all groups, behind what can be used of it.
func (x *hybridTruth) compute() {
	p := x.path(1 + x.IntN(5))
	from := x.IntN(len(p))
	for !x.usable(p[:from]) {
		from--
	}
	for i := range x.groups {
		g := &x.groups[i]
		at := from
		if g.recurrent {
			at = len(p) - 1
		}
		e := &prefix.Event{Group: g.number, Window: g.window, Recurrent: g.recurrent, BlockSize: 1, HasParent: at > 0}
		if at > 0 {
			e.Parent = x.hash(p[:at])
		}
		for ; at < len(p); at++ {
			g.has[p[:at+1]] = true
			e.Tokens, e.Hashes = append(e.Tokens, uint32(p[at])), append(e.Hashes, x.hash(p[:at+1]))
		}
		x.tell(e)
	}
	x.shown = true
}

// evict takes a block out of a group.
func (x *hybridTruth) evict() {
	g := &x.groups[x.IntN(len(x.groups))]
	p := x.path(1 + x.IntN(5))
	for n := len(p); n > 0; n-- {
		p := p[:n]
		full := g.window == 0 && !g.recurrent
		if g.has[p] && !(full && (g.has[p+"a"] || g.has[p+"b"])) {
			delete(g.has, p)
			x.tell(&prefix.Event{Kind: prefix.Removed, Group: g.number, Hashes: []prefix.Hash{x.hash(p)}})
			return
		}
	}
}

// usable tells whether the engine can go on behind these tokens.
func (x *hybridTruth) usable(path string) bool {
	for _, g := range x.groups {
		for n := len(path); n > 0; n-- {
			var asked bool
			switch {
			case g.recurrent:
				asked = n == len(path)
			case g.window > 0:
				asked = len(path)-n < g.window-1
			default:
				asked = true
			}
			if asked && !g.has[path[:n]] {
				return false
			}
		}
	}
	return true
}

func (x *hybridTruth) check() {
	if x.lost {
		return
	}
	p := x.path(6)
	q := prefix.Query{Model: "m"}
	for _, c := range p {
		q.Tokens = append(q.Tokens, uint32(c))
	}
	var m prefix.Match
	x.ix.Lookup(&q, &m)
	got, exact := int(m.Of(0)[prefix.Device]), !m.IsBlind(0)
	most := len(p)
	for !x.usable(p[:most]) {
		most--
	}
	if got > 0 && !x.usable(p[:got]) || exact && got < most || exact && x.holed {
		x.t.Fatalf("%s: credited with %d blocks, exact %v, and can use %d in %+v after:\n%s", p, got, exact, most, x.groups, strings.Join(x.log, "\n"))
	}
}

// TestTruthOfGroups: a hybrid engine is credited with nothing that one of its groups lacks.
func TestTruthOfGroups(t *testing.T) {
	r := script.Rand(t)
	for range 4 * histories {
		x := newHybridTruth(t, rand.New(rand.NewPCG(r.Uint64(), 4)))
		for range 150 {
			switch n := x.IntN(60); {
			case n == 0:
				for _, g := range x.groups {
					clear(g.has)
				}
				x.tell(&prefix.Event{Kind: prefix.Cleared})
			case n < 20:
				x.compute()
			default:
				x.evict()
			}
			if x.shown {
				x.check()
			}
		}
	}
}
