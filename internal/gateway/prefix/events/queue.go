package events

import (
	"slices"
	"sync"
)

// queue is what waits for an applier: in order of coming for each feed, and feeds take turns. What one engine floods us with so costs the
// others of its domain a turn of it, and not the wait for all of it. How much may wait is bounded by feed: see feed.offer and feed.tell.
//
// One channel for all was not kept: a feed with 16 MiB of long batches before everybody else's made the others' claims three seconds old.
type queue struct {
	wake chan struct{} // there is something, where there was nothing; one is enough

	mu    sync.Mutex  // guards what follows, and feed.pending
	ready fifo[*feed] // those with something pending, or paused, each once
	taken []message   // the turn that the applier is at; its own
}

// A turn is so many messages, or so many bytes and the message with which it goes beyond: a batch of a step has some KB. A longer one is cut:
// the feed pauses when its turn has told the index of so many blocks, 4 ms, and goes on when the others had theirs.
const (
	turnMessages = 64
	turnBytes    = 64 << 10
	turnBlocks   = 8 << 10
)

func (q *queue) push(m message) {
	f := m.feed
	q.mu.Lock()
	f.pending.push(m)
	asleep := !f.ready && q.ready.len() == 0
	q.readyLocked(f)
	q.mu.Unlock()
	if asleep {
		select {
		case q.wake <- struct{}{}:
		default: // it will look anyway
		}
	}
}

func (q *queue) readyLocked(f *feed) {
	if !f.ready {
		f.ready = true
		q.ready.push(f)
	}
}

// putBack has a feed go on at its next turn, before the rest of the present one.
func (q *queue) putBack(f *feed, rest []message) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f.pending.unshift(rest)
	q.readyLocked(f)
}

// turn returns what is next, nothing if nothing waits. It is good until the next call. A feed that has paused gets no other message before it
// has gone on.
func (q *queue) turn() []message {
	clear(q.taken) // so that no payload is kept alive
	q.taken = q.taken[:0]
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.taken) == 0 && q.ready.len() > 0 { // a feed that has ended may have nothing any more
		f := q.ready.pop()
		f.ready = false
		if f.paused() {
			q.taken = append(q.taken, message{feed: f, goOn: true})
			q.readyLocked(f) // for what waits behind
			break
		}
		for n := 0; f.pending.len() > 0 && len(q.taken) < turnMessages && n < turnBytes; {
			m := f.pending.pop()
			n += len(m.input.Batch.Payload)
			q.taken = append(q.taken, m)
		}
		if f.pending.len() > 0 {
			q.readyLocked(f)
		}
	}
	return q.taken
}

// fifo is a queue that gives memory back. The zero value is empty.
type fifo[T any] struct {
	items []T
	head  int // items before it are gone
}

// idleItems is how much room an empty fifo keeps.
const idleItems = 256

func (q *fifo[T]) len() int { return len(q.items) - q.head }

func (q *fifo[T]) push(v T) { q.items = append(q.items, v) }

// unshift puts values before all others.
func (q *fifo[T]) unshift(v []T) {
	if len(v) > 0 {
		*q = fifo[T]{items: append(slices.Clone(v), q.items[q.head:]...)}
	}
}

// pop takes the first of at least one.
func (q *fifo[T]) pop() (v T) {
	q.items[q.head], v = v, q.items[q.head]
	q.head++
	switch n := len(q.items); {
	case q.head == n && n > idleItems:
		*q = fifo[T]{}
	case q.head == n || q.head >= idleItems && q.head*2 >= n: // each is moved once in a while, so a pop costs the same on average
		rest := copy(q.items, q.items[q.head:])
		clear(q.items[rest:])
		q.items, q.head = q.items[:rest], 0
	}
	return v
}
