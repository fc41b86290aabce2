package api

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
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
