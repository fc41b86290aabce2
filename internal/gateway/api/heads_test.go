package api

import (
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/downstream"
	"github.com/perigee-llm/perigee/internal/gateway/explain"
)

// TestLogKeepsNoHeads: the decision log keeps the ids that clients give to their requests, and not the heads that they came in.
func TestLogKeepsNoHeads(t *testing.T) {
	ln := newMemListener()
	log := explain.NewLog(0)
	s := downstream.New(downstream.Options{
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			log.Begin(explain.Facts{RequestID: requestID(r.Header)}).Finish(explain.End{}) // as call.enter and call.finish do
		}),
		IdleTimeout: time.Minute, HeaderTimeout: time.Minute, MaxHeaderBytes: 64 << 10,
		Refuse: func(downstream.Refusal) []byte { return nil },
	})
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(ln) }()
	c, err := ln.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	pad, answer := strings.Repeat("p", 60<<10), make([]byte, 4<<10)
	for i := range explain.DefaultSize {
		if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: x\r\nX-Request-Id: r%d\r\nX-Pad: %s\r\n\r\n", i, pad); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(answer); err != nil {
			t.Fatal(err)
		}
	}
	if kept := int64(heap()) - int64(before); kept > 8<<20 {
		t.Errorf("the log of %d requests keeps %d KiB", explain.DefaultSize, kept>>10)
	}
	_ = c.Close()
	_ = s.Close()
	s.Wait()
	<-done
	runtime.KeepAlive(log)
}

// heldBefore posts a streamed request and returns how many bytes are held of requests when its engine is asked, and the answer. While the answer comes nothing
// may be held.
func (r *rig) heldBefore(path, body string, header ...string) (held int64, a answer) {
	r.t.Helper()
	asked, begun, goOn := make(chan int64, 1), make(chan struct{}), make(chan struct{})
	r.engines[0].handler = func(w http.ResponseWriter, _ *http.Request) {
		asked <- r.s.buffered.Load()
		rc := startStream(w)
		_, _ = io.WriteString(w, event("hello"))
		_ = rc.Flush()
		close(begun)
		<-goOn
		_, _ = io.WriteString(w, doneEvent)
	}
	got := make(chan answer, 1)
	go func() { got <- r.post(path, body, header...) }()
	held = <-asked
	<-begun
	synctest.Wait()
	if n := r.s.buffered.Load(); n != 0 {
		r.t.Errorf("%d bytes are held while the answer comes", n)
	}
	close(goOn)
	return held, <-got
}

// TestLongHeadsCount: what a long head has in memory counts from its arrival until the answer begins, and goes then; what is wanted of it until the end stays.
func TestLongHeadsCount(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		bubble(t, rigOptions{HTTP2: http2, Settings: func(s *Settings) { s.MaxBuffered = 256 << 10 }}, func(t *testing.T, r *rig) {
			more := []string{"Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
			for i := range 200 {
				more = append(more, fmt.Sprintf("X-More-%d", i), strings.Repeat("v", 100))
			}
			held, a := r.heldBefore(chatPath, streamed(chatBody), more...)
			if held < 200*(100+fieldBytes) {
				t.Errorf("%d bytes are held before the answer", held)
			}
			if a.status != 200 || !strings.HasSuffix(a.body, doneEvent) {
				t.Errorf("got %+v", a)
			}
			synctest.Wait()
			if last := r.access.last(); last["trace_id"] != "0af7651916cd43dd8448eb211c80319c" || last["method"] != "POST" {
				t.Errorf("the access log has %v", last)
			}
			for i := range 700 {
				more = append(more, fmt.Sprintf("X-Most-%d", i), strings.Repeat("v", 40))
			}
			r.wantError(r.post(chatPath, chatBody, more...), 503, "gateway_overloaded")
			if n := r.s.buffered.Load(); n != 0 {
				t.Errorf("%d bytes stay held", n)
			}
		})
	}
}
