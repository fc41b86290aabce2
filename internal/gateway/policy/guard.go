package policy

import "github.com/perigee-llm/perigee/internal/gateway/load"

// PressureGuard says when one engine is under materially more pressure than another: more by an absolute threshold and by a factor,
// both. It is pairwise and no total order.
type PressureGuard struct {
	// AbsMicros is the threshold of queue time, in microseconds, where both have an estimate; nil: not compared.
	AbsMicros *int64
	// AbsTokens is the threshold of waiting uncached tokens, for all others.
	AbsTokens int64
	// Rel is the factor, above 1.
	Rel float64
}

// compare returns 1 if a is under materially more pressure than b, -1 if b is, 0 if neither or if it is not known.
func (g *PressureGuard) compare(a, b *load.Report) int {
	x, okX := a.WaitingUncached.Get()
	y, okY := b.WaitingUncached.Get()
	abs := g.AbsTokens
	if g.AbsMicros != nil {
		p, okP := a.QueueMicros.Get()
		q, okQ := b.QueueMicros.Get()
		if okP && okQ {
			x, y, okX, okY, abs = p, q, true, true, *g.AbsMicros
		}
	}
	switch {
	case !okX || !okY:
		return 0
	case g.exceeds(x, y, abs):
		return 1
	case g.exceeds(y, x, abs):
		return -1
	}
	return 0
}

func (g *PressureGuard) exceeds(x, y, abs int64) bool {
	return x > y && uint64(x)-uint64(y) > uint64(max(abs, 0)) && float64(x) > float64(y)*g.Rel
}
