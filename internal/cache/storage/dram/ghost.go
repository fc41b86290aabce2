package dram

import "math"

// ghosts remember the scores of blocks that have gone, so that one which comes back is not a stranger. It is a table without
// probing: a newer ghost takes the place of the one with the lowest score of five. Losing one costs a little of the order's quality,
// nothing else.
type ghosts struct {
	sets []ghostSet
	made int // that were put there
	// older are those of before the pool became larger, made that many: they are looked at until as many were made since.
	older     []ghostSet
	olderMade int
}

// ghostSet is 32 bytes, so that it lies in one line of a cache.
type ghostSet struct {
	ways [ghostWays]ghost
	_    uint16
}

const ghostWays = 5

// ghost is 6 bytes, in words of two so that no room is left between them.
type ghost struct {
	tagged uint16    // 3 bits of uses, saturating, of which 0 is an empty place; above them 13 bits of a tag
	score  [2]uint16 // the halves of a float32
}

const ghostUses = 7

func (g *ghost) is(d uint64) bool { return (g.tagged^uint16(d))&^ghostUses == 0 }

func (g *ghost) uses() uint8 { return uint8(g.tagged & ghostUses) }

func (g *ghost) scored() float32 {
	return math.Float32frombits(uint32(g.score[0]) | uint32(g.score[1])<<16)
}

// minGhosts is 410 KiB, and all that a small pool's traffic has for hours: with as many ghosts as blocks, Learned forgets at 3,000
// blocks what it would have to learn from.
const minGhosts = 65536

// grow makes room for twice as many ghosts as there can be blocks. Those that there are cannot be moved, since none has enough of its digest to say where it would be: they are
// looked at where they are, as long as they could matter. Of two growths in a row those that are more stay.
func (g *ghosts) grow(blocks int) {
	n := max(2*blocks, minGhosts)/ghostWays + 1
	if n <= len(g.sets) {
		return
	}
	if made := min(g.made, len(g.sets)*ghostWays); made > g.olderMade {
		g.older, g.olderMade = g.sets, made
	}
	g.sets, g.made = make([]ghostSet, n), 0
}

func (g *ghosts) set(d uint64) *ghostSet { return setOf(g.sets, d) }

func setOf(sets []ghostSet, d uint64) *ghostSet {
	return &sets[(d>>16&0xffffffff)*uint64(len(sets))>>32]
}

func (g *ghosts) remember(d uint64, score float32, uses uint8) {
	if g.made++; g.made == g.olderMade {
		g.older, g.olderMade = nil, 0
	}
	set := g.set(d)
	at := 0
	for i := range set.ways {
		if e := &set.ways[i]; e.uses() == 0 || e.is(d) {
			at = i
			break
		} else if e.scored() < set.ways[at].scored() {
			at = i
		}
	}
	bits := math.Float32bits(score)
	set.ways[at] = ghost{uint16(d)&^ghostUses | uint16(min(uses, ghostUses)), [2]uint16{uint16(bits), uint16(bits >> 16)}}
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
			score, uses = e.scored(), e.uses()
			*e = ghost{}
			return score, uses, true
		}
	}
	return 0, 0, false
}
