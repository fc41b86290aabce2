package telemetry

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	// linesDelay is how long a line may wait: whoever follows an access log by eye does not see it, and what is lost when the process is killed
	// is that much.
	linesDelay = 100 * time.Millisecond
	// linesHurry is from how many bytes on nothing waits: larger writes cost the system hardly less for a line.
	linesHurry = 64 << 10
	// MaxLines is the most that waits to be written, in bytes: some 3,000 records, half a second of a busy gateway.
	MaxLines = 1 << 20
)

// Lines writes lines to a log by many at once: one system call for each request is a tenth of what a short request costs. A line is written
// within a tenth of a second, whole, and in the order in which it came.
//
// The full case: where the writer is slower than the lines come, or stands still, lines are dropped and counted, and the next that are
// written end with one that says how many. Waiting instead would stop every request for a log that nobody reads.
//
// Make one with [NewLines]; Write may be called by many at once. Close it, or what waits is lost.
type Lines struct {
	w      io.Writer
	wake   chan struct{} // something waits; one place
	hurry  chan struct{} // much waits; one place
	stop   chan struct{}
	joined chan struct{}

	mu struct {
		sync.Mutex
		waiting []byte
		dropped int
		closed  bool
	}
}

// NewLines starts a goroutine that writes to w, which is closed by nobody here. Lines that w fails to take count as
// dropped.
func NewLines(w io.Writer) *Lines {
	l := &Lines{w: w, wake: make(chan struct{}, 1), hurry: make(chan struct{}, 1), stop: make(chan struct{}), joined: make(chan struct{})}
	go l.run()
	return l
}

// Write takes one line with its end, or drops it; it never waits for the writer and never fails. The line is copied.
func (l *Lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	was := len(l.mu.waiting)
	if l.mu.closed || was+len(line) > MaxLines {
		l.mu.dropped++
		l.mu.Unlock()
		return len(line), nil
	}
	l.mu.waiting = append(l.mu.waiting, line...)
	now := len(l.mu.waiting)
	l.mu.Unlock()
	if was == 0 {
		signal(l.wake)
	}
	if was < linesHurry && now >= linesHurry {
		signal(l.hurry)
	}
	return len(line), nil
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Close writes what waits and joins the goroutine. Lines that come later are dropped. It waits as long as the writer does.
func (l *Lines) Close() {
	l.mu.Lock()
	again := l.mu.closed
	l.mu.closed = true
	l.mu.Unlock()
	if !again {
		close(l.stop)
	}
	<-l.joined
}

func (l *Lines) run() {
	defer close(l.joined)
	var spare []byte
	for {
		last := false
		select {
		case <-l.wake:
			last = l.linger()
		case <-l.stop:
			last = true
		}
		spare = l.flush(spare)
		if last {
			return
		}
	}
}

// linger waits for more lines, and tells whether it is time to end.
func (l *Lines) linger() (last bool) {
	t := time.NewTimer(linesDelay)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.hurry:
	case <-l.stop:
		return true
	}
	return false
}

// flush writes what waits, while more may come into the spare memory, and returns the memory that is then spare.
func (l *Lines) flush(spare []byte) []byte {
	l.mu.Lock()
	out, dropped := l.mu.waiting, l.mu.dropped
	l.mu.waiting, l.mu.dropped = spare[:0], 0
	l.mu.Unlock()
	if len(out)+dropped == 0 {
		return out
	}
	lost := dropped + bytes.Count(out, []byte{'\n'})
	if dropped > 0 {
		out = fmt.Appendf(out, `{"time":%q,"level":"WARN","msg":"log records were dropped: they came faster than they could be written","count":%d}`+"\n",
			time.Now().Format(time.RFC3339Nano), dropped)
	}
	if _, err := l.w.Write(out); err != nil { // how much of it was written is not known
		l.mu.Lock()
		l.mu.dropped += lost
		l.mu.Unlock()
	}
	if cap(out) > 2*linesHurry {
		return nil // after a burst
	}
	return out
}
