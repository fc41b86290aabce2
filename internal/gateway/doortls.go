package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"

	"github.com/perigee-llm/perigee/internal/gateway/downstream"
)

// secureServer is a door's with TLS: downstream's, which shakes hands and serves HTTP/1, and net/http's for those with which HTTP/2 was agreed.
type secureServer struct {
	one      *downstream.Server
	two      *http.Server
	agreed   *agreed
	handlers *handlers // of net/http's
}

// Serve implements server.
func (s *secureServer) Serve(ln net.Listener) error {
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.two.Serve(s.agreed) }) // it ends with agreed, or with Shutdown or Close
	err := s.one.Serve(ln)
	_ = s.agreed.Close()
	wg.Wait()
	return err
}

// Shutdown implements server.
func (s *secureServer) Shutdown(ctx context.Context) error {
	var err error
	var wg sync.WaitGroup
	wg.Go(func() { err = s.two.Shutdown(ctx) })
	first := s.one.Shutdown(ctx)
	wg.Wait()
	return errors.Join(first, err)
}

// Close implements server.
func (s *secureServer) Close() error {
	_ = s.agreed.Close()
	return errors.Join(s.one.Close(), s.two.Close())
}

// Wait implements server.
func (s *secureServer) Wait() {
	s.one.Wait()
	s.handlers.close()
}

// agreed is the listener of connections with which HTTP/2 was agreed. It keeps none: who gives one waits until it is taken, which is at once.
type agreed struct {
	conns chan *tls.Conn
	done  chan struct{}
	once  sync.Once
	below net.Listener
}

func newAgreed(below net.Listener) *agreed {
	return &agreed{conns: make(chan *tls.Conn), done: make(chan struct{}), below: below}
}

// give gives a connection, or closes it if nobody takes any.
func (a *agreed) give(c *tls.Conn) {
	select {
	case a.conns <- c:
	case <-a.done:
		_ = c.NetConn().Close()
	}
}

// Accept implements net.Listener.
func (a *agreed) Accept() (net.Conn, error) {
	select {
	case c := <-a.conns:
		return c, nil
	case <-a.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (a *agreed) Close() error {
	a.once.Do(func() { close(a.done) })
	return nil
}

// Addr implements net.Listener.
func (a *agreed) Addr() net.Addr { return a.below.Addr() }

// handlers counts requests, so that their end can be waited for: net/http's Close does not.
type handlers struct {
	wg sync.WaitGroup
	mu struct {
		sync.Mutex
		closed bool
	}
}

// begin counts a request, which ends it with done. It ends requests that come after close.
func (c *handlers) begin() {
	c.mu.Lock()
	if c.mu.closed {
		c.mu.Unlock()
		panic(http.ErrAbortHandler)
	}
	c.wg.Add(1)
	c.mu.Unlock()
}

func (c *handlers) done() { c.wg.Done() }

// close waits for the requests that are under way and lets none begin. Their connections are closed already.
func (c *handlers) close() {
	c.mu.Lock()
	c.mu.closed = true
	c.mu.Unlock()
	c.wg.Wait()
}
