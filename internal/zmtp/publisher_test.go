package zmtp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/script"
	"github.com/perigee-llm/perigee/internal/zmtp/wire"
	"github.com/perigee-llm/perigee/internal/zmtp/zmtptest"
)

// publish returns a publisher that listens at p:1.
func publish(t *testing.T, n *zmtptest.Network, o PublisherOptions) *Publisher {
	t.Helper()
	p, err := NewPublisher(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.ListenOn(n.Listen("p:1")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func TestTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n zmtptest.Network
		p := publish(t, &n, PublisherOptions{})
		var got [3][]string
		for i, topics := range [][]string{{"kv@a", "load"}, {}, nil} {
			c, err := Dial(t.Context(), Sub, "tcp://p:1", Options{Topics: topics, DialContext: n.DialContext})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			go func() {
				var m Message
				for c.Receive(&m) == nil {
					got[i] = append(got[i], texts(&m)...)
				}
			}()
		}
		if err := p.WaitSubscribed(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for topic, want := range map[string]int{"kv@a": 2, "kv@a@m": 2, "kv@b": 1, "kv": 1, "": 1, "load": 2} {
			if queued, dropped := p.Publish([]byte(topic)); queued != want || dropped != 0 {
				t.Errorf("%q: %d queued, %d dropped", topic, queued, dropped)
			}
		}
		synctest.Wait()
		slices.Sort(got[0])
		if !slices.Equal(got[0], []string{"kv@a", "kv@a@m", "load"}) || got[1] != nil || len(got[2]) != 6 {
			t.Errorf("%q", got)
		}
		if s := p.Stats(); s != (PublisherStats{Subscribers: 3, Published: 6, Queued: 9}) {
			t.Errorf("%+v", s)
		}
	})
}

// TestFullQueue: a subscriber that does not read loses messages, which are counted, and nobody waits for it.
func TestFullQueue(t *testing.T) {
	for name, o := range map[string]PublisherOptions{
		"messages": {HighWater: 10},
		"bytes":    {HighWaterBytes: 10 * 1024},
	} {
		synctest.Test(t, func(t *testing.T) {
			var n zmtptest.Network
			p := publish(t, &n, o)
			c, err := Dial(t.Context(), Sub, "tcp://p:1", Options{DialContext: n.DialContext})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := p.WaitSubscribed(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			queued, dropped := 0, 0
			for i := range 200 {
				q, d := p.Publish(binary.BigEndian.AppendUint64(nil, uint64(i)), make([]byte, 1000))
				queued, dropped = queued+q, dropped+d
				synctest.Wait()
			}
			s := p.Stats()
			if queued+dropped != 200 || dropped < 100 || dropped > 130 || s.Queued != uint64(queued) || s.Dropped != uint64(dropped) {
				t.Errorf("%s: %d queued, %d dropped, %+v", name, queued, dropped, s)
			}
			var m Message
			last := -1
			for range queued {
				if err := c.Receive(&m); err != nil {
					t.Fatal(err)
				}
				seq := int(binary.BigEndian.Uint64(m.Frames[0]))
				if seq != last+1 {
					t.Errorf("%s: %d after %d", name, seq, last)
				}
				last = seq
			}
		})
	}
}

// TestSubscriberTakesNothing: it is let go after WriteTime, and the publisher closes meanwhile.
func TestSubscriberTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n zmtptest.Network
		p := publish(t, &n, PublisherOptions{Options: Options{WriteTime: 10 * time.Second}})
		for range 2 {
			c, err := Dial(t.Context(), Sub, "tcp://p:1", Options{DialContext: n.DialContext})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := p.WaitSubscribed(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				p.Publish(make([]byte, 100_000))
			}
			synctest.Wait()
			if p.Stats().Subscribers != 1 {
				t.Error("it is let go at once")
			}
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if p.Stats().Subscribers != 0 {
				t.Error("it is not let go")
			}
		}
	})
}

func TestCloseWhileSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n zmtptest.Network
		p := publish(t, &n, PublisherOptions{})
		c, err := Dial(t.Context(), Sub, "tcp://p:1", Options{DialContext: n.DialContext})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := p.WaitSubscribed(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		p.Publish(make([]byte, 1<<20))
		synctest.Wait()
		_ = p.Close()
		_ = p.Close()
		if err := p.Connect("tcp://x:1"); err != ErrClosed {
			t.Error(err)
		}
		if err := p.WaitSubscribed(context.Background(), 1); err != ErrClosed {
			t.Error(err)
		}
		if queued, _ := p.Publish([]byte("x")); queued != 0 {
			t.Error("queued for nobody")
		}
	})
}

// subscriberOf connects the test as a subscriber, byte by byte.
func subscriberOf(t *testing.T, p *Publisher, n *zmtptest.Network, minor byte) *raw {
	t.Helper()
	nc, err := n.DialContext(t.Context(), "tcp", "p:1")
	if err != nil {
		t.Fatal(err)
	}
	r := &raw{t, nc.(*zmtptest.Conn)}
	r.send(hello(Sub, minor))
	r.want(string(hello(Pub, 1)))
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// TestSubscriptions counts what is asked for, in both forms.
func TestSubscriptions(t *testing.T) {
	for minor := range 2 {
		synctest.Test(t, func(t *testing.T) {
			var n zmtptest.Network
			p := publish(t, &n, PublisherOptions{})
			r := subscriberOf(t, p, &n, byte(minor))
			step := func(b []byte, want int) {
				t.Helper()
				r.send(b)
				synctest.Wait()
				if queued, _ := p.Publish([]byte("kv@a"), nil); queued != want {
					t.Errorf("3.%d: queued for %d, want %d", minor, queued, want)
				}
				if want > 0 {
					r.want(string(message("kv@a", "")))
				}
			}
			ask := func(topic string, cancel bool) []byte { return wire.AppendSubscribe(nil, minor, topic, cancel) }
			step(nil, 0)
			step(ask("kv", true), 0) // cancels what was not asked for
			step(ask("kv", false), 1)
			step(ask("kv", false), 1)
			step(ask("kv", true), 1)
			step(ask("kv", true), 0)
			step(ask("", false), 1)
			step(ask("kw", true), 1)
			step(message("x", "no subscription"), 1)
			step(message("\x07neither"), 1)
			step(message(string(make([]byte, 100_000/2))), 1) // skipped
			step(ask("", true), 0)
		})
	}
}

func TestTooManyTopics(t *testing.T) {
	for name, topic := range map[string]func(i int) string{
		"topics": func(i int) string { return fmt.Sprint(i) },
		"bytes":  func(i int) string { return string(make([]byte, 7000+i)) },
		"counts": func(i int) string { return "kv" },
	} {
		synctest.Test(t, func(t *testing.T) {
			var n zmtptest.Network
			p := publish(t, &n, PublisherOptions{})
			r := subscriberOf(t, p, &n, 1)
			var err error
			i := 0
			for ; err == nil && i < 3000; i++ {
				_, err = r.Write(wire.AppendSubscribe(nil, 1, topic(i), false))
				synctest.Wait()
			}
			want := map[string]int{"topics": maxTopics, "bytes": 9, "counts": 2999}[name]
			if i != want+1 && i != want+2 {
				t.Errorf("%s: let go after %d, want %d", name, i, want)
			}
			if name == "counts" {
				return // one number, however large
			}
			if _, err := r.Read(make([]byte, 1)); err != io.EOF {
				t.Error(err)
			}
		})
	}
}

// TestOutbox holds the queue against a naive one.
func TestOutbox(t *testing.T) {
	rng := script.Rand(t)
	for range 100 {
		maxMessages, maxBytes := 1+rng.IntN(600), 1+rng.IntN(600_000)
		o := newOutbox(maxMessages, maxBytes)
		var queue, writing [][]byte
		bytes := func() (n int) {
			for _, b := range slices.Concat(queue, writing) {
				n += len(b)
			}
			return n
		}
		var got [][]byte
		for op := range 2000 {
			if rng.IntN(5) > 0 {
				b := make([]byte, rng.IntN(2000))
				held := len(queue) + len(writing)
				want := held < maxMessages && (held == 0 || bytes()+len(b) <= maxBytes)
				if o.put(b) != want {
					t.Fatalf("op %d: put is %t with %d of %d messages, %d of %d bytes", op, !want, held, maxMessages, bytes(), maxBytes)
				}
				if want {
					queue = append(queue, b)
				}
				continue
			}
			got = o.take(got[:0])
			if n := len(got); n > maxBatch || n > len(queue) || n == 0 && len(queue) > 0 {
				t.Fatalf("op %d: took %d of %d", op, n, len(queue))
			}
			for i := range got {
				if len(got[i]) > 0 && &got[i][0] != &queue[i][0] {
					t.Fatalf("op %d: another message at %d", op, i)
				}
			}
			writing, queue = slices.Clone(queue[:len(got)]), queue[len(got):]
		}
	}
}

func TestMaintain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var dialled, downs []time.Duration
		ctx, cancel := context.WithCancelCause(t.Context())
		enough := errors.New("enough")
		dial := func(context.Context) (*Conn, error) {
			dialled = append(dialled, time.Since(began).Round(time.Millisecond))
			switch len(dialled) {
			case 4, 8, 9:
				a, b := zmtptest.Pipe()
				_, _ = b.Write(hello(Pub, 1))
				return New(ctx, a, Sub, Options{})
			}
			return nil, &DialError{"x", io.EOF}
		}
		serve := func(c *Conn) error {
			switch len(dialled) {
			case 4: // breaks at once: the pauses go on growing
				return io.EOF
			case 8: // a good one, after which the pauses are short again
				time.Sleep(settled) // on the fake clock
				return c.Receive(new(Message))
			default:
				time.AfterFunc(time.Second, func() { cancel(enough) })
				return c.Receive(new(Message))
			}
		}
		down := func(error) { downs = append(downs, time.Since(began).Round(time.Millisecond)) }
		if err := Maintain(ctx, Backoff{}, dial, serve, down); err != enough {
			t.Error(err)
		}
		want := []time.Duration{0, 50, 150, 350, 750, 1550, 3150, 5150}
		for i := range want {
			want[i] *= time.Millisecond
		}
		if !slices.Equal(dialled[:8], want) || len(dialled) != 9 {
			t.Errorf("dialled at %v, want %v", dialled, want)
		}
		if lasted := downs[7] - dialled[7]; len(downs) != 8 || lasted < settled || dialled[8]-downs[7] != 50*time.Millisecond {
			t.Errorf("dialled at %v, down at %v", dialled, downs)
		}
	})
}

func TestBackoff(t *testing.T) {
	b := Backoff{Min: time.Second, Max: 3 * time.Second}
	for _, want := range []time.Duration{1, 2, 3, 3} {
		if got := b.Next(); got != want*time.Second {
			t.Errorf("%v, want %ds", got, want)
		}
	}
	b.Reset()
	if got := b.Next(); got != time.Second {
		t.Error(got)
	}
}
