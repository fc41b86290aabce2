package explain

import (
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// DefaultSize is how many requests a log remembers: some ten seconds at a hundred requests a second, long enough to ask
// about what was just seen, at about 2 KiB each.
const DefaultSize = 1024

// CandidatesKept bounds the candidates that an entry keeps of each group, the one that was picked among them. Sampling policies
// look at two; for those that look at all, the first ones show the pattern.
const CandidatesKept = 16

// Log is the decision log. All methods may be called at once. Make one with [NewLog].
type Log struct {
	pool sync.Pool // *Entry

	mu struct {
		sync.Mutex // guards every entry that was begun, too
		ring       []*Entry
		next       int
	}
}

// NewLog returns a log of that many requests; zero or less means [DefaultSize].
func NewLog(size int) *Log {
	if size <= 0 {
		size = DefaultSize
	}
	l := &Log{}
	l.mu.ring = make([]*Entry, size)
	l.pool.New = func() any { return &Entry{log: l} }
	return l
}

// Facts are what is known of a request before its engines are picked.
type Facts struct {
	Started     time.Time
	RequestID   string
	Route       string
	Model       string
	Stream      bool
	InputTokens int64
	InputExact  bool   // the engine sees as many
	InputSource string // how the number was come by: given, rendered, encoded, bare_text, engine, estimated
	PeakTokens  load.Count
}

// StatusClientLeft stands where a client left before there was a status; it is nginx's.
const StatusClientLeft = 499

// End is how a request ended.
type End struct {
	Status int    // as the client got it; StatusClientLeft if the client left before there was one
	Code   string // the error code, empty where there is none
	// TTFT and Duration are from the arrival; a TTFT of zero means that no answer began.
	TTFT, Duration time.Duration
	// PromptTokens, CachedTokens and CompletionTokens are what the engine's usage said.
	PromptTokens, CachedTokens, CompletionTokens load.Count
}

// Entry is one request in the log. Its owner is the request's goroutine, which calls Attempt and Outcome for each attempt
// and Finish once; it must not be used after Finish.
type Entry struct {
	log      *Log
	facts    Facts
	attempts []attempt
	used     int // of attempts, which keeps its memory
	end      End
	ended    bool
	inRing   bool
}

type attempt struct {
	trace     *bucket.Trace
	selection bucket.Selection
	at        time.Time
	outcome   string
}

// Begin takes a request into the log.
func (l *Log) Begin(f Facts) *Entry {
	e := l.pool.Get().(*Entry)
	e.facts, e.used, e.end, e.ended, e.inRing = f, 0, End{}, false, true
	l.mu.Lock()
	defer l.mu.Unlock()
	if old := l.mu.ring[l.mu.next]; old != nil {
		old.inRing = false
		l.recycleLocked(old)
	}
	l.mu.ring[l.mu.next] = e
	l.mu.next = (l.mu.next + 1) % len(l.mu.ring)
	return e
}

// recycleLocked gives an entry's memory back once neither the ring nor its request needs it.
func (l *Log) recycleLocked(e *Entry) {
	if !e.inRing && e.ended {
		l.pool.Put(e)
	}
}

// Attempt makes one selection and notes it: pick gets the trace to fill. The log is locked meanwhile only to note the result.
func (e *Entry) Attempt(at time.Time, pick func(*bucket.Trace) (bucket.Selection, error)) (bucket.Selection, error) {
	e.log.mu.Lock()
	if e.used == len(e.attempts) {
		e.attempts = append(e.attempts, attempt{trace: bucket.NewTrace(CandidatesKept)})
	}
	a := e.attempts[e.used]
	e.log.mu.Unlock()
	a.trace.Reset() // not yet visible: rendering reads the first e.used attempts
	s, err := pick(a.trace)
	a.selection, a.at, a.outcome = s, at, "dispatching"
	if err != nil {
		a.outcome = "not selected"
	}
	e.log.mu.Lock()
	defer e.log.mu.Unlock()
	e.attempts[e.used] = a
	e.used++
	return s, err
}

// Outcome notes what became of the last attempt.
func (e *Entry) Outcome(what string) {
	e.log.mu.Lock()
	defer e.log.mu.Unlock()
	if e.used > 0 {
		e.attempts[e.used-1].outcome = what
	}
}

// Finish notes the end.
func (e *Entry) Finish(end End) {
	e.log.mu.Lock()
	defer e.log.mu.Unlock()
	e.end, e.ended = end, true
	e.log.recycleLocked(e)
}

// Query says which records are wanted. The zero value wants all.
type Query struct {
	RequestID string // empty: any
	Limit     int    // the newest so many; 0: all
}

// Records renders the entries that match, newest first.
func (l *Log) Records(q Query) []Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	records := []Record{}
	for i := range l.mu.ring {
		e := l.mu.ring[(l.mu.next-1-i+2*len(l.mu.ring))%len(l.mu.ring)]
		if e == nil || (q.RequestID != "" && e.facts.RequestID != q.RequestID) {
			continue
		}
		records = append(records, e.renderLocked())
		if q.Limit > 0 && len(records) == q.Limit {
			break
		}
	}
	return records
}
