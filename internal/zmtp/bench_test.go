package zmtp

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/zmtp/wire"
)

// loop is a connection on which the same message comes for ever, and to which anything can be written.
type loop struct {
	net.Conn
	stream []byte
	at     int
}

func (l *loop) Read(b []byte) (int, error) {
	n := 0
	for n < len(b) {
		k := copy(b[n:], l.stream[l.at:])
		n += k
		l.at = (l.at + k) % len(l.stream)
	}
	return n, nil
}
func (l *loop) Write(b []byte) (int, error)      { return len(b), nil }
func (l *loop) Close() error                     { return nil }
func (l *loop) SetReadDeadline(time.Time) error  { return nil }
func (l *loop) SetWriteDeadline(time.Time) error { return nil }

func defaults(t testing.TB, o Options) Options {
	o, err := o.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// BenchmarkReceive is the cost of a message without a network.
func BenchmarkReceive(b *testing.B) {
	for _, size := range []int{300, 4 << 10, 256 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			stream := wire.AppendMessage(nil, []byte("kv@10.0.0.1@m"), make([]byte, 8), make([]byte, size))
			c := &Conn{nc: &loop{stream: stream}, typ: Sub, opt: defaults(b, Options{}), buf: make([]byte, minReadBuffer)}
			var m Message
			b.SetBytes(int64(len(stream)))
			b.ReportAllocs()
			for b.Loop() {
				if err := c.Receive(&m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkPublish is a message from Publish to Receive, over TCP on this machine.
func BenchmarkPublish(b *testing.B) {
	for _, size := range []int{300, 4 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			p, err := NewPublisher(PublisherOptions{HighWater: 100_000})
			if err != nil {
				b.Fatal(err)
			}
			defer p.Close()
			endpoint, err := p.Listen("tcp://127.0.0.1:*")
			if err != nil {
				b.Fatal(err)
			}
			c, err := Dial(b.Context(), Sub, endpoint, Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			if err := p.WaitSubscribed(b.Context(), 1); err != nil {
				b.Fatal(err)
			}
			body := make([]byte, size)
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				for {
					select {
					case <-stop:
						return
					default:
						p.Publish([]byte("kv@10.0.0.1@m"), body[:8], body)
					}
				}
			}()
			var m Message
			b.ReportAllocs()
			for b.Loop() {
				if err := c.Receive(&m); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
			close(stop)
			<-stopped
		})
	}
}

// BenchmarkRoundTrip is a question and its answer over TCP on this machine.
func BenchmarkRoundTrip(b *testing.B) {
	l, err := Listen(Router, "tcp://127.0.0.1:*", Options{})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	served := make(chan error)
	go func() {
		served <- l.Serve(ctx, func(c *Conn) {
			var m Message
			for c.Receive(&m) == nil {
				_ = c.Send(m.Frames...)
			}
		})
	}()
	c, err := Dial(ctx, Dealer, l.Endpoint(), Options{})
	if err != nil {
		b.Fatal(err)
	}
	seq := make([]byte, 8)
	var m Message
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Send(nil, seq); err != nil {
			b.Fatal(err)
		}
		if err := c.Receive(&m); err != nil {
			b.Fatal(err)
		}
	}
	_ = c.Close()
	cancel()
	<-served
}
