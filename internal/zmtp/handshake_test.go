package zmtp

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/zmtp/wire"
	"github.com/perigee-llm/perigee/internal/zmtp/zmtptest"
)

// TestHandshakeIsCut hangs up after each byte of the handshake.
func TestHandshakeIsCut(t *testing.T) {
	whole := hello(Pub, 1)
	for n := range whole {
		synctest.Test(t, func(t *testing.T) {
			a, b := zmtptest.Pipe()
			b.CutAfter(n)
			_, _ = b.Write(whole) // fails where it is cut
			c, err := New(t.Context(), a, Sub, Options{})
			failed, ok := errors.AsType[*HandshakeError](err)
			if c != nil || !ok || failed.Err != io.EOF || failed.Permanent() || failed.Addr != "b" {
				t.Errorf("after %d bytes: %v", n, err)
			}
			_ = b.Close()
		})
	}
}

// TestHandshakeStalls says nothing more after each byte of the handshake.
func TestHandshakeStalls(t *testing.T) {
	whole := hello(Pub, 1)
	for n := range whole {
		synctest.Test(t, func(t *testing.T) {
			a, b := zmtptest.Pipe()
			_, _ = b.Write(whole[:n])
			began := time.Now()
			_, err := New(t.Context(), a, Sub, Options{Handshake: 3 * time.Second})
			failed, ok := errors.AsType[*HandshakeError](err)
			if !ok || failed.Err != ErrStalled || failed.Permanent() || time.Since(began) != 3*time.Second {
				t.Errorf("after %d bytes: %v, after %v", n, err, time.Since(began))
			}
			_ = b.Close()
		})
	}
}

// TestHandshakeDribbles sends each byte alone, within the time for all of them and beyond it.
func TestHandshakeDribbles(t *testing.T) {
	whole := append(hello(Pub, 1), message("first")...)
	for pause, want := range map[time.Duration]error{10 * time.Millisecond: nil, 100 * time.Millisecond: ErrStalled} {
		synctest.Test(t, func(t *testing.T) {
			a, b := zmtptest.Pipe()
			var peer sync.WaitGroup
			defer peer.Wait()
			peer.Go(func() {
				for i := range whole {
					time.Sleep(pause)
					if _, err := b.Write(whole[i : i+1]); err != nil {
						return
					}
				}
			})
			c, err := New(t.Context(), a, Sub, Options{Handshake: 5 * time.Second})
			if !errors.Is(err, want) {
				t.Fatalf("a byte each %v: %v, want %v", pause, err, want)
			}
			if c == nil {
				return
			}
			var m Message
			if err := c.Receive(&m); err != nil || string(m.Frames[0]) != "first" {
				t.Errorf("%q, %v", texts(&m), err)
			}
			_ = c.Close()
		})
	}
}

func TestHandshakeFaults(t *testing.T) {
	greeting := string(wire.AppendGreeting(nil))
	for _, c := range []struct {
		name, in  string
		want      error
		permanent bool
	}{
		{"HTTP", "HTTP/1.1 400 Bad Request\r\n\r\n", wire.ErrNotZMTP, true},
		{"version 2", "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x01", wire.ErrVersion, true},
		{"another mechanism", greeting[:12] + "CURVE" + greeting[17:], wire.ErrMechanism, true},
		{"a message for READY", greeting + string(message("x")), wire.ErrCommand, true},
		{"another command", greeting + string(wire.AppendPing(nil)), wire.ErrCommand, true},
		{"a command without a name", greeting + "\x04\x01\x00", wire.ErrCommand, true},
		{"flags that are not there", greeting + "\xf0\x01\x00", wire.ErrFrame, true},
		{"no type", greeting + string(wire.AppendCommand(nil, wire.Ready, nil)), wire.ErrMetadata, true},
		{"an endless command", greeting + "\x06\x7f\xff\xff\xff\xff\xff\xff\xff", ErrAbuse, false},
		{"another type", string(hello(Dealer, 1)), &IncompatibleError{Sub, Dealer}, true},
		{"refused", greeting + string(wire.AppendFailure(nil, "not you")), &RejectedError{"not you"}, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			a, b := zmtptest.Pipe()
			_, _ = b.Write([]byte(c.in))
			_, err := New(t.Context(), a, Sub, Options{})
			failed, ok := errors.AsType[*HandshakeError](err)
			if !ok || failed.Err.Error() != c.want.Error() || failed.Permanent() != c.permanent {
				t.Errorf("%s: %v, want %v", c.name, err, c.want)
			}
			if _, err := b.Read(make([]byte, 1000)); err == nil {
				_, err = b.Read(make([]byte, 1000))
				if err != io.EOF {
					t.Errorf("%s: the connection is still there: %v", c.name, err)
				}
			}
		})
	}
}

func TestHandshakeEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := zmtptest.Pipe()
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(cause) })
		_, err := New(ctx, a, Dealer, Options{})
		if failed, ok := errors.AsType[*HandshakeError](err); !ok || failed.Err != cause {
			t.Error(err)
		}
		_ = b.Close()
	})
}

func TestPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, r := pair(t, Dealer, Options{Identity: "gw-1"}, Router, Options{})
		if got, want := r.Peer(), (Peer{Addr: "a", Type: Dealer, Identity: "gw-1", Minor: 1}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		if got, want := d.Peer(), (Peer{Addr: "b", Type: Router, Minor: 1}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	})
}

// TestSubscribes in the form of the version that the peer speaks.
func TestSubscribes(t *testing.T) {
	for minor, want := range map[byte]string{
		0: "\x00\x03\x01kv\x00\x05\x01load",
		1: "\x04\x0c\x09SUBSCRIBEkv\x04\x0e\x09SUBSCRIBEload",
	} {
		synctest.Test(t, func(t *testing.T) {
			_, r := newRaw(t, Sub, Pub, minor, Options{Topics: []string{"kv", "load"}})
			r.want(want)
		})
	}
}
