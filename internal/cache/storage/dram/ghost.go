package dram

// ghosts remember the scores of blocks that have gone, so that one which comes back is not a stranger. It is a table without
// probing: a newer ghost takes the place of the one with the lowest score of four. Losing one costs a little of the order's quality,
// nothing else.
type ghosts struct{ sets [][ghostWays]ghost }

const ghostWays = 4

// ghost is 8 bytes. Its score has 24 bits: a time of use is exact to half a second after a hundred days.
type ghost struct {
	tag   uint16
	uses  uint16 // 0: empty
	score float32
}

// minGhosts is half a megabyte, and all that a small pool's traffic has for hours: with as many ghosts as blocks, Learned forgets at 3,000
// blocks what it would have to learn from.
const minGhosts = 65536

// grow makes room for twice as many ghosts as there can be blocks, and forgets all: pools grow at the start.
func (g *ghosts) grow(blocks int) {
	if n := max(2*blocks, minGhosts)/ghostWays + 1; n > len(g.sets) {
		g.sets = make([][ghostWays]ghost, n)
	}
}

func (g *ghosts) set(d uint64) *[ghostWays]ghost {
	return &g.sets[(d>>16&0xffffffff)*uint64(len(g.sets))>>32]
}

func (g *ghosts) remember(d uint64, score float64, uses uint16) {
	set := g.set(d)
	at := 0
	for i := range set {
		if e := &set[i]; e.uses == 0 || e.tag == uint16(d) {
			at = i
			break
		} else if e.score < set[at].score {
			at = i
		}
	}
	set[at] = ghost{uint16(d), uses, float32(score)}
}

func (g *ghosts) recall(d uint64) (score float64, uses uint16, ok bool) {
	set := g.set(d)
	for i := range set {
		if e := &set[i]; e.uses > 0 && e.tag == uint16(d) {
			score, uses = float64(e.score), e.uses
			*e = ghost{}
			return score, uses, true
		}
	}
	return 0, 0, false
}
