package api

import (
	"bufio"
	"bytes"
	"io"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/downstream"
	"github.com/perigee-llm/perigee/internal/gateway/explain"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
	"github.com/perigee-llm/perigee/internal/gateway/upstream"
	"github.com/perigee-llm/perigee/internal/telemetry"
)

// bareEngine answers every request on a listener with the same bytes, part by part, and allocates nothing for it. A request ends with end.
func bareEngine(wg *sync.WaitGroup, ln net.Listener, end []byte, parts [][]byte) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		wg.Go(func() {
			defer func() { _ = c.Close() }()
			buf, n := make([]byte, 64<<10), 0
			for {
				k, err := c.Read(buf[n:])
				if n += k; err != nil {
					return
				}
				if !bytes.HasSuffix(buf[:n], end) {
					continue
				}
				n = 0
				for _, p := range parts {
					if _, err := c.Write(p); err != nil {
						return
					}
				}
			}
		})
	}
}

// TestLoopbackAllocs holds what a request may allocate on its whole way, over sockets: our server, the handler, the client of engines. What the test
// does on the other two ends allocates nothing. A stream of 1,000 chunks may allocate no more than one of 10.
func TestLoopbackAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates, too")
	}
	allocs := func(chunks int) float64 {
		text := []byte(`{"model":"m","prompt":"hello","max_tokens":2}`)
		parts := [][]byte{[]byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " + itoa(len(okAnswer)) + "\r\n\r\n" + okAnswer)}
		last := []byte(okAnswer)
		if chunks > 0 {
			text = []byte(`{"model":"m","prompt":"hello","stream":true}`)
			parts = [][]byte{[]byte("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")}
			chunkOf := func(s string) []byte { return []byte(strconv.FormatInt(int64(len(s)), 16) + "\r\n" + s + "\r\n") }
			for range chunks {
				parts = append(parts, chunkOf(event("hello")))
			}
			last = []byte("0\r\n\r\n")
			parts = append(parts, append(chunkOf(doneEvent), last...))
		}
		one := loopback(t, text, parts, last)
		for range 50 { // the decision log is full then, and every pool has what it will have
			one()
		}
		return testing.AllocsPerRun(50, one)
	}
	whole, short, long := allocs(0), allocs(10), allocs(1000)
	t.Logf("JSON %.0f, stream of 10 chunks %.0f, of 1,000 chunks %.0f", whole, short, long)
	if whole > loopbackBudget || short > loopbackBudget {
		t.Errorf("a request allocates %.0f times, a stream %.0f times; the budget is %d", whole, short, loopbackBudget)
	}
	if long > short+loopbackMore {
		t.Errorf("990 chunks more allocate %.0f times", long-short)
	}
}

// loopbackBudget is how often a request may allocate on its whole way. loopbackMore is what a long stream may have more: a collection in between may
// empty pools, and the timer of its silence may be made anew.
const loopbackBudget, loopbackMore = 20, 4

// loopback returns a function that has one request answered over a connection that is kept.
func loopback(t *testing.T, text []byte, parts [][]byte, last []byte) func() {
	t.Helper()
	var wg sync.WaitGroup
	engine, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	wg.Go(func() { bareEngine(&wg, engine, []byte("}"), parts) })
	reg := fleet.NewRegistry(fleet.BreakerConfig{}, 0)
	reg.Put(fleet.Spec{ID: "a", URL: "http://" + engine.Addr().String(), Kind: fleet.VLLM, Models: []string{"m"}})
	resolver, err := bucket.NewResolver([]*bucket.Bucket{bucket.NewPlain("all", 0, bucket.Range{}, bucket.NewGroup("m", fleet.Plain, nil, policy.NewPowerOfTwo(1, policy.Limits{})))})
	if err != nil {
		t.Fatal(err)
	}
	transport := upstream.New(upstream.Options{})
	s, err := New(Options{
		Config: Config{Models: []*Model{{ID: "m", Resolver: resolver}}, Settings: testSettings()}, Registry: reg, Tracker: &load.Tracker{}, Engines: transport,
		Metrics: telemetry.New(), Explain: explain.NewLog(16), Log: slog.New(slog.DiscardHandler), Access: io.Discard,
	})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := downstream.New(downstream.Options{
		Handler: s.Public(), IdleTimeout: time.Minute, HeaderTimeout: time.Minute, MaxHeaderBytes: 64 << 10, Log: slog.New(slog.DiscardHandler),
		ConnContext: ConnContext, Refuse: func(downstream.Refusal) []byte { return nil },
	})
	wg.Go(func() { _ = server.Serve(ln) })
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _, _ = c.Close(), server.Close(), engine.Close()
		server.Wait()
		s.Close()
		transport.Close()
		wg.Wait()
	})
	request := append([]byte("POST "+textPath+" HTTP/1.1\r\nHost: x\r\nContent-Length: "+itoa(len(text))+"\r\n\r\n"), text...)
	in := bufio.NewReaderSize(c, 64<<10)
	tail := make([]byte, 0, 2*len(last))
	return func() {
		if _, err := c.Write(request); err != nil {
			t.Fatal(err)
		}
		for tail = tail[:0]; !bytes.HasSuffix(tail, last); {
			b, err := in.ReadByte()
			if err != nil {
				t.Fatal(err)
			}
			if len(tail) == cap(tail) {
				tail = append(tail[:0], tail[len(tail)-len(last)+1:]...)
			}
			tail = append(tail, b)
		}
	}
}
