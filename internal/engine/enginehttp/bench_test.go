package enginehttp

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/perigee-llm/perigee/internal/engine"
)

// BenchmarkRequests sends what a replay of the Mooncake trace does: 15,000 token ids a request, 150 tokens back, streamed, over loopback
// to an engine that computes in no time. The time is that of engine and client together.
func BenchmarkRequests(b *testing.B) {
	_, c := start(b, Options{Engine: engine.Config{Timing: engine.Timing{Speed: 1e6}}})
	tail := strings.TrimPrefix(ids(50001, 65000), "[")
	var n atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			body := `{"prompt":[` + strconv.FormatInt(n.Add(1)%1000, 10) + `,` + tail + `,"max_tokens":150,"stream":true}`
			resp, err := c.try(b.Context(), http.MethodPost, "/v1/completions", body)
			if err != nil {
				b.Error(err)
				return
			}
			got, err := io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if err != nil || got < 150*100 {
				b.Error(err, got)
				return
			}
		}
	})
}

// BenchmarkChunk writes one chunk of a stream.
func BenchmarkChunk(b *testing.B) {
	for _, f := range []Flavor{VLLM, SGLang} {
		b.Run(fmt.Sprint(f), func(b *testing.B) {
			s := &shape{flavor: f, chat: true, id: "chatcmpl-0123456789abcdef", model: "llama-3.1-8b", created: 1}
			var buf []byte
			b.ReportAllocs()
			for b.Loop() {
				buf = s.appendChunk(buf[:0], 0, []byte(" abc"), "")
			}
		})
	}
}
