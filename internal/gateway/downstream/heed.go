package downstream

import (
	"errors"
	"sync"

	"github.com/perigee-llm/perigee/internal/gateway/sock"
)

// heed is how a connection with TLS learns that its client says goodbye while a handler works. The system tells when a client closes its connection or
// its direction, but a client may say so within TLS alone, and wait for the same from here: asyncio's do. So from when the request has come whole to
// when its handler is done the system tells also of bytes, and a goroutine of its own, which lives as long as there are some, reads what they are.
// A further request stays in the connection's buffer, and while something is in that nobody looks.
//
// Between begin and end the goroutine has the connection's input, under its lock.
type heed struct {
	c       *conn
	arming  arming
	begun   bool       // is the connection's goroutine's
	reading sync.Mutex // held by who has the input

	// Guarded by the connection's mu.
	on      bool
	looking bool // there is a goroutine
	again   bool // something came since it looked
	over    bool // the connection has ended: nobody begins any more
}

// begin is for when the request has come whole.
func (h *heed) begin() {
	if h == nil || h.begun || h.c.in.buffered() > 0 {
		return
	}
	c := h.c
	if h.look(c.secure.pending) {
		c.leave()
		return
	}
	if c.in.buffered() > 0 {
		return
	}
	h.begun = true
	c.mu.Lock()
	h.on = true
	c.mu.Unlock()
	h.arming.set(true) // tells at once of what is there already
}

// end gives the input back to the connection's goroutine.
func (h *heed) end() {
	if h == nil || !h.begun {
		return
	}
	h.begun = false
	h.c.mu.Lock()
	h.on = false
	h.c.mu.Unlock()
	h.reading.Lock() // who had it before is done then
	defer h.reading.Unlock()
	h.arming.set(false)
}

// close is for the connection's end.
func (h *heed) close() {
	if h == nil {
		return
	}
	h.end()
	h.c.mu.Lock()
	h.over = true
	h.c.mu.Unlock()
}

// more is told that something came. Any goroutine may call it, and it does not block.
func (h *heed) more() {
	c := h.c
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !h.on || h.over:
	case h.looking:
		h.again = true
	default:
		h.looking = true
		c.s.wg.Add(1) // the connection's own is not given back yet
		go h.run()    // joined by Wait
	}
}

// run reads what has come.
func (h *heed) run() {
	c := h.c
	defer c.s.wg.Done()
	for {
		h.reading.Lock()
		gone := h.isOn() && h.lookAhead()
		h.reading.Unlock()
		if gone {
			c.leave()
		}
		c.mu.Lock()
		if !h.again {
			h.looking = false
			c.mu.Unlock()
			return
		}
		h.again = false
		c.mu.Unlock()
	}
}

func (h *heed) isOn() bool {
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	return h.on
}

// lookAhead reads what has come, and tells whether the client has left.
func (h *heed) lookAhead() (gone bool) {
	c := h.c
	if c.in.buffered() > 0 {
		return false
	}
	if err := c.in.raw.Control(func(fd uintptr) {
		gone = h.look(func(p []byte) (int, error) { return c.secure.read(fd, p) })
	}); err != nil {
		return true // it is closed
	}
	return gone
}

// look reads into the connection's buffer, which goes back if there is nothing.
func (h *heed) look(read func([]byte) (int, error)) (gone bool) {
	in := &h.c.in
	in.take()
	for in.w < len(in.buf) {
		n, err := read(in.buf[in.w:])
		in.w += n
		if errors.Is(err, sock.ErrNothing) {
			h.c.secure.records.takeBack(recordBuffer) // nobody knows how long the handler takes
			break
		}
		if err != nil {
			gone = true
			break
		}
	}
	in.restIfEmpty()
	return gone
}
