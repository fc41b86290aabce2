package zmtp

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/perigee-llm/perigee/internal/zmtp/wire"
	"github.com/perigee-llm/perigee/internal/zmtp/zmtptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// raw is the other side of a connection, played by the test byte by byte.
type raw struct {
	t *testing.T
	*zmtptest.Conn
}

// hello is what a peer of the type sends to shake hands.
func hello(typ Type, minor byte) []byte {
	b := wire.AppendGreeting(nil)
	b[11] = minor
	return wire.AppendReady(b, wire.Properties{SocketType: string(typ)})
}

// newRaw shakes hands with a connection of type own, as a peer of another type.
func newRaw(t *testing.T, own, peer Type, minor byte, o Options) (*Conn, *raw) {
	t.Helper()
	a, b := zmtptest.Pipe()
	r := &raw{t, b}
	r.send(hello(peer, minor))
	c, err := New(t.Context(), a, own, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(); _ = b.Close() })
	r.want(string(hello(own, 1)))
	return c, r
}

// subscribed is newRaw for a Sub that wants everything.
func subscribed(t *testing.T, minor byte, o Options) (*Conn, *raw) {
	t.Helper()
	c, r := newRaw(t, Sub, Pub, minor, o)
	r.want(string(wire.AppendSubscribe(nil, int(minor), "", false)))
	return c, r
}

func (r *raw) send(b []byte) {
	r.t.Helper()
	if _, err := r.Write(b); err != nil {
		r.t.Fatalf("the peer cannot write: %v", err)
	}
}

func (r *raw) message(frames ...string) {
	r.t.Helper()
	r.send(message(frames...))
}

func message(frames ...string) []byte {
	var b [][]byte
	for _, f := range frames {
		b = append(b, []byte(f))
	}
	return wire.AppendMessage(nil, b...)
}

// want reads exactly that from the connection.
func (r *raw) want(s string) {
	r.t.Helper()
	got := make([]byte, len(s))
	n, err := io.ReadFull(r, got)
	if string(got[:n]) != s {
		r.t.Fatalf("the peer got %q, %v, want %q", got[:n], err, s)
	}
}

// wantNothing waits for d, in which nothing may come.
func (r *raw) wantNothing(d time.Duration) {
	r.t.Helper()
	_ = r.SetReadDeadline(time.Now().Add(d))
	defer func() { _ = r.SetReadDeadline(time.Time{}) }()
	var b [64]byte
	if n, err := r.Read(b[:]); n > 0 || !err.(net.Error).Timeout() {
		r.t.Fatalf("the peer got %q, %v, want nothing", b[:n], err)
	}
}

// pair connects two of ours.
func pair(t *testing.T, a Type, ao Options, b Type, bo Options) (*Conn, *Conn) {
	t.Helper()
	an, bn := zmtptest.Pipe()
	type made struct {
		c   *Conn
		err error
	}
	other := make(chan made, 1)
	go func() {
		c, err := New(context.Background(), bn, b, bo)
		other <- made{c, err}
	}()
	ac, err := New(t.Context(), an, a, ao)
	o := <-other
	if err != nil || o.err != nil {
		t.Fatalf("%v, %v", err, o.err)
	}
	t.Cleanup(func() { _ = ac.Close(); _ = o.c.Close() })
	return ac, o.c
}

// texts are a message's frames.
func texts(m *Message) []string {
	var s []string
	for _, f := range m.Frames {
		s = append(s, string(f))
	}
	return s
}
