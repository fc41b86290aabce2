package stream

import (
	"math"
	"testing"
	"time"
)

// TestLastNumber: behind the last number there is none, so a batch that has it must not be one that the stream waits to be complete with: each
// answer of the replay would be followed by the next question, without end.
func TestLastNumber(t *testing.T) {
	now := time.Now()
	m := New(now, true, Limits{})
	var ask uint64
	step := func(in Input) (asked bool) {
		for _, a := range m.Step(now, in) {
			switch a.Kind {
			case Apply:
				m.Applied(now, Plain)
			case Ask:
				ask, asked = a.Ask, true
			}
		}
		return asked
	}
	step(Input{Kind: Connected})
	step(Input{Kind: ReplayEnd, Ask: ask})
	step(Input{Kind: Live, Batch: Batch{Seq: 0}})
	for _, seq := range []int64{math.MaxInt64 - 1, math.MaxInt64, math.MinInt64, -2} {
		asked := step(Input{Kind: Live, Batch: Batch{Seq: seq, Print: 1}})
		for n := 0; asked; n++ {
			if n > 3 {
				t.Fatalf("number %d: the replay is asked for again and again", seq)
			}
			step(Input{Kind: Replayed, Ask: ask, Batch: Batch{Seq: math.MaxInt64}})
			asked = step(Input{Kind: ReplayEnd, Ask: ask})
		}
	}
	if s := m.Status(); s.State != Exact || s.Next != math.MaxInt64 {
		t.Errorf("%v, next %d; want exact, and the last number", s.State, s.Next)
	}
}
