package tracing_test

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/tracing"
)

// FuzzContext: whatever context a client sends, what goes on is a context of ours: in its trace if its traceparent is well-formed, and in one of
// our own else, with no more state or baggage than came.
func FuzzContext(f *testing.F) {
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=1,b=2", "x=1;p=2")
	f.Add("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", ",,", "=")
	f.Add("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff-x", "a@b=c", "x=%zz")
	f.Add("00-00000000000000000000000000000000-0000000000000000-00", "", "\xff=\xff")
	f.Setenv("OTEL_TRACES_SAMPLER", "always_off") // an export beside it would be taken for news of the input
	r := tracing.New(tracing.Options{Log: slog.New(slog.DiscardHandler), Count: func(string, int) {}})
	f.Cleanup(r.Close)
	p, err := r.Prepare(&tracing.Settings{Endpoint: "http://127.0.0.1:1"})
	if err != nil {
		f.Fatal(err)
	}
	p.Use()
	f.Fuzz(func(t *testing.T, parent, state, baggage string) {
		h := http.Header{"Traceparent": {parent}, "Tracestate": {state}, "Baggage": {baggage}}
		q := r.Begin(&http.Request{Method: "POST", Header: h, ProtoMajor: 1, ProtoMinor: 1}, "/", time.Now())
		l := q.Leg("w", "http://engine:1", "plain", 1)
		sent := l.Send("POST", "/", http.Header{"Traceparent": h["Traceparent"], "Tracestate": h["Tracestate"]}, time.Now())
		l.End(0, "error", time.Now())
		q.End(&tracing.End{RequestID: "id", Outcome: "error"}, time.Now())
		got := sent["Traceparent"]
		if len(got) != 1 || len(got[0]) != 55 || got[0][3:35] != q.TraceID() || strings.Trim(got[0], "0123456789abcdef-") != "" {
			t.Fatalf("%q goes on as %q", parent, got)
		}
		if id := tracing.TraceID(h); id != "" && id != q.TraceID() {
			t.Errorf("%q is of the trace %q, and went on in %q", parent, id, q.TraceID())
		}
		if s := sent.Get("Tracestate"); len(s) > len(state) || strings.ContainsAny(s, "\r\n") {
			t.Errorf("the state %q goes on as %q", state, s)
		}
		if b := sent["Baggage"]; b != nil && (len(b) != 1 || b[0] != baggage) {
			t.Errorf("the baggage %q goes on as %q", baggage, b)
		}
	})
}
