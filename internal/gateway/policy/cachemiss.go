package policy

import (
	"strings"

	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// miss picks by load.
func (k *cachePick) miss() (Pick, error) {
	for w := range k.candidates.All() {
		if k.config.QueueLimit == 0 || !k.config.gated(w.Load.Report(k.r.Now)) {
			k.pool = append(k.pool, w)
		}
	}
	if len(k.pool) == 0 {
		for w := range k.candidates.All() {
			k.pool = append(k.pool, w)
		}
	}
	h := k.least(k.sample())
	if !k.admits(h) {
		return Pick{}, &PickError{Class: AdmissionRejected, Stage: k.r.Stage, Rejections: k.refused}
	}
	return k.done(h, ReasonNoHolder), nil
}

// sample draws the engines that are compared, by as much of a shuffle as that takes (Fisher and Yates), and reads them. All of them are
// shuffled where there is no choice, so that the first of equals is a fair draw.
func (k *cachePick) sample() []holder {
	d := newDraw(k.seed, k.r.Key, k.r.Stage)
	n := min(max(k.config.Choices, 1), len(k.pool))
	clear(k.hits) // nobody needs them any more
	k.hits = k.hits[:0]
	for i := range n {
		j := i + d.intN(len(k.pool)-i)
		k.pool[i], k.pool[j] = k.pool[j], k.pool[i]
		h := k.read(k.pool[i])
		k.r.Trace.consider(h.considered())
		k.hits = append(k.hits, h)
	}
	return k.hits
}

// least returns the sampled engine under the least pressure, the first of equals.
func (k *cachePick) least(sampled []holder) *holder {
	scale := scaleOf(sampled)
	best := &sampled[0]
	for i := range sampled {
		if scale.compare(&sampled[i].observed, &best.observed) < 0 {
			best = &sampled[i]
		}
	}
	return best
}

// scale says by which figures several engines can be put in order: those that all of them have. Unlike comparePressure it makes
// a total order, so that a minimum is one and a sort ends.
type scale struct{ native, queue, uncached bool }

func scaleOf(list []holder) scale {
	s := scale{true, true, true}
	for i := range list {
		r := list[i].report
		if !r.Native() {
			return scale{}
		}
		s.queue = s.queue && r.QueueMicros.IsKnown()
		s.uncached = s.uncached && r.WaitingUncached.IsKnown()
	}
	return s
}

// compare orders by prefill pressure; see comparePressure.
func (s scale) compare(a, b *observed) int {
	if s.native {
		if c := compareIf(s.queue, a.report.QueueMicros, b.report.QueueMicros); c != 0 {
			return c
		}
		if c := compareIf(s.uncached, a.report.WaitingUncached, b.report.WaitingUncached); c != 0 {
			return c
		}
		if c := compareKnown(a.report.Waiting, b.report.Waiting); c != 0 {
			return c
		}
		if c := compareKnown(a.report.Running, b.report.Running); c != 0 {
			return c
		}
	}
	switch {
	case a.inFlight < b.inFlight:
		return -1
	case a.inFlight > b.inFlight:
		return 1
	}
	return 0
}

// compareHits orders by uncached tokens, pressure, id.
func (s scale) compareHits(a, b *holder) int {
	switch {
	case a.uncached < b.uncached:
		return -1
	case a.uncached > b.uncached:
		return 1
	}
	return s.compareWithID(&a.observed, &b.observed)
}

// compareWithID orders by prefill pressure, id.
func (s scale) compareWithID(a, b *observed) int {
	if c := s.compare(a, b); c != 0 {
		return c
	}
	return strings.Compare(a.engine.ID, b.engine.ID)
}

func compareIf(use bool, a, b load.Count) int {
	if !use {
		return 0
	}
	return compareKnown(a, b)
}
