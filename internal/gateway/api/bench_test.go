package api

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/explain"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
	"github.com/perigee-llm/perigee/internal/gateway/tracing"
	"github.com/perigee-llm/perigee/internal/gateway/tracing/tracingtest"
	"github.com/perigee-llm/perigee/internal/telemetry"
)

// cannedEngine is the transport and the engines behind it: each answer is there at once, in parts.
type cannedEngine struct {
	contentType []string
	parts       [][]byte
	length      int64 // -1: chunked
}

func (e *cannedEngine) RoundTrip(r *http.Request) (*http.Response, error) {
	buf := make([]byte, 4<<10)
	for {
		if _, err := r.Body.Read(buf); err != nil {
			break
		}
	}
	return &http.Response{
		StatusCode: 200, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Content-Type": e.contentType}, ContentLength: e.length,
		TransferEncoding: []string{"chunked"}, Body: &cannedBody{parts: e.parts},
	}, nil
}

type cannedBody struct{ parts [][]byte }

func (b *cannedBody) Read(p []byte) (int, error) {
	if len(b.parts) == 0 {
		return 0, io.EOF
	}
	n := copy(p, b.parts[0])
	b.parts = b.parts[1:]
	return n, nil
}

func (b *cannedBody) Close() error { return nil }

// sink is a client that reads everything at once.
type sink struct {
	header http.Header
	status int
	n      int
}

func (s *sink) Header() http.Header              { return s.header }
func (s *sink) WriteHeader(status int)           { s.status = status }
func (s *sink) Write(p []byte) (int, error)      { s.n += len(p); return len(p), nil }
func (s *sink) Flush()                           {}
func (s *sink) SetReadDeadline(time.Time) error  { return nil }
func (s *sink) SetWriteDeadline(time.Time) error { return nil }
func (s *sink) reset()                           { clear(s.header); s.status, s.n = 0, 0 }

func relayServer(t testing.TB, engines http.RoundTripper) *Server {
	reg := fleet.NewRegistry(fleet.BreakerConfig{}, 0)
	for _, id := range []string{"a", "b", "c", "d"} {
		reg.Put(fleet.Spec{ID: id, URL: "http://" + id, Kind: fleet.SGLang, Models: []string{"m"}})
	}
	resolver, err := bucket.NewResolver([]*bucket.Bucket{bucket.NewPlain("all", 0, bucket.Range{}, bucket.NewGroup("m", fleet.Plain, nil, policy.NewPowerOfTwo(1, policy.Limits{})))})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{
		Config: Config{Models: []*Model{{ID: "m", Resolver: resolver}}, Settings: testSettings()}, Registry: reg, Tracker: &load.Tracker{}, Engines: engines,
		Metrics: telemetry.New(), Explain: explain.NewLog(0), Log: slog.New(slog.DiscardHandler), Access: io.Discard,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// relay returns a function that passes one request of about a kilobyte through the handler.
func relay(t testing.TB, stream bool, chunks int) func() { return relayTraced(t, stream, chunks, nil) }

// relayTraced is the same with a tracer.
func relayTraced(t testing.TB, stream bool, chunks int, tracer *tracing.Tracer) func() {
	e := &cannedEngine{contentType: []string{"application/json"}, parts: [][]byte{[]byte(okAnswer)}, length: int64(len(okAnswer))}
	text := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("a", 950) + `"}]}`
	if stream {
		e.contentType, e.length, e.parts = []string{"text/event-stream"}, -1, nil
		for range chunks {
			e.parts = append(e.parts, []byte(event("hello")))
		}
		e.parts = append(e.parts, []byte(doneEvent))
		text = streamed(text)
	}
	s := relayServer(t, e)
	s.Tracer = tracer
	h := s.Public()
	w := &sink{header: http.Header{}}
	body := bytes.NewReader(nil)
	r, err := http.NewRequestWithContext(t.Context(), "POST", "http://gateway"+chatPath, io.NopCloser(body))
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = int64(len(text))
	raw := []byte(text)
	return func() {
		w.reset()
		body.Reset(raw)
		h.ServeHTTP(w, r)
		if w.status != 200 {
			t.Fatal(w.status)
		}
	}
}

// BenchmarkRelay is one request through the handler, access log and decision log included; net/http's two sides are left out.
func BenchmarkRelay(b *testing.B) {
	for _, x := range []struct {
		name   string
		stream bool
	}{{"json=1KB", false}, {"stream=64", true}} {
		b.Run(x.name, func(b *testing.B) {
			one := relay(b, x.stream, 64)
			b.ReportAllocs()
			for b.Loop() {
				one()
			}
		})
	}
}

// BenchmarkTraced is the same of a JSON answer by what is traced: nothing, requests of which nothing is recorded, and all, with their export to a collector
// in the same process.
func BenchmarkTraced(b *testing.B) {
	c := tracingtest.Start(b, nil)
	c.Answer(func(http.ResponseWriter, *http.Request) {})
	none, all := 0.0, 1.0
	for _, x := range []struct {
		name     string
		settings *tracing.Settings
	}{{"off", nil}, {"unsampled", &tracing.Settings{Endpoint: c.URL, Ratio: &none}}, {"sampled", &tracing.Settings{Endpoint: c.URL, Ratio: &all}}} {
		b.Run(x.name, func(b *testing.B) {
			var exported, dropped atomic.Int64
			tracer := tracing.New(tracing.Options{Log: slog.New(slog.DiscardHandler), Count: func(outcome string, n int) {
				if outcome == tracing.Exported {
					exported.Add(int64(n))
				} else {
					dropped.Add(int64(n))
				}
			}})
			defer tracer.Close()
			p, err := tracer.Prepare(x.settings)
			if err != nil {
				b.Fatal(err)
			}
			p.Use()
			one := relayTraced(b, false, 0, tracer)
			b.ReportAllocs()
			for b.Loop() {
				one()
			}
			b.ReportMetric(float64(exported.Load())/float64(b.N), "exported/op")
			b.ReportMetric(float64(dropped.Load())/float64(b.N), "dropped/op")
		})
	}
}

// TestRelayAllocs holds the request's budget, and that a chunk more costs no allocation more.
func TestRelayAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates, too")
	}
	allocs := func(stream bool, chunks int) float64 { return testing.AllocsPerRun(200, relay(t, stream, chunks)) }
	whole, short, long := allocs(false, 0), allocs(true, 10), allocs(true, 1000)
	t.Logf("JSON %.0f, stream of 10 chunks %.0f, of 1,000 chunks %.0f", whole, short, long)
	if whole > relayBudget || short > relayBudget {
		t.Errorf("a request allocates %.0f times, a stream %.0f times; the budget is %d", whole, short, relayBudget)
	}
	if long > short+1 { // a collection in between may empty a pool
		t.Errorf("990 chunks allocate %.0f times", long-short)
	}
}

// relayBudget is how often one request may allocate in the handler, the server and the transport left out and the 6 of the canned engine included: it
// is 32 while the decision log fills, and 27 after that.
const relayBudget = 34
