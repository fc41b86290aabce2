package downstream

import (
	"crypto/tls"
	"errors"
	"net"

	"github.com/perigee-llm/perigee/internal/gateway/sock"
)

// secure is TLS on one connection.
//
// One goroutine reads at a time, and one writes; a *tls.Conn that reads may write too, as it does when the client wants other keys.
type secure struct {
	link    link
	conn    *tls.Conn
	records records
}

func newSecure(nc net.Conn, config *tls.Config, turns chan struct{}) *secure {
	t := &secure{link: link{Conn: nc, near: innermost(nc), turns: turns}}
	t.conn = tls.Server(&t.link, config)
	return t
}

// read reads what there is, without waiting: at least a byte, or [sock.ErrNothing], io.EOF, or what is wrong with the connection. It is for who has the
// connection's descriptor.
func (t *secure) read(fd uintptr, p []byte) (int, error) {
	t.records.lend()
	t.link.fd = fd
	n, err := t.conn.Read(p)
	switch {
	case n > 0:
		return n, nil // the error will come again
	case errors.Is(err, errLater):
		t.records.takeBack(keptRecord)
		return 0, sock.ErrNothing
	}
	t.records.drop()
	return 0, err
}

// pending is read of what has come already.
func (t *secure) pending(p []byte) (int, error) {
	t.link.dry = true
	defer func() { t.link.dry = false }()
	return t.read(0, p)
}

// write writes pieces as one, with one system call if they are short. After an error nothing can be written.
func (t *secure) write(pieces net.Buffers) error {
	var err error
	t.link.gather()
	for _, p := range pieces {
		if _, err = t.conn.Write(p); err != nil {
			break
		}
	}
	return errors.Join(err, t.link.flush())
}

// goodbye tells the client that nothing more comes, if the socket takes it. Without it nothing that has come so far is whole for its end alone.
func (t *secure) goodbye() {
	t.link.mu.Lock()
	t.link.parting = true
	t.link.mu.Unlock()
	_ = t.conn.CloseWrite() // it is told or it is not
}

// spoken is a secure connection as a net.Conn, for a pump. It is written to by its secure.
type spoken struct {
	net.Conn // the innermost
	t        *secure
}

// Read implements net.Conn.
func (s spoken) Read(p []byte) (int, error) { return s.t.conn.Read(p) }

// Close implements net.Conn.
func (s spoken) Close() error { return s.t.link.Conn.Close() }
