package warm

import (
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
