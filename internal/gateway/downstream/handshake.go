package downstream

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"time"
)

// TLS is what connections begin with. Every field must be set, but for what says otherwise.
//
// A handshake has the time of a head. Its goroutine, whose stack it makes deep, ends with it. There are MaxHandshakes of them at once: one more ends the
// one that has lasted longest, since who means it is done in a few round trips. Of these [turnsPerProcessor] for each processor compute, so that in
// a flood a request that becomes ready waits for its processor for some milliseconds and not for as long as all of them take.
type TLS struct {
	// Config is as it is for [tls.Server].
	Config *tls.Config
	// MaxHandshakes bounds those under way.
	MaxHandshakes int
	// Other gets the connections with which HTTP/2 was agreed. Each has shaken hands, has no time-outs, and is its to close; nil: there are none.
	// What it gets is around the listener's connection, which it returns as NetConn, time and again.
	Other func(*tls.Conn)
	// Plain returns the answer to a client that speaks HTTP without TLS.
	Plain func() []byte
}

// turnsPerProcessor is how many handshakes compute at once, for each processor, each for some tenths of a millisecond, more with RSA. With one or two they
// would starve where other work is ready all the time: the scheduler gives each goroutine the same.
const turnsPerProcessor = 8

// shake is a handshake under way.
type shake struct {
	*secure
	began time.Time
	at    *list.Element // nil: it has ended; guarded by the server's mu
}

// beginTLS has a connection shake hands, unless the server has ended.
func (s *Server) beginTLS(nc net.Conn) {
	h := &shake{secure: newSecure(nc, s.o.TLS.Config, s.turns), began: time.Now()}
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		_ = nc.Close()
		return
	}
	var oldest *shake
	if s.mu.shakes.Len() >= s.o.TLS.MaxHandshakes {
		oldest = s.mu.shakes.Front().Value.(*shake)
		s.forget(oldest)
	}
	h.at = s.mu.shakes.PushBack(h)
	s.wg.Add(1)
	s.mu.Unlock()
	if oldest != nil {
		s.cut(CutHandshake)
		_ = oldest.link.Conn.Close()
	}
	go s.shake(h) // joined by Wait
}

// forget is for who holds mu.
func (s *Server) forget(h *shake) {
	s.mu.shakes.Remove(h.at)
	h.at = nil
}

// Handshakes returns how many are under way.
func (s *Server) Handshakes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.shakes.Len()
}

// shake does one handshake and has the connection served.
func (s *Server) shake(h *shake) {
	defer s.wg.Done()
	l := &h.link
	l.until = h.began.Add(s.o.HeaderTimeout)
	_ = l.Conn.SetDeadline(l.until)
	l.takeTurn()
	err := h.conn.HandshakeContext(context.Background()) // the connection's closing ends it
	l.giveTurn()
	l.turns = nil
	if err != nil {
		s.shakeFailed(h, err)
		return
	}
	_ = l.Conn.SetDeadline(time.Time{})
	if s.o.TLS.Other != nil && h.conn.ConnectionState().NegotiatedProtocol == "h2" {
		if s.shaken(h, nil) {
			s.o.TLS.Other(h.conn)
		}
		return
	}
	_ = l.near.SetDeadline(time.Time{}) // what is around it may not have told it
	if c := newConn(s, l.Conn, h.secure); s.shaken(h, c) {
		go c.serve() // joined by Wait; done counts it off
	}
}

// shaken ends a handshake for good, and has c take its place unless it is nil. False: it was to end meanwhile, and its connection is closed.
func (s *Server) shaken(h *shake, c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.at == nil || s.mu.closed {
		s.endShake(h)
		_ = h.link.Conn.Close()
		return false
	}
	if c != nil {
		s.mu.conns[c] = struct{}{}
		s.wg.Add(1)
	}
	s.endShake(h)
	return true
}

// endShake is for who holds mu.
func (s *Server) endShake(h *shake) {
	if h.at != nil {
		s.forget(h)
		s.wakeIfEmpty()
	}
}

// shakeFailed ends the connection, and counts it unless it has only come and gone.
func (s *Server) shakeFailed(h *shake, err error) {
	l := &h.link
	var record tls.RecordHeaderError
	plain := errors.As(err, &record) && record.Conn != nil && looksLikeHTTP(record.RecordHeader)
	if plain {
		s.answerPlain(l)
	}
	_ = l.Conn.Close()
	s.mu.Lock()
	ours := h.at != nil && !errors.Is(err, net.ErrClosed) // else who took it away or closed it knows why
	s.endShake(h)
	s.mu.Unlock()
	if ours && (plain || l.wrote || errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &record)) {
		s.cut(CutHandshake)
		s.o.Log.Debug("a TLS handshake failed", "remote", l.RemoteAddr().String(), "err", err)
	}
}

// answerPlain tells a client that does not speak TLS what is wrong, and lets it read that.
func (s *Server) answerPlain(l *link) {
	_ = l.near.SetDeadline(time.Now().Add(refusalPatience))
	if _, err := l.near.Write(s.o.TLS.Plain()); err != nil {
		return
	}
	if half, ok := l.near.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	scratch := readBuffers.Get().(*[readBuffer]byte)
	defer readBuffers.Put(scratch)
	for {
		if _, err := l.near.Read(scratch[:]); err != nil {
			return
		}
	}
}

// looksLikeHTTP tells whether what came first are the first bytes of a request, as net/http has it.
func looksLikeHTTP(first [5]byte) bool {
	switch string(first[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO":
		return true
	}
	return false
}

// closeShakes closes the connections whose handshakes began before a time. It is for who holds mu.
func (s *Server) closeShakes(before time.Time) {
	for e := s.mu.shakes.Front(); e != nil; e = e.Next() {
		if h := e.Value.(*shake); !h.began.After(before) {
			_ = h.link.Conn.Close()
		}
	}
}
