package manager

import (
	"encoding/hex"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
)

// story is what is remembered so that a miss can be explained: the last queries and why blocks went. Both are rings, so that what it
// takes is fixed; what has left them is "not remembered", which is not "never there".
type story struct {
	queries ring[asked]
	ends    ring[ended]
}

const (
	storyQueries = 1024 // some minutes of a busy host
	storyEnds    = 8192 // evictions come in the hundreds a second: 16 bytes each
)

// asked is a query and its answer.
type asked struct {
	At       time.Duration
	Session  uint32
	Instance string
	Request  string
	Ticket   core.Ticket
	Mode     core.Mode
	Asked    []int // blocks, by group
	Answer   string
	Took     time.Duration
	Hits     []uint32
	// names are those of the first group's blocks, up to a bound, until it is answered; then that of the block by which a miss is explained, the
	// first that it did not get, if it is among them. Block from is the first of them.
	names []core.Hash
	from  int
}

// missing is the name of the first block that it did not get, in the first group; nil: there is none, or it is not remembered.
func (a *asked) missing() *core.Hash {
	if at := a.firstMissing() - a.from; at < len(a.names) {
		return &a.names[at]
	}
	return nil
}

func (a *asked) firstMissing() int {
	if len(a.Hits) == 0 {
		return 0
	}
	return int(a.Hits[0])
}

// storyNames bounds the names kept with a query that is not answered: all of them would be 256 KiB with the largest.
const storyNames = 64

// ended is why a block is not there. It has no pointer, so that the collector need not look at thousands of them.
type ended struct {
	key uint64 // of its name: see endKey
	how uint64 // place in endWords, 8 bits, and above them when, in microseconds
}

func endOf(now time.Duration, h *core.Hash, why uint8) ended {
	return ended{endKey(h), uint64(now/time.Microsecond)<<8 | uint64(why)}
}

func (e *ended) at() time.Duration { return time.Duration(e.how>>8) * time.Microsecond }

// endWords tell of core.Reason, and of noRoomEnd.
var endWords = [...]string{
	core.Evicted: "evicted: its slots were needed", core.Flushed: "flushed by an operator", core.Corrupted: "corrupt: its bytes were not what was sealed",
	noRoomEnd: "not taken when it was published: no room that could be made",
}

const noRoomEnd = core.Corrupted + 1

// endKey is what is remembered of a block's name: another one of 8,192 is taken for it once in 10¹⁵ times, and then an explanation is wrong.
func endKey(h *core.Hash) uint64 { return xxh3.Hash(h[:]) }

// ring keeps the last n values. The zero value is an empty ring of no length.
type ring[T any] struct {
	all  []T
	next int
}

func (r *ring[T]) add(v T, most int) *T {
	if len(r.all) < most {
		r.all = append(r.all, v)
		return &r.all[len(r.all)-1]
	}
	at := r.next
	r.all[at] = v
	r.next = (r.next + 1) % most
	return &r.all[at]
}

// last returns the latest value that is wanted.
func (r *ring[T]) last(want func(*T) bool) *T {
	for i := range r.all {
		v := &r.all[(r.next-1-i+2*len(r.all))%len(r.all)]
		if want(v) {
			return v
		}
	}
	return nil
}

func (s *story) asked(now time.Duration, who *session, e *wire.Query) {
	a := asked{At: now, Session: who.id.Number, Instance: who.instance, Request: e.Request, Ticket: e.Ticket, Mode: e.Mode, Answer: "loading"}
	for i, w := range e.Wants {
		a.Asked = append(a.Asked, len(w.Hashes))
		if i == 0 {
			a.names = append([]core.Hash(nil), w.Hashes[:min(len(w.Hashes), storyNames)]...)
		}
	}
	s.queries.add(a, storyQueries)
}

func (s *story) answered(now time.Duration, who core.SessionID, t core.Ticket, answer string, hits []uint32) {
	q := s.queries.last(func(a *asked) bool { return a.Session == who.Number && a.Ticket == t })
	if q != nil && q.Answer == "loading" {
		q.Answer, q.Hits, q.Took = answer, hits, now-q.At
		first := q.missing()
		if q.names = nil; first != nil {
			q.names, q.from = []core.Hash{*first}, q.firstMissing()
		}
	}
}

// leading is how many blocks of each want are there from the first on: what a query for a prefix would have got.
func leading(positions [][]uint32) []uint32 {
	hits := make([]uint32, len(positions))
	for g, there := range positions {
		for _, p := range there {
			if p != hits[g] {
				break
			}
			hits[g]++
		}
	}
	return hits
}

func (s *story) query(session uint32, op uint64) *asked {
	return s.queries.last(func(a *asked) bool { return a.Session == session && a.Ticket.Op == op })
}

// requests tells of the last queries of a request, or of an instance, whichever is not "", the newest first. An engine's id for a request may have more around
// the one that its client gave, and an instance's name its rank.
func (s *story) requests(id, instance string, most int, tell func(*asked)) {
	s.queries.last(func(a *asked) bool {
		if strings.Contains(a.Request, id) && strings.Contains(a.Instance, instance) {
			tell(a)
			most--
		}
		return most == 0
	})
}

// saw takes down that a block came or went.
func (s *story) saw(now time.Duration, a core.Action) {
	if r, ok := a.(*core.Removed); ok {
		s.ends.add(endOf(now, &r.Hash, uint8(r.Reason)), storyEnds)
	}
}

func (s *story) noRoom(now time.Duration, h core.Hash) {
	s.ends.add(endOf(now, &h, uint8(noRoomEnd)), storyEnds)
}

// explain tells the last that is remembered of a block.
func (s *story) explain(now time.Duration, h core.Hash) Explanation {
	x := Explanation{Block: hex.EncodeToString(h[:])}
	key := endKey(&h)
	e := s.ends.last(func(e *ended) bool { return e.key == key })
	if e == nil {
		x.Why = "nothing is remembered of it: never published to this Manager since its start, or so long ago that " +
			"its end is forgotten; or published under another identity"
		return x
	}
	x.Why, x.SecondsAgo = endWords[uint8(e.how)], (now - e.at()).Seconds()
	return x
}
