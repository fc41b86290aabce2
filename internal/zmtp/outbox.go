package zmtp

import "sync"

// outbox is the bounded queue of encoded messages for one subscriber. Publishers put, one writer takes.
type outbox struct {
	maxMessages, maxBytes int
	ready                 chan struct{} // holds one token while the writer may find something

	mu struct {
		sync.Mutex
		ring    [][]byte // grows to maxMessages
		head, n int
		bytes   int // of all that is queued or being written
		writing int // messages of the last take
		taken   int // their bytes
	}
}

func newOutbox(maxMessages, maxBytes int) *outbox {
	return &outbox{maxMessages: maxMessages, maxBytes: maxBytes, ready: make(chan struct{}, 1)}
}

// put queues a message, and returns false if the queue is full. An empty queue takes a message of any size.
func (o *outbox) put(b []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	m := &o.mu
	if held := m.n + m.writing; held >= o.maxMessages || held > 0 && m.bytes+len(b) > o.maxBytes {
		return false
	}
	if m.n == len(m.ring) {
		o.growLocked()
	}
	m.ring[(m.head+m.n)%len(m.ring)] = b
	m.n++
	m.bytes += len(b)
	select {
	case o.ready <- struct{}{}:
	default:
	}
	return true
}

func (o *outbox) growLocked() {
	m := &o.mu
	ring := make([][]byte, min(max(16, 2*len(m.ring)), max(o.maxMessages, 1)))
	n := copy(ring, m.ring[m.head:])
	copy(ring[n:], m.ring[:m.head])
	m.ring, m.head = ring, 0
}

// A write takes this much at most: enough that the system call costs little beside it, and little enough that what it holds back
// of the bound is small.
const (
	maxBatch      = 256
	maxBatchBytes = 256 << 10
)

// take forgets the messages of the last take, which were written, and appends the next ones to dst: none if the queue is empty.
func (o *outbox) take(dst [][]byte) [][]byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	m := &o.mu
	m.bytes -= m.taken
	m.writing, m.taken = 0, 0
	for m.n > 0 && m.writing < maxBatch && m.taken < maxBatchBytes {
		b := m.ring[m.head]
		m.ring[m.head] = nil
		m.head = (m.head + 1) % len(m.ring)
		m.n--
		m.writing++
		m.taken += len(b)
		dst = append(dst, b)
	}
	return dst
}
