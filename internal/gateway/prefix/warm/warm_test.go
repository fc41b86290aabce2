package warm

import (
	"context"
	"testing"
	"time"
)

// TestNothingIsRememberedBehindTheWindow: engines come and go for ever, and each registration has a number of its own.
func TestNothingIsRememberedBehindTheWindow(t *testing.T) {
	s, err := New(Options{Endpoints: []string{"http://127.0.0.1:1"}, Window: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.until = time.Now().Add(-time.Second)
	for no := range uint32(100) {
		if _, ok := s.Of(no, "http://e", "m")(t.Context(), 0, nil); ok {
			t.Error("something was taken")
		}
	}
	if n := len(s.asked); n != 0 {
		t.Errorf("%d ranks are remembered", n)
	}
}

// TestAskedAgain: who stopped following before there was an answer does not keep the next from asking; who had one does.
func TestAskedAgain(t *testing.T) {
	outcomes := 0
	s, err := New(Options{Endpoints: []string{"http://127.0.0.1:1"}, Timeout: time.Second, Hook: func(Outcome, int) { outcomes++ }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	gone, stop := context.WithCancel(t.Context())
	stop()
	past := s.Of(1, "http://e", "m")
	for i, step := range []struct {
		ctx  context.Context
		want int
	}{{gone, 0}, {t.Context(), 1}, {t.Context(), 1}} {
		if _, ok := past(step.ctx, 0, nil); ok || outcomes != step.want {
			t.Errorf("asked %d times: taken %v, %d outcomes, want %d", i+1, ok, outcomes, step.want)
		}
	}
}
