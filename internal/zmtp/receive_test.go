package zmtp

import (
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/script"
	"github.com/perigee-llm/perigee/internal/zmtp/wire"
)

func wantMessage(t *testing.T, c *Conn, m *Message, frames ...string) {
	t.Helper()
	if err := c.Receive(m); err != nil || !slices.Equal(texts(m), frames) {
		t.Fatalf("got %.60q, %v, want %.60q", texts(m), err, frames)
	}
}

// wantBroken expects the connection's end, and that it stays.
func wantBroken(t *testing.T, c *Conn, cause error) {
	t.Helper()
	var m Message
	for range 2 {
		err := c.Receive(&m)
		if broken, ok := errors.AsType[*BrokenError](err); !ok || broken.Err != cause || broken.Addr != "b" {
			t.Fatalf("%v, want %v", err, cause)
		}
	}
}

func TestSilentPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := subscribed(t, 1, Options{})
		began := time.Now()
		go func() {
			r.want(string(wire.AppendPing(nil)))
			if d := time.Since(began); d != 500*time.Millisecond {
				t.Errorf("asked after %v", d)
			}
			r.send(wire.AppendCommand(nil, wire.Pong, nil)) // half a second later it is asked again
			r.want(string(wire.AppendPing(nil)))
		}()
		wantBroken(t, c, ErrSilent)
		if d := time.Since(began); d != 2*time.Second+lastLook {
			t.Errorf("silent after %v", d)
		}
	})
}

// TestGoneNetwork loses what both sides send.
func TestGoneNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := subscribed(t, 1, Options{})
		r.message("one")
		var m Message
		wantMessage(t, c, &m, "one")
		r.Silence()
		began := time.Now()
		wantBroken(t, c, ErrSilent)
		if d := time.Since(began); d > 2*time.Second {
			t.Errorf("noticed after %v", d)
		}
	})
}

func TestBusyPeerIsNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := subscribed(t, 1, Options{})
		go func() {
			for range 10 {
				time.Sleep(400 * time.Millisecond)
				r.message("x")
			}
			_ = c.Close()
		}()
		var m Message
		for c.Receive(&m) == nil {
		}
		if n, err := r.Read(make([]byte, 10)); n > 0 || err != io.EOF {
			t.Errorf("it was sent something: %v", err)
		}
	})
}

// TestOldPeerIsNotAsked: a peer of version 3.0 need not know PING.
func TestOldPeerIsNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := subscribed(t, 0, Options{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			var m Message
			_ = c.Receive(&m)
		}()
		r.wantNothing(time.Hour)
		r.message("x")
		<-done
	})
}

func TestPingIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := subscribed(t, 1, Options{})
		r.send(wire.AppendCommand(nil, wire.Ping, []byte("\x00\x14context")))
		r.send(wire.AppendCommand(nil, "NEW", []byte("nobody knows it")))
		r.send(wire.AppendCommand(nil, wire.Subscribe, []byte("not for a SUB")))
		r.message("x", "y")
		var m Message
		wantMessage(t, c, &m, "x", "y")
		r.want(string(wire.AppendCommand(nil, wire.Pong, []byte("context"))))
		r.send(wire.AppendCommand(nil, wire.Ping, []byte{0}))
		wantBroken(t, c, wire.ErrCommand)
	})
}

// lateConn is a connection whose reads run out of time though something is there: what a process sees that stood still.
type lateConn struct {
	net.Conn
	late int
}

func (c *lateConn) Read(b []byte) (int, error) {
	if c.late > 0 {
		c.late--
		return 0, os.ErrDeadlineExceeded
	}
	return c.Conn.Read(b)
}

// goneConn is a connection that the kernel has given up, as it does after userTimeout.
type goneConn struct{ net.Conn }

func (c goneConn) Read([]byte) (int, error) {
	return 0, &net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ETIMEDOUT)}
}

// TestKernelGivesUp: ETIMEDOUT calls itself a timeout, and is none of ours.
func TestKernelGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := subscribed(t, 0, Options{})
		c.nc = goneConn{c.nc}
		if err := c.Receive(new(Message)); !errors.Is(err, syscall.ETIMEDOUT) {
			t.Error(err)
		}
	})
}

func TestLastLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := subscribed(t, 1, Options{})
		r.message("it was there")
		late := &lateConn{c.nc, 2} // for the PING, and for its answer
		c.nc = late
		var m Message
		wantMessage(t, c, &m, "it was there")
		late.late = 3
		wantBroken(t, c, ErrSilent)
	})
}

func TestOversize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := subscribed(t, 1, Options{MaxFrame: 100, MaxMessage: 120, MaxFrames: 4})
		long, fits := strings.Repeat("x", 101), strings.Repeat("x", 100)
		var m Message
		for _, x := range []struct {
			frames []string
			have   int // frames that are there, -1 for a message that fits
			size   uint64
		}{
			{[]string{"kv", "seq", long}, 2, 106},
			{[]string{"kv", "seq", fits}, -1, 0},
			{[]string{fits, fits[:20]}, -1, 0},
			{[]string{fits, fits[:21]}, 1, 121},
			{[]string{"kv", "seq", long, "after it"}, 2, 114},
			{[]string{strings.Repeat("x", 100_000)}, 0, 100_000},
			{[]string{"1", "2", "3", "4"}, -1, 0},
			{[]string{"1", "2", "3", "4", "5"}, 4, 5},
			{[]string{"", "", "", "", "", ""}, 4, 0},
			{[]string{"last"}, -1, 0},
		} {
			go r.message(x.frames...)
			if x.have < 0 {
				wantMessage(t, c, &m, x.frames...)
				continue
			}
			err := c.Receive(&m)
			over, ok := errors.AsType[*OversizeError](err)
			if !ok || *over != (OversizeError{x.size, len(x.frames)}) || !slices.Equal(texts(&m), x.frames[:x.have]) {
				t.Errorf("%.40q: %.40q, %v", x.frames, texts(&m), err)
			}
			synctest.Wait()
		}
	})
}

// TestAbuse: what is skipped for a peer has an end, whatever it claims.
func TestAbuse(t *testing.T) {
	for name, in := range map[string]string{
		"a length that lies":      "\x02\x7f\xff\xff\xff\xff\xff\xff\xff",
		"many lengths":            strings.Repeat("\x03\x00\x00\x00\x00\x00\x01\x00\x00"+strings.Repeat("x", 1<<16), 20),
		"frames without end":      strings.Repeat("\x01\x00", 600_000),
		"a command without end":   "\x06\x00\x00\x00\x00\x01\x00\x00\x00",
		"a command that is large": "\x06\x00\x00\x00\x00\x00\x00\x20\x01",
	} {
		synctest.Test(t, func(t *testing.T) {
			c, r := subscribed(t, 1, Options{MaxMessage: 1000, MaxSkip: 1 << 19})
			go func() { _, _ = r.Write([]byte(in)) }()
			err := c.Receive(new(Message))
			if broken, ok := errors.AsType[*BrokenError](err); !ok || broken.Err != ErrAbuse {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

// TestClaimedLengthCostsNothing: memory is taken as bytes come.
func TestClaimedLengthCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := subscribed(t, 1, Options{})
		r.send([]byte("\x02\x00\x00\x00\x00\x00\xff\xff\xff" + strings.Repeat("x", 1000)))
		_ = r.Close()
		var m Message
		if err := c.Receive(&m); !errors.Is(err, io.EOF) || len(m.Frames) != 0 {
			t.Fatal(err)
		}
		if cap(m.buf) > 2*minReadBuffer {
			t.Errorf("%d bytes taken for 1000 that came", cap(m.buf))
		}
	})
}

func TestMessageTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := subscribed(t, 1, Options{MessageTime: 10 * time.Second})
		began := time.Now()
		var peer sync.WaitGroup
		defer peer.Wait()
		peer.Go(func() {
			for _, b := range message("kv", strings.Repeat("x", 200)) { // never silent, and never done
				if _, err := r.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(300 * time.Millisecond)
			}
		})
		wantBroken(t, c, ErrStalled)
		if d := time.Since(began); d != 10*time.Second {
			t.Errorf("after %v", d)
		}
	})
}

func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := newRaw(t, Dealer, Router, 1, Options{Heartbeat: -1})
		var m Message
		wait := func(d time.Duration) error {
			t.Helper()
			began := time.Now()
			c.SetDeadline(began.Add(d))
			err := c.Receive(&m)
			if err != nil && time.Since(began) != d {
				t.Errorf("after %v, want %v", time.Since(began), d)
			}
			return err
		}
		if err := wait(3 * time.Second); err != os.ErrDeadlineExceeded {
			t.Error(err)
		}
		whole := string(message("one", "two"))
		r.send([]byte(whole[:1])) // a header that is not whole has cost nothing yet
		if err := wait(time.Second); err != os.ErrDeadlineExceeded {
			t.Error(err)
		}
		r.send([]byte(whole[1:]))
		if err := wait(time.Second); err != nil || !slices.Equal(texts(&m), []string{"one", "two"}) {
			t.Errorf("%q, %v", texts(&m), err)
		}
		r.send([]byte(whole[:3]))
		err := wait(time.Second)
		if broken, ok := errors.AsType[*BrokenError](err); !ok || broken.Err != os.ErrDeadlineExceeded {
			t.Error(err)
		}
	})
}

// TestDeadlineDuringPing: the peer keeps its time to answer when the caller's deadline comes between.
func TestDeadlineDuringPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := subscribed(t, 1, Options{})
		var m Message
		c.SetDeadline(time.Now().Add(600 * time.Millisecond))
		if err := c.Receive(&m); err != os.ErrDeadlineExceeded {
			t.Fatal(err)
		}
		r.want(string(wire.AppendPing(nil)))
		c.SetDeadline(time.Time{})
		wantBroken(t, c, ErrSilent)
	})
}

func TestEnds(t *testing.T) {
	for name, x := range map[string]struct {
		do   func(c *Conn, r *raw)
		want error
	}{
		"closed here":             {func(c *Conn, r *raw) { _ = c.Close() }, ErrClosed},
		"closed there":            {func(c *Conn, r *raw) { _ = r.Close() }, io.EOF},
		"closed there, twice":     {func(c *Conn, r *raw) { _ = r.Close(); _ = r.Close() }, io.EOF},
		"cut inside of a message": {func(c *Conn, r *raw) { r.send([]byte("\x01\x05abc")); _ = r.Close() }, io.EOF},
		"no protocol any more":    {func(c *Conn, r *raw) { r.send([]byte("\xf1\x05abc")) }, wire.ErrFrame},
	} {
		synctest.Test(t, func(t *testing.T) {
			c, r := subscribed(t, 1, Options{})
			ended := make(chan error)
			go func() { ended <- c.Receive(new(Message)) }()
			synctest.Wait()
			x.do(c, r)
			if err := <-ended; !errors.Is(err, x.want) {
				t.Errorf("%s: %v, want %v", name, err, x.want)
			}
			wantBroken(t, c, x.want)
		})
	}
}

func TestRejectedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := subscribed(t, 1, Options{})
		r.send(wire.AppendFailure(nil, "changed my mind"))
		err := c.Receive(new(Message))
		if rejected, ok := errors.AsType[*RejectedError](err); !ok || rejected.Reason != "changed my mind" {
			t.Error(err)
		}
	})
}

func TestSendStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newRaw(t, Dealer, Router, 1, Options{WriteTime: 2 * time.Second})
		began := time.Now()
		err := c.Send(make([]byte, 1<<20))
		if broken, ok := errors.AsType[*BrokenError](err); !ok || broken.Err != ErrStalled || time.Since(began) != 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		s, _ := subscribed(t, 1, Options{})
		if err := s.Send(nil); err != ErrNotSending {
			t.Error(err)
		}
	})
}

func TestClone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := subscribed(t, 1, Options{})
		r.message("a", "", "bc")
		r.message("other")
		var m Message
		wantMessage(t, c, &m, "a", "", "bc")
		if c.Buffered() == 0 {
			t.Error("the second message came with the first, and is not buffered")
		}
		kept := m.Clone()
		_ = append(m.Frames[0], "zzz"...) // must not run into the next
		if got := texts(&m); !slices.Equal(got, []string{"a", "", "bc"}) || m.Size() != 3 {
			t.Errorf("%q", got)
		}
		wantMessage(t, c, &m, "other")
		if got := texts(kept); !slices.Equal(got, []string{"a", "", "bc"}) {
			t.Errorf("the copy is now %q", got)
		}
		if c.Buffered() != 0 {
			t.Errorf("%d bytes are buffered", c.Buffered())
		}
	})
}

// TestReceiveRandom sends messages of random frames in random pieces, with commands between, under random bounds, and holds what is
// received against a naive reading of the same.
func TestReceiveRandom(t *testing.T) {
	rng := script.Rand(t)
	for range 60 {
		synctest.Test(t, func(t *testing.T) {
			o := Options{MaxMessage: 1 + rng.IntN(60_000), MaxFrame: 1 + rng.IntN(50_000), MaxFrames: 1 + rng.IntN(6)}
			c, r := subscribed(t, 1, o)
			var stream []byte
			var sent [][]string
			for range 30 {
				frames := make([]string, 1+rng.IntN(7))
				for i := range frames {
					n := rng.IntN(20)
					if rng.IntN(4) == 0 {
						n = rng.IntN(70_000)
					}
					frames[i] = strings.Repeat(string('a'+rune(rng.IntN(26))), n)
				}
				stream = append(stream, message(frames...)...)
				if rng.IntN(3) == 0 {
					stream = wire.AppendCommand(stream, wire.Pong, nil)
				}
				sent = append(sent, frames)
			}
			pieces := 1 + rng.IntN(40_000)
			done := make(chan struct{})
			go func() {
				defer close(done)
				for len(stream) > 0 {
					n := min(len(stream), 1+rng.IntN(pieces))
					if _, err := r.Write(stream[:n]); err != nil {
						t.Error(err)
						return
					}
					stream = stream[n:]
					time.Sleep(time.Duration(n % 3))
				}
			}()
			var m Message
			for i, frames := range sent {
				err := c.Receive(&m)
				want, fits := naive(frames, o)
				if _, over := errors.AsType[*OversizeError](err); over == fits || !over && err != nil || !slices.Equal(texts(&m), want) {
					t.Fatalf("message %d: %d frames, %v; want %d frames, fits %t", i, len(m.Frames), err, len(want), fits)
				}
			}
			<-done
		})
	}
}

// naive returns the frames that a receiver under the bounds gets, and whether these are all.
func naive(frames []string, o Options) ([]string, bool) {
	size := 0
	for i, f := range frames {
		size += len(f)
		if i >= o.MaxFrames || len(f) > o.MaxFrame || size > o.MaxMessage {
			return frames[:i], false
		}
	}
	return frames, true
}

// FuzzPeer lets a peer send anything, and hang up.
func FuzzPeer(f *testing.F) {
	f.Add(append(hello(Pub, 1), message("kv", "seq", "payload")...))
	f.Add(append(hello(Pub, 0), "\x02\x00\x00\x00\x00\x00\x00\xff\xff"...))
	f.Add(wire.AppendPing(append(hello(Pub, 1), message(strings.Repeat("x", 300), "")...)))
	f.Fuzz(func(t *testing.T, in []byte) {
		synctest.Test(t, func(t *testing.T) {
			if len(in) > 60_000 {
				return // must fit into the pipe
			}
			c, err := New(t.Context(), &endless{in: in}, Sub, Options{MaxMessage: 20_000, MaxSkip: 1 << 20})
			if err != nil {
				return
			}
			var m Message
			for {
				err := c.Receive(&m)
				if m.Size() > 20_000 || cap(m.buf) > 3*20_000+minReadBuffer {
					t.Fatalf("%d bytes in %d", m.Size(), cap(m.buf))
				}
				if _, broken := errors.AsType[*BrokenError](err); broken {
					return
				}
			}
		})
	})
}

// endless is a connection that takes anything, and gives its input and then io.EOF.
type endless struct {
	net.Conn
	in []byte
}

func (e *endless) Read(b []byte) (int, error) {
	if len(e.in) == 0 {
		return 0, io.EOF
	}
	n := copy(b, e.in)
	e.in = e.in[n:]
	return n, nil
}
func (e *endless) Write(b []byte) (int, error)      { return len(b), nil }
func (e *endless) Close() error                     { return nil }
func (e *endless) RemoteAddr() net.Addr             { return nil }
func (e *endless) SetReadDeadline(time.Time) error  { return nil }
func (e *endless) SetWriteDeadline(time.Time) error { return nil }
