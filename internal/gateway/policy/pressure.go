package policy

import (
	"cmp"
	"math/bits"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// observed is an engine with what a policy read of its load, once.
type observed struct {
	engine   *fleet.Worker
	report   *load.Report
	inFlight int64
}

func observe(w *fleet.Worker, r *Request) observed {
	o := observed{engine: w, report: w.Load.Report(r.Now), inFlight: w.Load.Active()}
	r.Trace.consider(o.considered())
	return o
}

func (o *observed) considered() Considered {
	return Considered{Engine: o.engine, Report: o.report, InFlight: o.inFlight}
}

// comparePressure orders two engines by the pressure on them at a stage: negative if a has less. native says that the
// engines' own reports decided, and not only what this gateway has in flight.
//
// Plain and prefill compare the estimated prefill queue time, then waiting uncached tokens, waiting and running requests;
// decode compares waiting and running requests, the used fraction of the KV pool, then used KV tokens. A figure that one
// side lacks is skipped. If either engine has no native report, only what this gateway has in flight counts, for both: two
// different measures do not compare. It is pairwise and no total order, since which figures count depends on the pair:
// never sort by it.
func comparePressure(stage fleet.Stage, a, b *observed) (order int, native bool) {
	if a.report.Native() && b.report.Native() {
		var c int
		if stage == fleet.Decode {
			c = compareDecode(a.report, b.report)
		} else {
			c = comparePrefill(a.report, b.report)
		}
		if c != 0 {
			return c, true
		}
	}
	return cmp.Compare(a.inFlight, b.inFlight), false
}

func comparePrefill(a, b *load.Report) int {
	return cmp.Or(
		compareKnown(a.QueueMicros, b.QueueMicros),
		compareKnown(a.WaitingUncached, b.WaitingUncached),
		compareKnown(a.Waiting, b.Waiting),
		compareKnown(a.Running, b.Running),
	)
}

func compareDecode(a, b *load.Report) int {
	return cmp.Or(
		compareKnown(a.Waiting, b.Waiting),
		compareKnown(a.Running, b.Running),
		compareFraction(a.Used, a.Capacity, b.Used, b.Capacity),
		compareKnown(a.Used, b.Used),
	)
}

func compareKnown(a, b load.Count) int {
	x, ok1 := a.Get()
	y, ok2 := b.Get()
	if !ok1 || !ok2 {
		return 0
	}
	return cmp.Compare(x, y)
}

// compareFraction compares a/ca with b/cb exactly, by cross-multiplying in 128 bits.
func compareFraction(a, ca, b, cb load.Count) int {
	x, ok1 := a.Get()
	cx, ok2 := ca.Get()
	y, ok3 := b.Get()
	cy, ok4 := cb.Get()
	if !ok1 || !ok2 || !ok3 || !ok4 || cx <= 0 || cy <= 0 || x < 0 || y < 0 {
		return 0
	}
	h1, l1 := bits.Mul64(uint64(x), uint64(cy))
	h2, l2 := bits.Mul64(uint64(y), uint64(cx))
	return cmp.Or(cmp.Compare(h1, h2), cmp.Compare(l1, l2))
}
