package explain

import (
	"slices"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// DefaultSize is how many requests a log remembers: some ten seconds at a hundred requests a second, long enough to ask
// about what was just seen, at 1.3 KiB each. One that saw the worst, three attempts at four buckets that are
// all full, has 25 KiB, however many engines there are.
const DefaultSize = 1024

// CandidatesKept bounds the candidates that an entry keeps of each group, the one that was picked among them. Sampling policies
// look at two; for those that look at all, the first ones show the pattern.
const CandidatesKept = 16

// Limits of one question.
const (
	// DefaultLimit is how many records a question gets that names no limit: as many as somebody reads.
	DefaultLimit = 100
	// MaxLimit is the most that it may ask for: the whole of a log of the default size.
	MaxLimit = DefaultSize
)

// Log is the decision log. All methods may be called at once. Make one with [NewLog].
type Log struct {
	pool sync.Pool // *Entry

	mu struct {
		sync.Mutex
		ring []slot
		next int
	}
}

// slot is a place in the ring: an entry, and which of the requests that it served in its life is meant.
type slot struct {
	entry *Entry
	turn  uint64
}

// NewLog returns a log of that many requests; zero or less means [DefaultSize].
func NewLog(size int) *Log {
	if size <= 0 {
		size = DefaultSize
	}
	l := &Log{}
	l.mu.ring = make([]slot, size)
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
	log *Log

	mu       sync.Mutex // guards all that follows; nobody who holds it waits for another lock
	turn     uint64     // counts the requests that this memory was used for
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
	turn := e.begin(f)
	l.mu.Lock()
	old := l.mu.ring[l.mu.next].entry
	l.mu.ring[l.mu.next] = slot{entry: e, turn: turn}
	l.mu.next = (l.mu.next + 1) % len(l.mu.ring)
	l.mu.Unlock()
	if old != nil {
		old.leave()
	}
	return e
}

// begin makes the entry another request's. Who read the ring before may still look at it, and sees by the turn that it is not theirs.
func (e *Entry) begin(f Facts) uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.turn++
	e.facts, e.used, e.end, e.ended, e.inRing = f, 0, End{}, false, true
	return e.turn
}

// leave notes that the entry was pushed out of the ring.
func (e *Entry) leave() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.inRing = false
	e.recycleLocked()
}

// recycleLocked gives the entry's memory back once neither the ring nor its request needs it.
func (e *Entry) recycleLocked() {
	if !e.inRing && e.ended {
		e.log.pool.Put(e)
	}
}

// Attempt makes one selection and notes it: pick gets the trace to fill. The entry is locked only to note the result.
func (e *Entry) Attempt(at time.Time, pick func(*bucket.Trace) (bucket.Selection, error)) (bucket.Selection, error) {
	e.mu.Lock()
	if e.used == len(e.attempts) {
		e.attempts = append(e.attempts, attempt{trace: bucket.NewTrace(CandidatesKept)})
	}
	a := e.attempts[e.used]
	e.mu.Unlock()
	a.trace.Reset() // not yet visible: rendering reads the first e.used attempts
	s, err := pick(a.trace)
	a.selection, a.at, a.outcome = s, at, "dispatching"
	if err != nil {
		a.outcome = "not selected"
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.attempts[e.used] = a
	e.used++
	return s, err
}

// Outcome notes what became of the last attempt.
func (e *Entry) Outcome(what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.used > 0 {
		e.attempts[e.used-1].outcome = what
	}
}

// Finish notes the end.
func (e *Entry) Finish(end End) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.end, e.ended = end, true
	e.recycleLocked()
}

// Query says which records are wanted. The zero value wants all.
type Query struct {
	RequestID string // empty: any
	Limit     int    // the newest so many; 0: all
}

// Records renders the entries that match, newest first. It holds up no request but one whose entry it reads right now, and
// that for the time of that entry alone: requests that begin meanwhile are not in the answer, and those that are pushed out may be missing.
func (l *Log) Records(q Query) []Record {
	records := []Record{}
	for _, s := range l.newest() {
		if r, ok := s.entry.record(s.turn, q.RequestID); ok {
			records = append(records, r)
		}
		if q.Limit > 0 && len(records) == q.Limit {
			break
		}
	}
	return records
}

// newest returns what is in the ring, newest first. Copying it takes a microsecond or two, for which the log is locked.
func (l *Log) newest() []slot {
	list := make([]slot, len(l.mu.ring)) // the ring's size never changes
	l.mu.Lock()
	n := copy(list, l.mu.ring[l.mu.next:])
	copy(list[n:], l.mu.ring[:l.mu.next])
	l.mu.Unlock()
	slices.Reverse(list)
	return slices.DeleteFunc(list, func(s slot) bool { return s.entry == nil })
}

// record renders the entry if it is still in that turn and the request's id is the one that is asked for; empty: any.
func (e *Entry) record(turn uint64, id string) (Record, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.turn != turn || (id != "" && e.facts.RequestID != id) {
		return Record{}, false
	}
	return e.renderLocked(), true
}
