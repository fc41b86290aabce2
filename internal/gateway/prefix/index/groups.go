package index

import "github.com/perigee-llm/perigee/internal/gateway/prefix"

// groups are the KV cache groups of an engine that the index follows: the first of each kind that it saw. Further groups of a kind
// hold as the first does, since an engine computes and evicts them together, and are left out.
//
// A side group counts on the device only: what a hybrid engine moves to lower tiers is then undercredited and never overcredited. So is what
// a side group stores in blocks of another size than the full-attention group's, or leaves out in the middle of a store: nothing is known of
// it then, so it is never credited, and the holder may have more than it is credited with.
type groups struct {
	full, window, recurrent group
	tokens                  int  // the window
	missed                  bool // some store of a side group could not be followed
}

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

// is tells whether the group is this one, which it becomes if there was none yet.
func (g *group) is(n int, known bool) (it, news bool) {
	if *g == 0 && !known {
		*g = group(n) + 1
		return true, true
	}
	return *g == group(n)+1, false
}

// bits returns what a store or a removal is about, 0 for what is left out. News says that it is of a group that was not known.
func (g *groups) bits(e *prefix.Event) (bits uint8, news bool) {
	if e.Group < 0 || e.Group >= 1<<30 {
		return 0, false
	}
	side, it := uint8(0), false
	slower := e.Tier != prefix.Device && !e.AnyTier
	switch {
	case e.Kind == prefix.Stored && (e.Recurrent || e.Window > 0) && slower: // no reason to begin to ask for the group
	case e.Kind == prefix.Removed: // it names no kind
		n := group(e.Group) + 1
		switch {
		case n == g.full || g.full == 0 && n != g.window && n != g.recurrent:
			it = true
		case n == g.window:
			side, it = window, true
		case n == g.recurrent:
			side, it = recurrent, true
		}
	case e.Recurrent:
		side = recurrent
		it, news = g.recurrent.is(e.Group, g.knows(e.Group))
	case e.Window > 0:
		side = window
		if it, news = g.window.is(e.Group, g.knows(e.Group)); news {
			g.tokens = min(e.Window, 1<<30)
		}
	default:
		it, _ = g.full.is(e.Group, g.knows(e.Group))
	}
	switch {
	case !it:
		return 0, false
	case side != 0 && slower:
		return 0, false
	case side != 0:
		return side, news
	case e.AnyTier:
		return tierBits, false
	}
	return 1 << e.Tier, false
}

// knows tells whether the group has a kind already.
func (g *groups) knows(n int) bool {
	no := group(n) + 1
	return no == g.full || no == g.window || no == g.recurrent
}

// believed is the holder's state as readers see it.
func (x *holder) believed() State {
	if x.state == Exact && x.groups.missed {
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
