package dram

import "math"

// ghosts remember the scores of blocks that have gone, so that one which comes back is not a stranger. It is a table without
// probing: a newer ghost takes the place of the one with the lowest score of seven. Losing one costs a little of the order's quality,
// nothing else.
type ghosts struct {
	sets []ghostSet
	made int // that were put there
	// older are those of before the pool became larger, made that many: they are looked at until as many were made since.
	older     []ghostSet
	olderMade int
	memory    Memory
}

// ghostSet is 32 bytes, so that it lies in one line of a cache.
type ghostSet struct {
	highest float32 // score that one of them has, or had
	ways    [ghostWays]ghost
}

const ghostWays = 7

// ghost is 4 bytes. How far its score lies below the set's highest is known to a thousandth, and to another one each time that there is a higher one: with most policies that is
// when another ghost takes a place in the set, and of those it outlives six.
type ghost struct {
	tagged uint16 // 3 bits of uses, saturating, of which 0 is an empty place; above them 13 bits of a tag
	below  uint16 // a float of 6 bits of exponent, of which the lowest is 2^-20, and 10 of the fraction
}

const ghostUses = 7

func (g *ghost) is(d uint64) bool { return (g.tagged^uint16(d))&^ghostUses == 0 }

func (g *ghost) uses() uint8 { return uint8(g.tagged & ghostUses) }

// The bits of a ghost's float are 16 of a float32's, from its lowest exponent on.
const lowestBelow, belowShift = (127 - 20) << 23, 23 - 10

// shorten is a float of 0 or more in 16 bits.
func shorten(f float32) uint16 {
	return uint16(min(max(int64(math.Float32bits(f))-lowestBelow, 0)>>belowShift, math.MaxUint16))
}

// lengthen is the middle of those that are shortened so.
func lengthen(n uint16) float32 {
	if n == 0 {
		return 0
	}
	return math.Float32frombits(lowestBelow + uint32(n)<<belowShift + 1<<(belowShift-1))
}

// minGhosts is 290 KiB, and all that a small pool's traffic has for hours: with as many ghosts as blocks, Learned forgets at 3,000
// blocks what it would have to learn from.
const minGhosts = 65536

// grow makes room for twice as many ghosts as there can be blocks. Those that there are cannot be moved, since none has enough of its digest to say where it would be: they are
// looked at where they are, as long as they could matter. Of two growths in a row those that are more stay.
func (g *ghosts) grow(blocks int) {
	n := max(2*blocks, minGhosts)/ghostWays + 1
	if n <= len(g.sets) {
		return
	}
	rest := g.sets
	if made := min(g.made, len(g.sets)*ghostWays); made > g.olderMade {
		g.older, rest, g.olderMade = g.sets, g.older, made
	}
	freeTable(g.memory, rest)
	g.sets, g.made = newTable[ghostSet](g.memory, n), 0
}

func (g *ghosts) set(d uint64) *ghostSet { return setOf(g.sets, d) }

func setOf(sets []ghostSet, d uint64) *ghostSet {
	return &sets[(d>>16&0xffffffff)*uint64(len(sets))>>32]
}

func (g *ghosts) remember(d uint64, score float32, uses uint8) {
	if g.made++; g.made == g.olderMade {
		freeTable(g.memory, g.older)
		g.older, g.olderMade = nil, 0
	}
	g.set(d).remember(d, score, uses)
}

func (s *ghostSet) remember(d uint64, score float32, uses uint8) {
	s.raise(score)
	at := 0
	for i := range s.ways {
		if e := &s.ways[i]; e.uses() == 0 || e.is(d) {
			at = i
			break
		} else if e.below > s.ways[at].below {
			at = i
		}
	}
	s.ways[at] = ghost{uint16(d)&^ghostUses | uint16(min(uses, ghostUses)), shorten(s.highest - score)}
}

// raise makes room for a score.
func (s *ghostSet) raise(score float32) {
	by, none := score-s.highest, true
	for i := range s.ways {
		if e := &s.ways[i]; e.uses() > 0 {
			if none = false; by <= 0 {
				return
			}
			e.below = shorten(lengthen(e.below) + by)
		}
	}
	if none || by > 0 {
		s.highest = score
	}
}

func (g *ghosts) recall(d uint64) (score float32, uses uint8, ok bool) {
	score, uses, ok = g.set(d).recall(d)
	if !ok && g.older != nil {
		score, uses, ok = setOf(g.older, d).recall(d)
	}
	return score, uses, ok
}

func (s *ghostSet) recall(d uint64) (score float32, uses uint8, ok bool) {
	for i := range s.ways {
		if e := &s.ways[i]; e.uses() > 0 && e.is(d) {
			score, uses = s.highest-lengthen(e.below), e.uses()
			*e = ghost{}
			return score, uses, true
		}
	}
	return 0, 0, false
}
