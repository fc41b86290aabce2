package prefix

import (
	"context"
	"errors"
	"reflect"
	"testing"
)

// source counts its questions, and answers with what it is told.
type source struct {
	asked int
	held  []Held
	err   error
}

func (s *source) Name() string { return "test" }

func (s *source) Lookup(_ context.Context, q *Query, into *Match) error {
	s.asked++
	into.Held = append(into.Held, s.held...)
	return s.err
}

func TestMemo(t *testing.T) {
	held := []Held{{Engine: 1, Depth: Depth{16, 16, 16, 16}}}
	unavailable := &Unavailable{Reason: TimedOut}
	full, empty, away := &source{held: held}, &source{}, &source{held: held, err: unavailable}
	var m Memo
	look := func(s *source, wantHeld []Held, wantErr error, wantAsked bool) {
		t.Helper()
		match, asked, err := m.Lookup(t.Context(), s)
		if len(match.Held)+len(wantHeld) > 0 && !reflect.DeepEqual(match.Held, wantHeld) {
			t.Errorf("held %v, want %v", match.Held, wantHeld)
		}
		if !errors.Is(err, wantErr) || asked != wantAsked {
			t.Errorf("error %v, asked %v; want %v, %v", err, asked, wantErr, wantAsked)
		}
	}
	look(full, nil, nil, false) // no tokens, no question
	for range 2 {
		m.Reset(Query{Tokens: []uint32{1}})
		for _, first := range []bool{true, false, false} {
			look(full, held, nil, first)
			look(empty, nil, nil, first)
			look(away, nil, unavailable, first)
		}
	}
	if full.asked != 2 || empty.asked != 2 || away.asked != 2 {
		t.Errorf("asked %d, %d and %d times, want 2 each", full.asked, empty.asked, away.asked)
	}

	// What ended with the caller is no answer.
	m.Reset(Query{Tokens: []uint32{1}})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := m.Lookup(gone, away); err == nil {
		t.Error("no error")
	}
	away.err = nil
	look(away, held, nil, true)
}

func TestMemoAllocatesNothingAgain(t *testing.T) {
	s := &source{held: []Held{{Engine: 1}, {Engine: 2}}}
	var m Memo
	q := Query{Tokens: []uint32{1}}
	if n := testing.AllocsPerRun(100, func() {
		m.Reset(q)
		_, _, _ = m.Lookup(t.Context(), s)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestMatch(t *testing.T) {
	m := Match{
		Held: []Held{
			{Engine: 2, Rank: 0, Depth: Depth{16, 32, 32, 32}},
			{Engine: 5, Rank: 0, Depth: Depth{0, 48, 48, 48}},
			{Engine: 5, Rank: 3, Depth: Depth{16, 16, 16, 64}},
			{Engine: 9, Rank: 1, Depth: Depth{8, 8, 8, 8}},
		},
		Blind: []uint32{1, 7},
	}
	for engine, want := range map[uint32]Depth{0: {}, 2: {16, 32, 32, 32}, 3: {}, 5: {16, 48, 48, 64}, 9: {8, 8, 8, 8}, 10: {}} {
		if got := m.Of(engine); got != want {
			t.Errorf("engine %d: %v, want %v", engine, got, want)
		}
	}
	for engine, want := range map[uint32]bool{0: false, 1: true, 2: false, 7: true, 8: false} {
		if m.IsBlind(engine) != want {
			t.Errorf("engine %d: blind %v", engine, !want)
		}
	}
}
