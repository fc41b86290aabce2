package manager

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// journal takes what is to be logged to the log. Who has something to say never waits: not for a log that nobody reads, as a pipe whose
// reader stands still, and not for others who log. One goroutine writes; what finds journalLines waiting is left out and counted, and so are lines
// of a kind that come faster than anybody reads: an engine that registers in a loop and is refused writes its line a thousand times a second.
type journal struct {
	to     slog.Handler
	lines  chan slog.Record
	done   chan struct{}
	closed sync.Once
	untold atomic.Int64 // lines that were left out

	mu struct {
		sync.Mutex
		kinds map[string]*allowance // by message: there are as many as places that log
	}
}

// allowance is what a kind of line has left.
type allowance struct {
	lines  float64
	at     time.Time // when it had so many
	untold int       // since the last that was told
}

const (
	journalLines = 256         // that wait to be written
	journalBurst = 100         // of a kind at once: a host's engines register, and are lost, together
	journalRate  = 2           // of a kind a second, from then on
	journalGrace = time.Second // of close
)

func startJournal(log *slog.Logger) *journal {
	j := &journal{to: log.Handler(), lines: make(chan slog.Record, journalLines), done: make(chan struct{})}
	j.mu.kinds = map[string]*allowance{}
	go j.write()
	return j
}

func (j *journal) write() {
	defer close(j.done)
	for r := range j.lines {
		j.to.Handle(context.Background(), r)
	}
}

// say has a line written, in the order in which lines are said. It may be called under any lock.
func (j *journal) say(level slog.Level, what string, args ...any) {
	if !j.to.Enabled(context.Background(), level) {
		return
	}
	r := slog.NewRecord(time.Now(), level, what, 0)
	r.Add(args...)
	j.mu.Lock()
	defer j.mu.Unlock()
	a := j.allow(what, r.Time)
	if a.untold > 0 {
		r.Add("left_out", a.untold) // before this one
	}
	if a.lines >= 1 {
		select {
		case j.lines <- r:
			a.lines--
			a.untold = 0
			return
		default:
		}
	}
	a.untold++
	j.untold.Add(1)
}

// allow is what a kind of line may take now. mu is held.
func (j *journal) allow(what string, now time.Time) *allowance {
	a := j.mu.kinds[what]
	if a == nil {
		a = &allowance{lines: journalBurst, at: now}
		j.mu.kinds[what] = a
	}
	a.lines, a.at = min(journalBurst, a.lines+journalRate*now.Sub(a.at).Seconds()), now
	return a
}

// close waits until what was said is written, for a moment: a log that stands still keeps its goroutine, and nobody else. Nothing is said after it;
// it may be called again.
func (j *journal) close() {
	j.closed.Do(func() { close(j.lines) })
	timer := time.NewTimer(journalGrace)
	defer timer.Stop()
	select {
	case <-j.done:
	case <-timer.C:
	}
}
