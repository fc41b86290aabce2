//go:build !race

package zmtp

import (
	"testing"

	"github.com/perigee-llm/perigee/internal/zmtp/wire"
)

// TestAllocations: a message received costs none, nor does an answer sent.
func TestAllocations(t *testing.T) {
	stream := wire.AppendMessage(nil, []byte("kv@10.0.0.1@m"), make([]byte, 8), make([]byte, 300))
	c := &Conn{nc: &loop{stream: stream}, typ: Sub, opt: defaults(t, Options{}), buf: make([]byte, minReadBuffer)}
	c.peer.Minor = 1
	var m Message
	receive := func() {
		if err := c.Receive(&m); err != nil || len(m.Frames) != 3 {
			t.Fatal(err)
		}
	}
	receive()
	if n := testing.AllocsPerRun(1000, receive); n > 0 {
		t.Errorf("Receive: %v allocations, want 0", n)
	}

	d := &Conn{nc: &loop{stream: stream}, typ: Dealer, opt: defaults(t, Options{})}
	seq := make([]byte, 8)
	send := func() {
		if err := d.Send(nil, seq); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(1000, send); n > 0 {
		t.Errorf("Send: %v allocations, want 0", n)
	}

	p, err := NewPublisher(PublisherOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	nobody := func() { p.Publish(seq, seq, seq) }
	if n := testing.AllocsPerRun(1000, nobody); n > 0 {
		t.Errorf("Publish to nobody: %v allocations, want 0", n)
	}
}
