package keeper

import (
	"hash/fnv"
	"time"
)

// grid is a beat of moments, all of one phase: origin + phase + n × every.
type grid struct {
	origin time.Time
	every  time.Duration
	phase  time.Duration // 0 ≤ phase < every
}

// gridOf gives each id its own phase within the interval, the same in each run, so that many engines are asked one by one.
// What a slow answer misses is left out instead of being made up for.
func gridOf(id string, origin time.Time, every time.Duration) grid {
	h := fnv.New64a()
	h.Write([]byte(id))
	return grid{origin: origin, every: every, phase: time.Duration(h.Sum64()>>1) % every}
}

// after returns the first moment of the grid that is later than t.
func (g grid) after(t time.Time) time.Time {
	since := t.Sub(g.origin) - g.phase
	n := since / g.every
	if since >= 0 {
		n++
	}
	return g.origin.Add(g.phase + n*g.every)
}

// firstRetry is how long an engine that did not answer is left alone at first; it doubles up to the retry interval. Engines
// take a minute or more to load their weights, so most of them fail at first, and the one who has started them must not wait
// half a minute more than the engine needed.
const firstRetry = time.Second

// retryDelay is the pause after the given number of failures in a row, from 1.
func retryDelay(failures int, most time.Duration) time.Duration {
	d := firstRetry
	for ; failures > 1 && d < most; failures-- {
		d *= 2
	}
	return min(d, most)
}
