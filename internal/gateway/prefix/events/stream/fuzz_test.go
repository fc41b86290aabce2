package stream

import (
	"testing"
	"time"
)

// FuzzMachine gives a machine inputs in any order, also those that no publisher would make, and holds what must be true all the same: batches
// come out once, and in order between two withdrawals; nobody is asked twice at once; time passes; and a machine that is told the end
// keeps nothing.
func FuzzMachine(f *testing.F) {
	f.Add([]byte{1, 1, 3, 0, 3, 2, 4, 1, 5, 0, 3, 3})
	f.Add([]byte{0, 1, 3, 5, 3, 2, 2, 9, 1, 0, 3, 3, 0, 255})
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) == 0 {
			return
		}
		now := epoch
		m := New(now, script[0]&1 == 1, Limits{Held: 3})
		in, out, asked, last, trust := 0, 0, uint64(0), int64(-1), Hidden
		do := func(input Input) {
			ends := input.Kind == ReplayEnd || input.Kind == ReplayBroken
			for _, a := range m.Step(now, input) {
				switch a.Kind {
				case Apply:
					out++
					if a.Batch.Seq <= last {
						t.Fatalf("batch %d behind %d", a.Batch.Seq, last)
					}
					last = a.Batch.Seq
				case Drop:
					out++
				case Withdraw:
					last, trust = -1, Hidden
				case Doubt:
					trust = Partial
				case Mark, Hide:
					trust = m.Trust()
				case Ask:
					if asked != 0 && !(ends && asked == input.Ask) {
						t.Fatal("asked twice")
					}
					asked = a.Ask
				case Hangup:
					asked = 0
				}
			}
			if ends && asked == input.Ask {
				asked = 0
			}
			if trust != m.Trust() {
				t.Fatalf("told %v, is %v", trust, m.Trust())
			}
		}
		for i := 1; i+1 < len(script); i += 2 {
			kind, v := InputKind(script[i]%10), script[i+1]
			input := Input{Kind: kind}
			switch kind {
			case Live, Replayed:
				seq := int64(v%16) - 1
				input.Batch = Batch{Seq: seq, Print: uint64(v/128)<<32 | uint64(seq), Payload: []byte{v}}
				input.Ask = asked
				in++
			case Tick:
				now = now.Add(time.Duration(v) * 50 * time.Millisecond)
			case Broken:
				input.Heard = now.Add(-time.Duration(v) * 10 * time.Millisecond)
			case ReplayEnd, ReplayBroken:
				input.Ask = asked
			case Closed:
				continue
			}
			do(input)
			if d := m.Deadline(); kind == Tick && !d.IsZero() && !d.After(now) {
				do(Input{Kind: Tick})
				do(Input{Kind: Tick})
				if d := m.Deadline(); !d.IsZero() && !d.After(now) {
					t.Fatalf("%v is due for ever: %+v", d, m.Status())
				}
			}
		}
		do(Input{Kind: Closed})
		if in != out || m.Status().Held != 0 {
			t.Fatalf("%d in, %d out, %d held", in, out, m.Status().Held)
		}
	})
}
