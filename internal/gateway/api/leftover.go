package api

import "sync"

// What may be left behind of requests whose clients have gone: so many prefill halves, each with a connection to its engine, and a part of what all requests may
// hold. Clients that open requests and reset them, thousands a second over one connection, must not take the gateway's descriptors and memory for as long as a
// prefill engine takes. One half more ends with its client.
const (
	maxLeft      = 1024
	leftOfBuffer = 8 // an eighth
)

// leftovers are the prefill halves that are left behind, all requests together.
type leftovers struct {
	mu    sync.Mutex
	n     int   // guarded by mu
	bytes int64 // that they hold; guarded by mu
}

// leftover is the prefill half of a pair that works at once, which may go on when its client has left. Its goroutine ends it, the request's may leave it behind.
type leftover struct {
	s *Server

	mu    sync.Mutex
	ended bool  // guarded by mu, as is what follows
	left  bool  // behind
	bytes int64 // that it holds in place of its request
}

// leave leaves the half behind, with all that its request holds: the half may still be sending that. It is false where there are as many as may be. The request's
// goroutine calls it, once at most.
func (l *leftover) leave(c *call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return true
	}
	all := &l.s.left
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.n == maxLeft || all.bytes+c.held > c.v.Settings.MaxBuffered/leftOfBuffer {
		return false
	}
	l.left, l.bytes = true, c.held
	all.n++
	all.bytes += l.bytes
	c.held = 0
	return true
}

// end gives back what the half holds.
func (l *leftover) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	if !l.left {
		return
	}
	all := &l.s.left
	all.mu.Lock()
	defer all.mu.Unlock()
	all.n--
	all.bytes -= l.bytes
	l.s.buffered.Add(-l.bytes)
}
