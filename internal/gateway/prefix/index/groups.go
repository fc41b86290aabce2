package index

import "github.com/perigee-llm/perigee/internal/gateway/prefix"

// groups are the KV cache groups of an engine that the index follows: the first of each kind that it saw. Further groups of a kind store what the
// first does, since an engine computes them together, and are left out, but what one of them evicts is gone for all: so what is claimed of a kind is
// what all its groups hold.
//
// A side group counts on the device only: what a hybrid engine moves to lower tiers is then undercredited and never overcredited. So is what
// a side group stores in blocks of another size than the full-attention group's, or leaves out in the middle of a store: nothing is known of
// it then, so it is never credited, and the holder may have more than it is credited with. It may so as well where windows differ, since all of them are
// asked for the widest; where nobody knows what a group is for; and where there is no full attention.
type groups struct {
	full, window, recurrent group
	further                 [3]uint64 // by kind: those besides the first, a bit for each number below 64
	tokens                  int       // the widest window
	uneven                  bool      // there are different ones
	missed                  bool      // some store of a side group could not be followed, or a removal came of a group that nobody knows
}

// The kinds of groups.
const (
	kindFull = iota
	kindWindow
	kindRecurrent
)

// group is a group's number + 1, 0 for none.
type group int32

func (g groups) hybrid() bool { return g.window != 0 || g.recurrent != 0 }

// side returns the bits that a prefix needs besides a tier.
func (g groups) side() (bits uint8) {
	if g.window != 0 && g.tokens > 1 {
		bits |= window
	}
	if g.recurrent != 0 {
		bits |= recurrent
	}
	return bits
}

// span is the blocks that a window reaches back: the token that is computed next sees itself and tokens-1 before it.
func (g groups) span(blockSize int) int32 { return int32((g.tokens - 1 + blockSize - 1) / blockSize) }

// of returns the first group of a kind, and the bits that such groups have on the device; those of full attention are tiers.
func (g *groups) of(kind int) (first *group, bits uint8) {
	switch kind {
	case kindWindow:
		return &g.window, window
	case kindRecurrent:
		return &g.recurrent, recurrent
	}
	return &g.full, 0
}

// kind returns what a group is, and whether anybody knows.
func (g *groups) kind(n int) (kind int, known bool) {
	for kind := range g.further {
		if first, _ := g.of(kind); *first == group(n)+1 || n < 64 && g.further[kind]>>n&1 != 0 {
			return kind, true
		}
	}
	return 0, false
}

// bits returns what a store or a removal is about, 0 for what is left out. News says that readers have to know more of the groups.
func (g *groups) bits(e *prefix.Event) (bits uint8, news bool) {
	if e.Group < 0 || e.Group >= 1<<30 {
		return 0, false
	}
	if e.Kind == prefix.Removed {
		return g.removed(e)
	}
	kind := kindFull
	switch {
	case e.Recurrent:
		kind = kindRecurrent
	case e.Window > 0:
		kind = kindWindow
	}
	if kind != kindFull && e.Tier != prefix.Device {
		return 0, false // no reason to begin to ask for the group
	}
	is, known := g.kind(e.Group)
	first, bits := g.of(kind)
	switch {
	case !known && *first == 0:
		*first = group(e.Group) + 1
		news = kind != kindFull || g.hybrid()
	case !known && e.Group < 64:
		g.further[kind] |= 1 << e.Group
	case known && is != kind:
		return 0, false
	}
	if kind == kindWindow {
		news = g.widen(min(e.Window, prefix.Boundless)) || news
	}
	switch {
	case *first != group(e.Group)+1:
		return 0, news
	case kind == kindFull:
		bits = 1 << e.Tier
	}
	return bits, news
}

// widen takes down a window, and tells whether it is another one.
func (g *groups) widen(tokens int) bool {
	if tokens == g.tokens {
		return false
	}
	g.uneven = g.tokens != 0
	g.tokens = max(g.tokens, tokens)
	return true
}

// removed returns what a removal is about. It names no kind. One of a group that nobody knows, as where the claims are a copy, may be of any.
func (g *groups) removed(e *prefix.Event) (bits uint8, news bool) {
	tiers, sides := uint8(1)<<e.Tier, uint8(0)
	if e.AnyTier {
		tiers = tierBits
	}
	if e.AnyTier || e.Tier == prefix.Device {
		sides = window | recurrent
	}
	switch kind, known := g.kind(e.Group); {
	case !known && g.full == 0 || known && kind == kindFull:
		return tiers, false
	case known:
		_, bits = g.of(kind)
		return bits & sides, false
	}
	news, g.missed = !g.missed, true
	return tiers | sides, news
}

// unsure tells whether the holder may have more than the index can make of its groups.
func (g *groups) unsure() bool {
	return g.missed || g.uneven || g.tokens >= prefix.Boundless || g.hybrid() && g.full == 0
}

// believed is the holder's state as readers see it.
func (x *holder) believed() State {
	if x.state == Exact && (x.short || x.groups.unsure()) {
		return Partial
	}
	return x.state
}

// missed takes down that a store about such bits could not be followed, if that is of a side group.
func (ix *Index) missed(x *holder, bits uint8, out *Outcome) {
	if bits&(window|recurrent) == 0 {
		return
	}
	if out.Result == OtherSize || out.Result == PartialBlock {
		out.Result = OtherGroup
	}
	if !x.groups.missed {
		x.groups.missed = true
		ix.publish()
	}
}
