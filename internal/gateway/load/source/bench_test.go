package source_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load/source"
)

// BenchmarkPoll is a whole poll over loopback, with the server's side in the same process: an upper bound of what one
// engine costs a poll.
func BenchmarkPoll(b *testing.B) {
	pages := map[string][]byte{"/metrics": readFile(b, "vllm_0.32.0_metrics.txt"), "/v1/loads": readFile(b, "sglang_0.5.23_loads.json")}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(pages[r.URL.Path]) }))
	defer server.Close()
	for _, kind := range []fleet.Kind{fleet.VLLM, fleet.SGLang} {
		b.Run(kind.String(), func(b *testing.B) {
			b.ReportAllocs()
			var a source.Answer
			for b.Loop() {
				if err := source.Poll(b.Context(), server.Client(), kind, server.URL, time.Now, &a); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
