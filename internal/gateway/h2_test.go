package gateway

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/perigee-llm/perigee/internal/telemetry"
)

// bareServer is net/http's without TLS, which would only be in the way.
type bareServer struct {
	*http.Server
	handlers *handlers
}

func (s *bareServer) Wait() { s.handlers.close() }

// h2 is a client that speaks HTTP/2 frame by frame, in fake time.
type h2 struct {
	t       *testing.T
	conn    net.Conn
	framer  *http2.Framer
	coder   *hpack.Encoder
	block   bytes.Buffer
	heard   chan string   // what the server sent: the status of an answer, reset, over; closed at the connection's end
	deaf    chan struct{} // closed: it reads no more
	streams atomic.Uint32 // that it allows
}

// onHTTP2 has one connection of HTTP/2 served as a listener with TLS serves it, but for TLS. Whatever the test does, nothing may be left.
func onHTTP2(t *testing.T, h http.HandlerFunc, test func(t *testing.T, d *door, c *h2)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		d := &door{Listener: p, name: "public", limits: testLimits, metrics: telemetry.New(), secure: true}
		hs := d.netHTTP(h, slog.New(slog.DiscardHandler))
		hs.Protocols = new(http.Protocols)
		hs.Protocols.SetUnencryptedHTTP2(true)
		s := &bareServer{hs, &d.handlers}
		var wg sync.WaitGroup
		wg.Go(func() { _ = s.Serve(d) })
		near, far := net.Pipe()
		p.conns <- far
		c := &h2{t: t, conn: near, framer: http2.NewFramer(near, near), heard: make(chan string, 4096), deaf: make(chan struct{})}
		c.coder = hpack.NewEncoder(&c.block)
		wg.Go(func() {
			defer close(c.heard)
			for {
				select {
				case <-c.deaf:
					return
				default:
				}
				f, err := c.framer.ReadFrame()
				if err != nil {
					return
				}
				switch f := f.(type) {
				case *http2.SettingsFrame:
					if n, ok := f.Value(http2.SettingMaxConcurrentStreams); ok {
						c.streams.Store(n)
					}
				case *http2.MetaHeadersFrame:
					c.heard <- f.PseudoValue("status")
				case *http2.RSTStreamFrame:
					c.heard <- "reset"
				case *http2.GoAwayFrame:
					c.heard <- "over"
				}
			}
		})
		c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		if _, err := io.WriteString(near, http2.ClientPreface); err != nil {
			t.Fatal(err)
		}
		if err := c.framer.WriteSettings(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		test(t, d, c)
		_ = near.Close()
		_ = s.Close()
		wg.Wait()
		s.Wait()
		<-time.After(time.Second)
		if d.open.Load() != 0 || d.active.Load() != 0 {
			t.Errorf("%d connections and %d requests are left", d.open.Load(), d.active.Load())
		}
	})
}

// fields encodes a request's head.
func (c *h2) fields(path string, more ...string) []byte {
	c.block.Reset()
	for i, all := 0, append([]string{":method", "GET", ":scheme", "https", ":authority", "x", ":path", path}, more...); i < len(all); i += 2 {
		if err := c.coder.WriteField(hpack.HeaderField{Name: all[i], Value: all[i+1]}); err != nil {
			c.t.Fatal(err)
		}
	}
	return c.block.Bytes()
}

// open begins a stream, and tells whether the connection took it.
func (c *h2) open(id uint32, path string) bool {
	return c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.fields(path), EndHeaders: true, EndStream: true}) == nil
}

// answers counts what the server sent until now: heads by status, refused streams, and whether it ended the connection.
func (c *h2) answers() (status map[string]int, refused int, over bool) {
	synctest.Wait()
	status = map[string]int{}
	for {
		select {
		case what, ok := <-c.heard:
			switch {
			case !ok:
				return status, refused, true
			case what == "reset":
				refused++
			case what == "over":
				over = true
			default:
				status[what]++
			}
			continue
		default:
		}
		return status, refused, over
	}
}

// TestHTTP2Streams: a connection has as many streams as it may, and is told so; requests of all connections are bounded too.
func TestHTTP2Streams(t *testing.T) {
	onHTTP2(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, func(t *testing.T, d *door, c *h2) {
		if n := c.streams.Load(); n != uint32(testLimits.MaxStreams) {
			t.Errorf("%d streams are allowed", n)
		}
		for i := range testLimits.MaxStreams + 1 {
			c.open(uint32(2*i+1), "/")
		}
		if _, refused, over := c.answers(); refused != 1 || over || d.active.Load() != int64(testLimits.MaxStreams) {
			t.Errorf("%d refused, %v, %d under way", refused, over, d.active.Load())
		}
	})
	onHTTP2(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, func(t *testing.T, d *door, c *h2) {
		d.limits.MaxRequests = 2
		for i := range 3 {
			c.open(uint32(2*i+1), "/")
		}
		if status, _, _ := c.answers(); status["503"] != 1 || d.active.Load() != 2 {
			t.Errorf("%v, %d under way", status, d.active.Load())
		}
		if got := cuts(t, d.metrics); got != "too_many_requests=1" {
			t.Error(got)
		}
	})
}

// TestHTTP2Deaf: a client that grants all the windows there are and reads nothing of its connection has the time that one has who reads nothing of a stream.
func TestHTTP2Deaf(t *testing.T) {
	var ended atomic.Bool
	flood := func(w http.ResponseWriter, _ *http.Request) {
		defer ended.Store(true)
		for {
			if _, err := io.WriteString(w, strings.Repeat("x", 8<<10)); err != nil {
				return
			}
		}
	}
	onHTTP2(t, flood, func(t *testing.T, d *door, c *h2) {
		if c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30}) != nil || c.framer.WriteWindowUpdate(0, 1<<30) != nil {
			t.Fatal("the connection does not take its windows")
		}
		close(c.deaf)
		c.open(1, "/")
		<-time.After(testLimits.SendTimeout - time.Second)
		if ended.Load() || d.active.Load() != 1 {
			t.Error("its time was not over")
		}
		<-time.After(2 * time.Second)
		if !ended.Load() || d.active.Load() != 0 || d.open.Load() != 0 {
			t.Errorf("ended %v, %d under way, %d connections", ended.Load(), d.active.Load(), d.open.Load())
		}
	})
}

// TestHTTP2WithoutWindow: who has no window for an answer counts as under way until that was written or its time is over, though the handler is done; refusals, probes
// and what net/http answers by itself, for which nobody needs a key, are not waited for that long.
func TestHTTP2WithoutWindow(t *testing.T) {
	const patience = time.Minute
	short := func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(patience)) // as package api does
		if r.URL.Path == "/refused" {
			tooMany.Write(w)
			return
		}
		_, _ = io.WriteString(w, "hello")
	}
	var bomb []string
	for range 2000 { // each takes a byte once the table has it, and counts with some 60
		bomb = append(bomb, "x-bomb", "aaaaaaaaaaaaaaaaaaaaaaaa")
	}
	for _, c := range []struct {
		name, path string
		more       []string // fields
		max        int      // requests under way
		active     int64
		within     time.Duration
	}{
		{"an answer", "/", nil, 1, 1, patience},
		{"a refusal", "/refused", nil, 1, 1, shortWindow},
		{"too many", "/", nil, 0, 0, shortestWindow},
		{"a probe", "/healthz", nil, 1, 1, shortWindow},
		{"a probe beyond the bound", "/healthz", nil, 0, 1, shortestWindow},
		{"a bad head", "/", []string{"connection", "x"}, 1, 0, shortWindow},
		{"a long head", "/", bomb, 1, 0, shortWindow},
	} {
		t.Run(c.name, func(t *testing.T) {
			onHTTP2(t, short, func(t *testing.T, d *door, h *h2) {
				d.limits.MaxRequests = c.max
				if h.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}) != nil {
					t.Fatal("the connection does not take its windows")
				}
				if h.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: h.fields(c.path, c.more...), EndHeaders: true, EndStream: true}) != nil {
					t.Fatal("the connection does not take the request")
				}
				status, reset, _ := h.answers()
				if len(status) != 1 || reset != 0 || d.active.Load() != c.active {
					t.Errorf("%v, reset %d, %d under way", status, reset, d.active.Load())
				}
				<-time.After(c.within - time.Millisecond)
				if _, reset, _ = h.answers(); reset != 0 {
					t.Error("its time was not over")
				}
				<-time.After(2 * time.Millisecond)
				if _, reset, _ = h.answers(); reset != 1 || d.active.Load() != 0 {
					t.Errorf("reset %d, %d under way", reset, d.active.Load())
				}
			})
		})
	}
}

// TestHTTP2Resets: who opens streams and resets them at once has no more handlers at work than it may have streams, and is shown out.
func TestHTTP2Resets(t *testing.T) {
	onHTTP2(t, func(http.ResponseWriter, *http.Request) { <-time.After(time.Minute) }, func(t *testing.T, d *door, c *h2) {
		for i := range 100 * testLimits.MaxStreams {
			id := uint32(2*i + 1)
			if !c.open(id, "/") || c.framer.WriteRSTStream(id, http2.ErrCodeCancel) != nil {
				break
			}
			if n := d.active.Load(); n > int64(testLimits.MaxStreams) {
				t.Fatalf("%d requests are under way", n)
			}
		}
		if _, _, over := c.answers(); !over {
			t.Error("the connection goes on")
		}
		<-time.After(2 * time.Minute)
	})
}

// TestHTTP2Heads: heads that are too long, in one field or in many, get a 431 or the connection's end; one that never ends is ended as an idle
// connection is, since HTTP/2 has no stream yet.
func TestHTTP2Heads(t *testing.T) {
	nobody := func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(299) }
	send := func(c *h2, block []byte, ends bool) {
		first := true
		for len(block) > 0 || first {
			n := min(len(block), 16<<10)
			last := n == len(block) && ends
			var err error
			if first {
				err = c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:n], EndHeaders: last, EndStream: true})
			} else {
				err = c.framer.WriteContinuation(1, last, block[:n])
			}
			if first, block = false, block[n:]; err != nil {
				return // the server has had enough
			}
		}
	}
	long := strings.Repeat("a", 2*int(testLimits.MaxHeaderBytes))
	onHTTP2(t, nobody, func(t *testing.T, _ *door, c *h2) {
		send(c, c.fields("/", "x", long), true)
		if status, _, over := c.answers(); status["431"] != 1 && !over || status["299"] != 0 {
			t.Errorf("one long field: %v, over %v", status, over)
		}
	})
	onHTTP2(t, nobody, func(t *testing.T, _ *door, c *h2) {
		var more []string
		for range 1 << 15 { // each takes a byte once the table has it: a bomb
			more = append(more, "x-bomb", "aaaaaaaaaaaaaaaaaaaaaaaa")
		}
		send(c, c.fields("/", more...), true)
		if status, _, over := c.answers(); status["431"] != 1 && !over || status["299"] != 0 {
			t.Errorf("a bomb: %v, over %v", status, over)
		}
	})
	onHTTP2(t, nobody, func(t *testing.T, d *door, c *h2) {
		send(c, c.fields("/", "x", "y"), false)
		<-time.After(testLimits.IdleTimeout + time.Second)
		if status, _, over := c.answers(); len(status) != 0 || !over {
			t.Errorf("half a head: %v, over %v", status, over)
		}
	})
}
