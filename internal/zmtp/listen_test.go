package zmtp

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/zmtp/zmtptest"
)

// serve runs a listener in a bubble until stop is called, which waits for it.
func serve(t *testing.T, ln net.Listener, typ Type, o Options, handle func(*Conn)) (stop func()) {
	t.Helper()
	l, err := NewListener(ln, typ, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- l.Serve(ctx, handle) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	}
}

// TestFanIn has several publishers connect to one SUB, as engines do whose endpoint names an address.
func TestFanIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var network zmtptest.Network
		var mu sync.Mutex
		var got []string
		stop := serve(t, network.Listen("gw:5557"), Sub, Options{Topics: []string{"kv"}}, func(c *Conn) {
			var m Message
			for c.Receive(&m) == nil {
				mu.Lock()
				got = append(got, texts(&m)...)
				mu.Unlock()
			}
		})
		for _, name := range []string{"a", "b", "c"} {
			p, err := NewPublisher(PublisherOptions{Options: Options{DialContext: network.DialContext}})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			if err := p.Connect("tcp://gw:5557"); err != nil {
				t.Fatal(err)
			}
			if err := p.WaitSubscribed(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			p.Publish([]byte("kv from " + name))
			p.Publish([]byte("load"))
			synctest.Wait()
		}
		stop()
		if want := []string{"kv from a", "kv from b", "kv from c"}; !slices.Equal(got, want) {
			t.Errorf("%q", got)
		}
	})
}

// TestPublisherDialsAgain: who connects, connects again.
func TestPublisherDialsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var network zmtptest.Network
		p, err := NewPublisher(PublisherOptions{Options: Options{DialContext: network.DialContext}})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if err := p.Connect("tcp://gw:1"); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			got := make(chan string, 1)
			stop := serve(t, network.Listen("gw:1"), Sub, Options{}, func(c *Conn) {
				var m Message
				if c.Receive(&m) == nil {
					got <- texts(&m)[0]
				}
			})
			if err := p.WaitSubscribed(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			p.Publish([]byte("x"))
			if s := <-got; s != "x" {
				t.Error(s)
			}
			stop()
			synctest.Wait()
			if n := p.Stats().Subscribers; n != 0 {
				t.Errorf("%d subscribers are left", n)
			}
		}
	})
}

func TestMaxPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var network zmtptest.Network
		var mu sync.Mutex
		var refused []error
		o := Options{MaxPeers: 2, Refused: func(addr string, err error) {
			mu.Lock()
			defer mu.Unlock()
			refused = append(refused, err)
		}}
		wantRefused := func(want ...error) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.EqualFunc(refused, want, errors.Is) {
				t.Errorf("refused: %v, want %v", refused, want)
			}
		}
		stop := serve(t, network.Listen("r:1"), Router, o, func(c *Conn) { _ = c.Receive(new(Message)) })
		defer stop()
		dial := func() (*Conn, error) {
			return Dial(t.Context(), Dealer, "tcp://r:1", Options{DialContext: network.DialContext})
		}
		first, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		idle, err := network.DialContext(t.Context(), "tcp", "r:1") // does not even shake hands
		if err != nil {
			t.Fatal(err)
		}
		if _, err := dial(); err == nil {
			t.Error("a third peer")
		}
		wantRefused(ErrTooManyPeers)
		time.Sleep(5 * time.Second)
		wantRefused(ErrTooManyPeers, ErrStalled)
		again, err := dial()
		if err != nil {
			t.Error(err)
		}
		_, _, _ = first.Close(), again.Close(), idle.Close()
	})
}

// TestServeEnds with peers in each state: shaking hands, waiting, sending.
func TestServeEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var network zmtptest.Network
		var mu sync.Mutex
		var ends []error
		stop := serve(t, network.Listen("r:1"), Router, Options{}, func(c *Conn) {
			var m Message
			err := c.Receive(&m)
			for err == nil {
				err = c.Send([]byte("answers without end"))
			}
			mu.Lock()
			ends = append(ends, err)
			mu.Unlock()
		})
		_, _ = network.DialContext(t.Context(), "tcp", "r:1")
		for _, question := range []string{"", "?"} {
			c, err := Dial(t.Context(), Dealer, "tcp://r:1", Options{DialContext: network.DialContext})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if question != "" {
				if err := c.Send([]byte(question)); err != nil {
					t.Fatal(err)
				}
			}
		}
		synctest.Wait()
		stop()
		if len(ends) != 2 {
			t.Errorf("%v", ends)
		}
	})
}

func TestRealSockets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for _, endpoint := range []string{"tcp://127.0.0.1:*", "tcp://*:0", "ipc://" + path, "ipc://" + path} {
		l, err := Listen(Router, endpoint, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if endpoint[:3] == "ipc" {
			l.ln.(*net.UnixListener).SetUnlinkOnClose(false) // as a process that was killed: the next Listen must clear it away
			if _, err := Listen(Router, endpoint, Options{}); !errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("a second listener: %v", err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
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
			t.Fatal(err)
		}
		large := string(make([]byte, 3<<20))
		if err := c.Send([]byte("a"), nil, []byte(large)); err != nil {
			t.Fatal(err)
		}
		var m Message
		wantMessage(t, c, &m, "a", "", large)
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := c.Receive(&m); err == nil {
			t.Error("the listener is gone, and its connection is not")
		}
		_ = c.Close()
	}
}

func TestDialErrors(t *testing.T) {
	ctx := t.Context()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	endpoint := "tcp://" + l.Addr().String()
	_ = l.Close()
	_, err = Dial(ctx, Sub, endpoint, Options{})
	if _, ok := errors.AsType[*DialError](err); !ok || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody listens: %v", err)
	}
	if _, err := Dial(ctx, Sub, endpoint, Options{MaxFrames: -1, ReadBuffer: 5, Identity: "\x00x", MaxSkip: -1}); err == nil {
		t.Error("options that make no sense")
	}
	for _, endpoint := range []string{"", "tcp://", "tcp://host", "tcp://*:5557", "tcp://host:*", "udp://h:1", "ipc://", "host:1", "tcp://[::1:5"} {
		_, err := Dial(ctx, Sub, endpoint, Options{})
		if _, ok := errors.AsType[*EndpointError](err); !ok {
			t.Errorf("%q: %v", endpoint, err)
		}
	}
	for endpoint, want := range map[string]string{"tcp://[::1]:5": "[::1]:5", "tcp://h:5": "h:5", "ipc://@abstract": "@abstract"} {
		if _, got, err := split(endpoint, false); got != want || err != nil {
			t.Errorf("%s: %s, %v", endpoint, got, err)
		}
	}
	for endpoint, want := range map[string]string{"tcp://*:5": ":5", "tcp://[::]:*": "[::]:0"} {
		if _, got, err := split(endpoint, true); got != want || err != nil {
			t.Errorf("%s: %s, %v", endpoint, got, err)
		}
	}
}
