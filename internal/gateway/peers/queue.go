package peers

import (
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/peers/wire"
)

// maxWaiting bounds what happens between two messages: 10 ms of 400,000 requests a second, beyond what a gateway does.
const maxWaiting = 8192

// happening is one thing that is to be told.
type happening struct {
	engine *load.Engine
	what   wire.What
	id     uint64
	at     time.Time // zero: not known when
	tokens int64
}

// queue is what has happened since the last message. It is what the load records tell, under their locks: they wait for nothing but a few
// instructions of the goroutine that tells.
type queue struct {
	wake chan struct{} // one place: there is something
	mu   struct {
		sync.Mutex
		list []happening
		full bool // something was dropped
	}
}

// Sent implements load.Observer.
func (q *queue) Sent(e *load.Engine, p load.Prompt) {
	q.put(happening{engine: e, what: sent(p), id: p.ID, at: p.At, tokens: p.Uncached})
}

// Gone implements load.Observer.
func (q *queue) Gone(e *load.Engine, id uint64, at time.Time) {
	h := happening{engine: e, what: wire.Prefilled, id: id, at: at}
	if at.IsZero() {
		h.what = wire.GivenUp
	}
	q.put(h)
}

func sent(p load.Prompt) wire.What {
	if p.Unseen {
		return wire.SentUnseen
	}
	return wire.Sent
}

func (q *queue) put(h happening) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := len(q.mu.list)
	switch {
	case n > 0 && q.mu.list[n-1].id == h.id && h.what <= wire.SentUnseen && q.mu.list[n-1].what <= wire.SentUnseen:
		q.mu.list[n-1] = h // more is known of it: the usual case, since that follows at once
		return
	case n >= maxWaiting:
		q.mu.full = true
		return
	}
	q.mu.list = append(q.mu.list, h)
	if n == 0 {
		select {
		case q.wake <- struct{}{}:
		default: // it is awake
		}
	}
}

// take returns what has happened, and whether something is missing there. spare is where the next is put.
func (q *queue) take(spare []happening) (list []happening, full bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	list, full = q.mu.list, q.mu.full
	q.mu.list, q.mu.full = spare[:0], false
	return list, full
}
