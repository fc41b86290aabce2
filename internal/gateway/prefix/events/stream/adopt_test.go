package stream

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestAdopt has a machine take over what somebody else followed up to batch 7, print 77, and connect.
func TestAdopt(t *testing.T) {
	batch := func(seq int64, print uint64) Batch { return Batch{Seq: seq, Print: print, Payload: []byte{1}} }
	for _, c := range []struct {
		about  string
		replay bool
		in     []Input
		want   string // what was done, in words, and the trust in the end
	}{
		{"the same publisher", true, []Input{
			{Kind: Connected}, {Kind: Live, Batch: batch(10, 110)}, {Kind: Replayed, Batch: batch(7, 77), Ask: 1},
			{Kind: Replayed, Batch: batch(8, 88), Ask: 1}, {Kind: Replayed, Batch: batch(9, 99), Ask: 1}, {Kind: ReplayEnd, Ask: 1},
		}, "ask 7, drop 7, apply 8, apply 9, apply 10, mark; whole"},
		{"another one", true, []Input{
			{Kind: Connected}, {Kind: Replayed, Batch: batch(7, 78), Ask: 1},
		}, "ask 7, drop 7, hangup, withdraw, ask 0; hidden"},
		{"one that has begun anew", true, []Input{
			{Kind: Connected}, {Kind: ReplayEnd, Ask: 1},
		}, "ask 7, withdraw, ask 0; hidden"},
		{"one that has forgotten the batch", true, []Input{
			{Kind: Connected}, {Kind: Replayed, Batch: batch(9, 99), Ask: 1}, {Kind: ReplayEnd, Ask: 1},
		}, "ask 7, doubt, mark, apply 9, mark; partial"},
		{"nobody can be asked", false, []Input{
			{Kind: Connected}, {Kind: Live, Batch: batch(8, 88)},
		}, "doubt, mark, apply 8, mark; partial"},
		{"numbers that go backwards", true, []Input{
			{Kind: Connected}, {Kind: Live, Batch: batch(3, 33)},
		}, "ask 7, hangup, withdraw, ask 0; hidden"},
	} {
		now := time.Unix(1000, 0)
		m := New(now, c.replay, Limits{})
		m.Adopt(now, 8, 77, true, true)
		if s := m.Status(); s.Next != 8 || s.Print != 77 || !s.Printed || m.Trust() != Hidden {
			t.Errorf("%s: %+v", c.about, s)
		}
		var did []string
		for _, in := range c.in {
			now = now.Add(time.Millisecond)
			for _, a := range m.Step(now, in) {
				did = append(did, words(a))
			}
		}
		if got := strings.Join(did, ", ") + "; " + m.Trust().String(); got != c.want {
			t.Errorf("%s: %s\nwant %s", c.about, got, c.want)
		}
	}
}

func words(a Action) string {
	switch a.Kind {
	case Apply:
		return fmt.Sprint("apply ", a.Batch.Seq)
	case Drop:
		return fmt.Sprint("drop ", a.Batch.Seq)
	case Ask:
		return fmt.Sprint("ask ", a.From)
	}
	return map[ActionKind]string{Mark: "mark", Hide: "hide", Doubt: "doubt", Withdraw: "withdraw", Hangup: "hangup"}[a.Kind]
}

// TestAdoptTooLate: who follows the publisher himself adopts nothing any more.
func TestAdoptTooLate(t *testing.T) {
	now := time.Unix(1000, 0)
	m := New(now, true, Limits{})
	m.Step(now, Input{Kind: Connected})
	m.Adopt(now, 8, 77, true, true)
	if s := m.Status(); s.Next != -1 {
		t.Errorf("%+v", s)
	}
	m = New(now, true, Limits{})
	m.Adopt(now, 8, 77, true, true)
	m.Step(now.Add(2*time.Minute), Input{Kind: Tick})
	if s := m.Status(); s.Next != -1 {
		t.Errorf("nobody has come for two minutes: %+v", s)
	}
}

// TestHoled: claims with a hole are good and not all, until the engine says that it holds nothing.
func TestHoled(t *testing.T) {
	now := time.Unix(1000, 0)
	m := New(now, true, Limits{})
	m.Adopt(now, 8, 77, true, true)
	m.Step(now, Input{Kind: Connected})
	m.Step(now, Input{Kind: Replayed, Batch: Batch{Seq: 7, Print: 77}, Ask: 1})
	m.Step(now, Input{Kind: Replayed, Batch: Batch{Seq: 8, Print: 88}, Ask: 1})
	m.Applied(now, Holed)
	m.Step(now, Input{Kind: ReplayEnd, Ask: 1})
	if s := m.Status(); m.Trust() != Partial || s.PartWhy != Unplaced || s.Losses != 0 {
		t.Errorf("%v, %+v", m.Trust(), s)
	}
	if a := m.Applied(now, Holed); len(a) != 0 {
		t.Errorf("a second hole changes something: %+v", a)
	}
	if m.Applied(now, Emptied); m.Trust() != Whole {
		t.Errorf("%v", m.Trust())
	}
}
