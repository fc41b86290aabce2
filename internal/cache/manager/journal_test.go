//go:build linux

package manager

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/cache/channel/client"
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
)

// TestJournalRate: of lines of one kind that come too fast some are written, the next one tells how many were not, and other kinds are not kept back.
func TestJournalRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log kept
		j := startJournal(slog.New(slog.NewTextHandler(&log, nil)))
		for range 5 * journalBurst {
			j.say(slog.LevelWarn, "often")
		}
		j.say(slog.LevelInfo, "once")
		j.say(slog.LevelDebug, "too low")
		synctest.Wait()
		<-time.After(3 * time.Second)
		j.say(slog.LevelWarn, "often", "n", 7)
		j.close()
		said := log.String()
		if n := strings.Count(said, "often"); n != journalBurst+1 {
			t.Errorf("%d lines of what came too often", n)
		}
		if strings.Count(said, "once") != 1 || strings.Contains(said, "too low") || !strings.HasSuffix(said, "msg=often n=7 left_out=400\n") {
			t.Errorf("the log ends with\n%s", said[max(0, len(said)-300):])
		}
		if n := j.untold.Load(); n != 4*journalBurst {
			t.Errorf("%d were left out", n)
		}
	})
}

// stuck is a log's writer that stands still until it is told to go on.
type stuck struct {
	goOn  chan struct{}
	mu    sync.Mutex
	lines bytes.Buffer
}

func (s *stuck) Write(b []byte) (int, error) {
	<-s.goOn
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lines.Write(b)
}

// TestJournalStuck: who says something to a log that stands still does not wait, and close waits for a moment.
func TestJournalStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &stuck{goOn: make(chan struct{})}
		j := startJournal(slog.New(slog.NewTextHandler(w, nil)))
		for i := range 2 * journalLines {
			j.say(slog.LevelInfo, string(rune('a'+i/journalBurst)))
		}
		if n := j.untold.Load(); n < journalLines-1 {
			t.Errorf("only %d were left out", n)
		}
		at := time.Now()
		j.close()
		if took := time.Since(at); took != journalGrace {
			t.Errorf("close took %v", took)
		}
		close(w.goOn)
		<-j.done
	})
}

// TestLogStandsStill: a Manager whose log nobody reads serves on: queries, publishes, restores, registrations and their ends.
func TestLogStandsStill(t *testing.T) {
	w := &stuck{goOn: make(chan struct{})}
	var once sync.Once
	release := func() { once.Do(func() { close(w.goOn) }) }
	m := begin(t, func(o *Options) {
		o.Instances, o.Log = 3, slog.New(slog.NewTextHandler(w, nil))
	})
	t.Cleanup(release) // before Close
	s := m.dial(named("honest"))
	for range 2 * journalBurst {
		if _, err := m.tryDial(named("honest")); client.ClassOf(err) != wire.InstanceBusy {
			t.Fatal(err)
		}
	}
	if _, err := publish(s, prompt(1, 0, 4)); err != nil {
		t.Fatal(err)
	}
	b := m.dial(named("b"))
	b.Close()
	m.until("b is gone", func(st Status) bool { return len(st.Sessions) == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if a, err := s.Query(ctx, query(1, 4)); err != nil || a.Lease == nil {
		t.Fatalf("%+v, %v", a, err)
	}
	s.Close()
	m.settled()
	release()
	m.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := strings.Count(w.lines.String(), "instance refused"); n < journalBurst || n == 2*journalBurst {
		t.Errorf("%d refusals were told", n)
	}
}
