package replay

import (
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// kind says what a scheduled event does.
type kind uint8

const (
	wake    kind = iota // the engine's core has something to do
	poll                // the gateway asks the engine for its load
	answer              // and gets it
	fail                // the engine fails
	back                // the engine returns
	told                // news of the engine's cache reach the gateway
	mended              // what the gateway missed of them is there
	restate             // the gateway tells the others all it has in prefill
	heard               // a gateway hears what another told
)

// event is something that will happen.
type event struct {
	at      time.Duration
	seq     uint64 // in the order of scheduling: no two events are equal
	kind    kind
	engine  int32
	gateway int32
	// stamp tells a wake that is still wanted from one that a later one replaced, and numbers an engine's polls.
	stamp  uint64
	report *load.RankReport // of an answer
	word   *word            // of what is heard
}

func (e *event) before(o *event) bool {
	return e.at < o.at || (e.at == o.at && e.seq < o.seq)
}

// queue is a binary heap of events, the next one first.
type queue struct {
	heap []event
	seq  uint64
}

func (q *queue) push(e event) {
	q.seq++
	e.seq = q.seq
	q.heap = append(q.heap, e)
	for i := len(q.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if !q.heap[i].before(&q.heap[up]) {
			return
		}
		q.heap[i], q.heap[up] = q.heap[up], q.heap[i]
		i = up
	}
}

// next returns the time of the next event.
func (q *queue) next() (time.Duration, bool) {
	if len(q.heap) == 0 {
		return 0, false
	}
	return q.heap[0].at, true
}

// pop takes the next event out. There must be one.
func (q *queue) pop() event {
	top, last := q.heap[0], len(q.heap)-1
	q.heap[0] = q.heap[last]
	q.heap[last] = event{}
	q.heap = q.heap[:last]
	for i := 0; ; {
		least := i
		for _, child := range [...]int{2*i + 1, 2*i + 2} {
			if child < last && q.heap[child].before(&q.heap[least]) {
				least = child
			}
		}
		if least == i {
			return top
		}
		q.heap[i], q.heap[least] = q.heap[least], q.heap[i]
		i = least
	}
}
