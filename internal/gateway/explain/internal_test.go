package explain

import (
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/bucket"
)

// TestOthersGoOnWhileOneIsRead: while a question reads one entry, which is what its lock means, other requests begin, are picked for,
// end and are pushed out. With one lock for all of them this would never end.
func TestOthersGoOnWhileOneIsRead(t *testing.T) {
	l := NewLog(4)
	read := l.Begin(Facts{RequestID: "read"})
	read.mu.Lock()
	for range 3 {
		e := l.Begin(Facts{RequestID: "other"})
		_, _ = e.Attempt(time.Time{}, func(*bucket.Trace) (bucket.Selection, error) { return bucket.Selection{}, nil })
		e.Outcome("answered")
		e.Finish(End{Status: 200})
	}
	read.mu.Unlock()
	if got := l.Records(Query{}); len(got) != 4 || got[3].RequestID != "read" {
		t.Errorf("got %+v", got)
	}
}

// TestMemoryOfAnother: a question that looked at the ring before an entry's memory became another request's does not tell that one.
func TestMemoryOfAnother(t *testing.T) {
	l := NewLog(1)
	e := l.Begin(Facts{RequestID: "first"})
	seen := l.newest()
	e.Finish(End{})
	e.begin(Facts{RequestID: "second"})
	if r, ok := seen[0].entry.record(seen[0].turn, ""); ok {
		t.Errorf("told of %s", r.RequestID)
	}
}
