package policy

import (
	"slices"
	"strings"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// miss picks by load.
func (k *cachePick) miss() (Pick, error) {
	if k.config.QueueLimit == 0 && k.config.Choices <= fewChoices {
		return k.takeLeast(k.sampleOfAll())
	}
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
	return k.takeLeast(k.sample())
}

// takeLeast picks the sampled engine under the least pressure if admission lets it in.
func (k *cachePick) takeLeast(sampled []holder) (Pick, error) {
	h := k.least(sampled)
	if !k.admits(h) {
		return Pick{}, &PickError{Class: AdmissionRejected, Stage: k.r.Stage, Rejections: k.refused}
	}
	return k.done(h, ReasonNoHolder), nil
}

// sample draws the engines that are compared, by as much of a shuffle as that takes (Fisher and Yates), and reads them. All of them are
// shuffled where there is no choice, so that the first of equals is a fair draw.
func (k *cachePick) sample() []holder {
	d := newDraw(k.seed, k.r.Key, k.r.Stage)
	n := k.beginSample(len(k.pool))
	for i := range n {
		j := i + d.intN(len(k.pool)-i)
		k.pool[i], k.pool[j] = k.pool[j], k.pool[i]
		k.compare(k.pool[i])
	}
	return k.hits
}

// fewChoices is how many are sampled at most without a list of all candidates.
const fewChoices = 16

// sampleOfAll draws as sample does from a list of all candidates, without the list: of what it would hold only the places are kept that the shuffle has moved to.
// A list of a thousand is three microseconds for two that are looked at.
func (k *cachePick) sampleOfAll() []holder {
	d, all := newDraw(k.seed, k.r.Key, k.r.Stage), k.candidates.Len()
	n := k.beginSample(all)
	var room [fewChoices]moved
	shuffled := room[:0]
	at := func(place int) int {
		for i := range shuffled {
			if shuffled[i].place == place {
				return shuffled[i].is
			}
		}
		return place
	}
	for i := range n {
		j := i + d.intN(all-i)
		first, drawn := at(i), at(j)
		shuffled = slices.DeleteFunc(shuffled, func(m moved) bool { return m.place == j }) // of what is before i nothing is drawn any more
		shuffled = append(shuffled, moved{place: j, is: first})
		k.compare(k.candidates.At(drawn))
	}
	return k.hits
}

// moved is a place of a list and the candidate that a shuffle has put there.
type moved struct{ place, is int }

// beginSample returns how many of so many engines are compared, and empties the list of those that are.
func (k *cachePick) beginSample(of int) int {
	clear(k.hits) // nobody needs them any more
	k.hits = k.hits[:0]
	return min(max(k.config.Choices, 1), of)
}

// compare adds an engine to those that are compared.
func (k *cachePick) compare(w *fleet.Worker) {
	h := k.read(w)
	k.r.Trace.consider(h.considered())
	k.hits = append(k.hits, h)
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
