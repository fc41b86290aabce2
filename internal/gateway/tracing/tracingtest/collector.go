// Package tracingtest is an OpenTelemetry collector for tests: it takes spans by OTLP/HTTP in protobuf, and tells what came.
//
// It promises to decode everything that it answers with 200, or to fail the test: what is told is what was sent.
package tracingtest

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	traces "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is one span as it came.
type Span struct {
	Name, Kind                string // the kind in lower case: internal, server, client
	TraceID, SpanID, ParentID string // hexadecimal; an empty ParentID: it has none
	State                     string // tracestate
	Start, End                time.Time
	Attributes, Resource      map[string]string // lists in brackets, joined by "; "
	Events                    []Event
	Failed                    bool // its status is an error
}

// Event is one event of a span.
type Event struct {
	Name       string
	At         time.Time
	Attributes map[string]string
}

// Collector takes spans. All methods may be called at once.
type Collector struct {
	// URL is its base.
	URL string
	// Close closes it, which its test does, too.
	Close func()

	mu     sync.Mutex
	answer http.HandlerFunc // nil: spans are taken
	spans  []Span
	calls  []http.Header
}

// Start starts a collector on loopback, which ends with the test. config may change its server before it starts, and start it; nil: by plain HTTP.
func Start(t testing.TB, start func(*httptest.Server)) *Collector {
	t.Helper()
	c := &Collector{}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.serve(t, w, r) }))
	if start == nil {
		start = (*httptest.Server).Start
	}
	start(s)
	c.URL, c.Close = s.URL, sync.OnceFunc(func() { s.CloseClientConnections(); s.Close() })
	t.Cleanup(c.Close)
	return c
}

// Answer has the collector answer in another way from now on; nil: as it should.
func (c *Collector) Answer(h http.HandlerFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = h
}

// Calls returns the headers of what was posted.
func (c *Collector) Calls() []http.Header {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls)
}

// Spans returns the spans that came, in the order of their beginnings.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := slices.Clone(c.spans)
	slices.SortStableFunc(list, func(a, b Span) int { return cmp.Or(a.Start.Compare(b.Start), strings.Compare(a.Name, b.Name)) })
	return list
}

// Forget forgets what came.
func (c *Collector) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spans, c.calls = nil, nil
}

func (c *Collector) serve(t testing.TB, w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return // who sent it has given up
	}
	c.mu.Lock()
	c.calls = append(c.calls, r.Header)
	answer := c.answer
	c.mu.Unlock()
	if answer != nil {
		answer(w, r)
		return
	}
	var q collector.ExportTraceServiceRequest
	if r.Method != http.MethodPost || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
		t.Errorf("the collector got %s %s as %s", r.Method, r.URL, r.Header.Get("Content-Type"))
	} else if err := proto.Unmarshal(text, &q); err != nil {
		t.Errorf("the collector got no spans: %v", err)
	}
	c.mu.Lock()
	c.spans = append(c.spans, decode(&q)...)
	c.mu.Unlock()
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func decode(q *collector.ExportTraceServiceRequest) (list []Span) {
	for _, of := range q.ResourceSpans {
		resource := textOf(of.Resource.GetAttributes())
		for _, in := range of.ScopeSpans {
			for _, s := range in.Spans {
				span := Span{
					Name: s.Name, Kind: strings.ToLower(strings.TrimPrefix(s.Kind.String(), "SPAN_KIND_")), TraceID: hex.EncodeToString(s.TraceId), SpanID: hex.EncodeToString(s.SpanId),
					ParentID: hex.EncodeToString(s.ParentSpanId), State: s.TraceState, Start: time.Unix(0, int64(s.StartTimeUnixNano)), End: time.Unix(0, int64(s.EndTimeUnixNano)),
					Attributes: textOf(s.Attributes), Resource: resource, Failed: s.Status.GetCode() == traces.Status_STATUS_CODE_ERROR,
				}
				for _, e := range s.Events {
					span.Events = append(span.Events, Event{Name: e.Name, At: time.Unix(0, int64(e.TimeUnixNano)), Attributes: textOf(e.Attributes)})
				}
				list = append(list, span)
			}
		}
	}
	return list
}

func textOf(list []*common.KeyValue) map[string]string {
	out := map[string]string{}
	for _, kv := range list {
		out[kv.Key] = valueOf(kv.Value)
	}
	return out
}

func valueOf(v *common.AnyValue) string {
	switch x := v.GetValue().(type) {
	case *common.AnyValue_StringValue:
		return x.StringValue
	case *common.AnyValue_IntValue:
		return strconv.FormatInt(x.IntValue, 10)
	case *common.AnyValue_BoolValue:
		return strconv.FormatBool(x.BoolValue)
	case *common.AnyValue_ArrayValue:
		var items []string
		for _, item := range x.ArrayValue.Values {
			items = append(items, valueOf(item))
		}
		return "[" + strings.Join(items, "; ") + "]"
	}
	return fmt.Sprint(v)
}
