package gateway_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
)

const capped = `
models:
  - id: m
    admission: {max_waiting_requests: 64, max_kv_tokens: 9000}
    buckets:
      - {id: short, max_input_tokens: 100, plain: {workers: [v1, v2, s]}}
      - {id: long, plain: {workers: [v1, s], admission: {max_pending_prefill_tokens: 9000}}}
      - {id: native, rank: 1, plain: {workers: [s], admission: {max_pending_prefill_tokens: 9000}}}
server: {port: 0, host: 127.0.0.1, admin: {port: 0}}
discovery: {static: {workers: [{id: v1, url: %s}, {id: v2, url: %s}, {id: s, url: %s}]}}
`

// blindCapsIn lists the caps that the log warns of, sorted.
func blindCapsIn(log string) (told []string) {
	for line := range strings.Lines(log) {
		if !strings.Contains(line, "this cap does not act") {
			continue
		}
		var limit, bucket string
		for _, word := range strings.Fields(line) {
			if v, ok := strings.CutPrefix(word, "cap="); ok {
				limit = v
			}
			if v, ok := strings.CutPrefix(word, "bucket="); ok {
				bucket = v
			}
		}
		told = append(told, bucket+" "+limit)
	}
	slices.Sort(told)
	return told
}

// TestBlindCaps: a cap on what vLLM does not report is warned of once for each group that has such an engine, also when a reload brings it.
func TestBlindCaps(t *testing.T) {
	vllm, sglang := startEngines(t, 2, enginehttp.VLLM), startEngines(t, 1, enginehttp.SGLang)
	text := fmt.Sprintf(capped, vllm[0].URL(), vllm[1].URL(), sglang[0].URL())
	l := startLive(t, time.Hour, map[string]string{configFile: text})
	want := []string{"long max_kv_tokens", "long max_pending_prefill_tokens", "short max_kv_tokens"}
	if got := blindCapsIn(l.log.take()); !slices.Equal(got, want) {
		t.Errorf("warned of %q, want %q", got, want)
	}
	l.write(configFile, strings.Replace(text, "max_kv_tokens: 9000", "max_kv_tokens: 9000, max_pending_prefill_tokens: 7", 1))
	said, err := l.reload()
	if err != nil {
		t.Fatal(err)
	}
	if got := blindCapsIn(said); !slices.Equal(got, []string{"short max_pending_prefill_tokens"}) {
		t.Errorf("after the reload warned of %q", got)
	}
}
