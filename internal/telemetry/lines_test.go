package telemetry_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/perigee-llm/perigee/internal/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sheet is a log that can stand still or fail.
type sheet struct {
	mu     sync.Mutex
	gate   chan struct{} // not nil: it stands still until this is closed
	writes []string
	err    error
}

func (s *sheet) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if gate := s.gate; gate != nil {
		s.mu.Unlock()
		<-gate // a channel, so that the bubble's clock goes on
		s.mu.Lock()
	}
	if s.err != nil {
		return 0, s.err
	}
	s.writes = append(s.writes, string(p))
	return len(p), nil
}

func (s *sheet) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.writes = nil }()
	return s.writes
}

func write(t *testing.T, l *telemetry.Lines, line string) {
	t.Helper()
	if n, err := l.Write([]byte(line)); n != len(line) || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

// TestLinesTogether: lines of a tenth of a second are one write, in their order; nothing is written before, or when there is nothing.
func TestLinesTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sheet
		l := telemetry.NewLines(&s)
		defer l.Close()
		for range 2 {
			write(t, l, "a\n")
			time.Sleep(99 * time.Millisecond)
			write(t, l, "b\n")
			if got := s.take(); len(got) != 0 {
				t.Errorf("early: %q", got)
			}
			time.Sleep(time.Millisecond)
			synctest.Wait()
			if got := s.take(); len(got) != 1 || got[0] != "a\nb\n" {
				t.Errorf("%q", got)
			}
			time.Sleep(time.Hour)
			if got := s.take(); len(got) != 0 {
				t.Errorf("of nothing: %q", got)
			}
		}
	})
}

// TestLinesHurry: much does not wait.
func TestLinesHurry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sheet
		l := telemetry.NewLines(&s)
		defer l.Close()
		write(t, l, strings.Repeat("x", 64<<10)+"\n")
		synctest.Wait()
		if got := s.take(); len(got) != 1 {
			t.Errorf("%d writes", len(got))
		}
	})
}

// TestLinesClose: what waits is written at the end, and nothing is taken after it.
func TestLinesClose(t *testing.T) {
	var s sheet
	l := telemetry.NewLines(&s)
	write(t, l, "a\n")
	l.Close()
	write(t, l, "b\n")
	l.Close()
	if got := s.take(); len(got) != 1 || got[0] != "a\n" {
		t.Errorf("%q", got)
	}
}

// TestLinesFull: while the log stands still nobody waits and memory is bounded; when it goes on, what was kept comes in order, and how many were
// not. A log that fails loses what it was given, and that is told, too.
func TestLinesFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sheet
		l := telemetry.NewLines(&s)
		defer l.Close()
		line := func(i int) string { return fmt.Sprintf("%09d\n", i) }
		gate := make(chan struct{})
		s.gate = gate
		write(t, l, line(0))
		time.Sleep(time.Second) // it is being written
		const kept = telemetry.MaxLines / 10
		for i := range kept + 7 {
			write(t, l, line(1+i))
		}
		s.mu.Lock()
		s.gate = nil
		s.mu.Unlock()
		close(gate)
		time.Sleep(time.Second)
		got := s.take()
		text := strings.Join(got, "")
		for i := range kept + 1 {
			if !strings.HasPrefix(text, line(i)) {
				t.Fatalf("line %d is missing before %.20q", i, text)
			}
			text = text[10:]
		}
		if strings.Count(text, "\n") != 1 || !strings.Contains(text, `"count":7}`) {
			t.Errorf("%q", text)
		}
		s.mu.Lock()
		s.err = errors.New("full")
		s.mu.Unlock()
		write(t, l, line(1))
		write(t, l, line(2))
		time.Sleep(time.Second)
		s.mu.Lock()
		s.err = nil
		s.mu.Unlock()
		write(t, l, line(3))
		time.Sleep(time.Second)
		if got := strings.Join(s.take(), ""); !strings.HasPrefix(got, line(3)) || !strings.Contains(got, `"count":2}`) {
			t.Errorf("%q", got)
		}
	})
}
