package enginehttp

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/perigee-llm/perigee/internal/engine"
)

// keysOf lists the paths of a JSON value with the kind of each leaf; list elements share one path.
func keysOf(v any, path string, into map[string]string) map[string]string {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			keysOf(x, path+"."+k, into)
		}
	case []any:
		for _, x := range v {
			keysOf(x, path+"[]", into)
		}
	default:
		into[path] = fmt.Sprintf("%T", v)
	}
	return into
}

// TestSGLangShapes compares the keys and the kinds of values with those of a real engine's answers.
func TestSGLangShapes(t *testing.T) {
	raw, err := os.ReadFile("testdata/sglang-0.5.23.json")
	if err != nil {
		t.Fatal(err)
	}
	real := decode(t, string(raw))
	// The capture was made without --enable-cache-report.
	_, c := start(t, Options{Flavor: SGLang, Engine: engine.Config{Timing: quick}, HideCached: true})
	for _, x := range []struct{ name, method, path, body string }{
		{"models", http.MethodGet, "/v1/models", ""},
		{"completion", http.MethodPost, "/v1/completions", `{"prompt":[1,2,3],"max_tokens":4}`},
		{"chat", http.MethodPost, "/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}],"max_tokens":4}`},
		{"generate", http.MethodPost, "/generate", `{"text":"hello","sampling_params":{"max_new_tokens":4}}`},
		{"loads", http.MethodGet, "/v1/loads", ""},
	} {
		want := keysOf(real[x.name], "", map[string]string{})
		got := keysOf(c.json(x.method, x.path, x.body), "", map[string]string{})
		// What a real engine measured in one moment and we do not model.
		for _, k := range []string{".loads[].decode_moments[]"} {
			delete(want, k)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: - real, + simulated:\n%s", x.name, d)
		}
	}
	if _, _, body := c.do(http.MethodPost, "/flush_cache", ""); body != real["flush"] {
		t.Errorf("flush_cache: %q", body)
	}
}

var sampleLine = regexp.MustCompile(`^([a-z0-9:_]+)\{(.*)\} (\S+)$`)
var labelName = regexp.MustCompile(`([a-z_]+)="`)

// families reads a page of metrics: name → kind and the names of its samples with their labels, and the bounds of histograms.
func families(t *testing.T, page string) map[string][]string {
	t.Helper()
	out := map[string]map[string]bool{}
	name := ""
	for line := range strings.Lines(page) {
		line = strings.TrimSuffix(line, "\n")
		if f := strings.Fields(line); f[0] == "#" {
			if f[1] == "TYPE" {
				name = f[2]
				out[name] = map[string]bool{"kind " + f[3]: true}
			}
			continue
		}
		m := sampleLine.FindStringSubmatch(line)
		if m == nil || !strings.HasPrefix(m[1], name) {
			t.Fatalf("not a sample of %s: %q", name, line)
		}
		var labels []string
		for _, l := range labelName.FindAllStringSubmatch(m[2], -1) {
			labels = append(labels, l[1])
		}
		slices.Sort(labels)
		le := ""
		if i := strings.Index(m[2], `le="`); i >= 0 {
			le = m[2][i:]
			le = le[:strings.Index(le[4:], `"`)+4]
		}
		out[name][m[1]+" "+strings.Join(labels, ",")+" "+le] = true
	}
	sorted := map[string][]string{}
	for n, set := range out {
		sorted[n] = slices.Sorted(maps.Keys(set))
	}
	return sorted
}

// TestVLLMMetricsPage: every family that we serve is on the real page with the same kind, sample names, labels and bounds.
func TestVLLMMetricsPage(t *testing.T) {
	raw, err := os.ReadFile("testdata/vllm-0.32.0-metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	real := families(t, string(raw))
	_, c := start(t, Options{Engine: engine.Config{Timing: quick}})
	c.do(http.MethodPost, "/v1/completions", `{"prompt":[1,2,3],"max_tokens":4}`)
	_, h, page := c.do(http.MethodGet, "/metrics", "")
	if ct := h.Get("Content-Type"); ct != "text/plain; version=0.0.4; charset=utf-8" {
		t.Errorf("content type %q", ct)
	}
	ours := families(t, page)
	for _, name := range []string{
		"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:prefix_cache_queries_total",
		"vllm:prefix_cache_hits_total", "vllm:num_preemptions_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total",
		"vllm:request_success_total", "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds", "vllm:cache_config_info",
	} {
		if ours[name] == nil {
			t.Errorf("%s is missing", name)
		}
	}
	for name, got := range ours {
		want := real[name]
		if name == "vllm:cache_config_info" {
			// The real one has 37 labels; ours must be among them.
			have := strings.Split(strings.Fields(want[len(want)-1])[1], ",")
			for _, l := range strings.Split(strings.Fields(got[len(got)-1])[1], ",") {
				if !slices.Contains(have, l) {
					t.Errorf("cache_config_info: no label %s on the real page", l)
				}
			}
			continue
		}
		if strings.HasSuffix(name, "_tokens") && slices.Contains(got, "kind histogram") {
			// The bounds of these follow the model's length, in the real engine too.
			want, got = withoutBounds(want), withoutBounds(got)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: - real, + simulated:\n%s", name, d)
		}
	}
	if !strings.Contains(page, `vllm:generation_tokens_total{engine="0",model_name="perigee-sim"} 4.0`+"\n") {
		t.Error("four tokens were generated, the page does not say so")
	}
}

func withoutBounds(s []string) []string {
	return slices.DeleteFunc(slices.Clone(s), func(x string) bool { return strings.Contains(x, "le=") })
}

// TestVLLMShapes pins the keys of vLLM's answers. There is no captured answer to compare with, only the engine's protocol.
func TestVLLMShapes(t *testing.T) {
	_, c := start(t, Options{Engine: engine.Config{Timing: quick}})
	check := func(name, got string, want ...string) {
		t.Helper()
		var v any
		if err := json.Unmarshal([]byte(got), &v); err != nil {
			t.Fatalf("%s: %v: %s", name, err, got)
		}
		if d := cmp.Diff(want, slices.Sorted(maps.Keys(keysOf(v, "", map[string]string{})))); d != "" {
			t.Errorf("%s: - want, + got:\n%s", name, d)
		}
	}
	_, _, body := c.do(http.MethodPost, "/v1/completions", `{"prompt":"hi","max_tokens":1}`)
	check("completion", body, ".choices[].finish_reason", ".choices[].index", ".choices[].logprobs", ".choices[].prompt_logprobs",
		".choices[].prompt_token_ids", ".choices[].stop_reason", ".choices[].text", ".choices[].token_ids", ".created", ".id",
		".kv_transfer_params", ".model", ".object", ".service_tier", ".system_fingerprint", ".usage.completion_tokens",
		".usage.prompt_tokens", ".usage.prompt_tokens_details.cached_tokens", ".usage.total_tokens")
	chunks := c.stream(t.Context(), "/v1/chat/completions",
		`{"messages":[{"role":"user","content":"hi"}],"max_tokens":2,"stream":true,"stream_options":{"include_usage":true}}`).all()
	if len(chunks) != 4 {
		t.Fatalf("%d chunks, want role, two tokens, usage", len(chunks))
	}
	head := []string{".choices[].delta.content"}
	tail := []string{".choices[].finish_reason", ".choices[].index", ".choices[].logprobs"}
	ends := []string{".created", ".id", ".model", ".object"}
	check("role", chunks[0], slices.Concat(head, []string{".choices[].delta.role"}, tail, ends, []string{".prompt_token_ids"})...)
	check("token", chunks[1], slices.Concat(head, tail, []string{".choices[].token_ids"}, ends)...)
	check("last", chunks[2], slices.Concat(head, tail, []string{".choices[].stop_reason", ".choices[].token_ids"}, ends)...)
	check("usage", chunks[3], slices.Concat(ends, []string{".usage.completion_tokens",
		".usage.prompt_tokens", ".usage.prompt_tokens_details.cached_tokens", ".usage.total_tokens"})...)
	_, _, body = c.do(http.MethodPost, "/tokenize", `{"prompt":"hi"}`)
	check("tokenize", body, ".count", ".max_model_len", ".token_strs", ".tokens[]")
}

// TestStreamsSayTheSame: the chunks of a stream, put together, are the text of the whole answer, in both flavors and for several prompts.
func TestStreamsSayTheSame(t *testing.T) {
	for _, flavor := range []Flavor{VLLM, SGLang} {
		_, c := start(t, Options{Flavor: flavor, Engine: engine.Config{Timing: quick}})
		for _, x := range []struct{ path, body string }{
			{"/v1/completions", `"prompt":[[1,2,3],[4,5]],"max_tokens":5`},
			{"/v1/completions", `"prompt":["one","two","three"],"max_completion_tokens":3`},
			{"/v1/chat/completions", `"messages":[{"role":"system","content":[{"type":"text","text":"be"},{"type":"text","text":" brief"}]},{"role":"user","content":null}],"max_tokens":9`},
		} {
			whole := c.json(http.MethodPost, x.path, "{"+x.body+"}")
			got := map[int]string{}
			reasons := map[int]string{}
			for _, chunk := range c.stream(t.Context(), x.path, "{"+x.body+`,"stream":true}`).all() {
				for _, ch := range decode(t, chunk)["choices"].([]any) {
					ch := ch.(map[string]any)
					i := int(ch["index"].(float64))
					if text, ok := ch["text"].(string); ok {
						got[i] += text
					} else {
						got[i] += ch["delta"].(map[string]any)["content"].(string)
					}
					if r, ok := ch["finish_reason"].(string); ok {
						reasons[i] += r
					}
				}
			}
			for i, ch := range whole["choices"].([]any) {
				ch := ch.(map[string]any)
				text, ok := ch["text"].(string)
				if !ok {
					text = ch["message"].(map[string]any)["content"].(string)
				}
				if text == "" || got[i] != text || reasons[i] != "length" {
					t.Errorf("%s %s, choice %d: streamed %q (%s), whole %q", flavor, x.path, i, got[i], reasons[i], text)
				}
			}
		}
	}
}

// TestConversationsShareTheirPrefix: a second turn finds the first one in the cache, the engine's own answer included.
func TestConversationsShareTheirPrefix(t *testing.T) {
	_, c := start(t, Options{Engine: engine.Config{Timing: quick, BlockSize: 1}})
	first := `{"role":"user","content":"Tell me about KV caches, please."}`
	v := c.json(http.MethodPost, "/v1/chat/completions", `{"messages":[`+first+`],"max_tokens":20}`)
	answer := v["choices"].([]any)[0].(map[string]any)["message"].(map[string]any)["content"].(string)
	v = c.json(http.MethodPost, "/v1/chat/completions",
		`{"messages":[`+first+`,{"role":"assistant","content":"`+answer+`"},{"role":"user","content":"More."}],"max_tokens":1}`)
	usage := v["usage"].(map[string]any)
	// 11 tokens of the first prompt (begin, user, 8 of text, end), the mark of the assistant, and 19 of the answer: the last token's KV was
	// never computed.
	if got := usage["prompt_tokens_details"].(map[string]any)["cached_tokens"]; got != 31.0 {
		t.Errorf("%v of %v tokens cached, want 31", got, usage["prompt_tokens"])
	}
}

// TestErrors: each fault of a request has its status, in each flavor's shape.
func TestErrors(t *testing.T) {
	for _, flavor := range []Flavor{VLLM, SGLang} {
		_, c := start(t, Options{Flavor: flavor, Models: []string{"m"}, Engine: engine.Config{MaxModelLen: 100, Timing: quick}})
		for _, x := range []struct {
			path, body string
			status     int
		}{
			{"/v1/completions", `{"model":"other","prompt":"hi"}`, 404},
			{"/v1/completions", `{"model":"m","prompt":` + ids(0, 100) + `}`, 400},
			{"/v1/completions", `{"model":"m","prompt":[1],"max_tokens":100}`, 400},
			{"/v1/completions", `{"model":"m","prompt":[1],"max_tokens":0}`, 400},
			{"/v1/completions", `{"model":"m","prompt":[1],"n":2}`, 400},
			{"/v1/completions", `{"model":"m","prompt":[]}`, 400},
			{"/v1/completions", `{"model":"m","prompt":""}`, 400},
			{"/v1/completions", `{"model":"m","prompt":{}}`, 400},
			{"/v1/completions", `{"model":"m","prompt":[4294967296]}`, 400},
			{"/v1/completions", `{"model":"m","prompt":[-1]}`, 400},
			{"/v1/completions", `{"model":"m","prompt":[01]}`, 400},
			{"/v1/completions", `{"model":"m"}`, 400},
			{"/v1/completions", `{"model":"m","prompt":[1]`, 400},
			{"/v1/chat/completions", `{"model":"m"}`, 400},
			{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":1}]}`, 400},
			{"/v1/chat/completions", ``, 400},
		} {
			status, _, body := c.do(http.MethodPost, x.path, x.body)
			e := decode(t, body)
			if flavor == VLLM {
				e, _ = e["error"].(map[string]any)
			} else if e["object"] != "error" {
				t.Errorf("%s: %s", x.body, body)
			}
			if status != x.status || e["code"] != float64(x.status) || e["message"] == "" || e["type"] == "" {
				t.Errorf("%s %.60s: status %d: %s", flavor, x.body, status, body)
			}
		}
		if status, _, body := c.do(http.MethodGet, "/nothing", ""); status != 404 || body != `{"detail":"Not Found"}` {
			t.Errorf("status %d: %s", status, body)
		}
	}
}

// TestOnlyItsOwnEndpoints: a flavor does not answer what only the other engine does, and development endpoints are off.
func TestOnlyItsOwnEndpoints(t *testing.T) {
	paths := map[string][]Flavor{
		"/health": {VLLM, SGLang}, "/v1/models": {VLLM, SGLang}, "/metrics": {VLLM, SGLang}, "/ping": {VLLM}, "/version": {VLLM},
		"/load": {VLLM}, "/server_info": {SGLang}, "/model_info": {SGLang}, "/v1/loads": {SGLang}, "/health_generate": {SGLang},
		"/get_load": nil, "/_control": nil,
	}
	for _, flavor := range []Flavor{VLLM, SGLang} {
		_, c := start(t, Options{Flavor: flavor, Control: true})
		for path, has := range paths {
			want := http.StatusNotFound
			if slices.Contains(has, flavor) {
				want = http.StatusOK
			}
			if status, _, _ := c.do(http.MethodGet, path, ""); status != want {
				t.Errorf("%s %s: %d, want %d", flavor, path, status, want)
			}
		}
	}
	_, c := start(t, Options{DevMode: true})
	if v := c.json(http.MethodGet, "/server_info", ""); v["vllm_config"] == nil {
		t.Errorf("vLLM's server_info: %v", v)
	}
}

// TestRequestIDs: vLLM makes the client's id part of its own and echoes it only when told to; SGLang takes rid.
func TestRequestIDs(t *testing.T) {
	_, c := start(t, Options{Engine: engine.Config{Timing: quick}})
	_, h, body := c.do(http.MethodPost, "/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"max_tokens":1}`, "X-Request-Id", "abc")
	if decode(t, body)["id"] != "chatcmpl-abc" || h.Get("X-Request-Id") != "" {
		t.Errorf("%v %s", h, body)
	}
	_, c = start(t, Options{Engine: engine.Config{Timing: quick}, EchoRequestID: true})
	if _, h, _ := c.do(http.MethodPost, "/v1/completions", `{"prompt":"x","max_tokens":1}`, "X-Request-Id", "abc"); h.Get("X-Request-Id") != "abc" {
		t.Errorf("%v", h)
	}
	_, c = start(t, Options{Engine: engine.Config{Timing: quick}, Flavor: SGLang})
	if v := c.json(http.MethodPost, "/v1/completions", `{"prompt":"x","max_tokens":1,"rid":"r1"}`); v["id"] != "r1" {
		t.Errorf("%v", v["id"])
	}
}

// TestTokenizeRoundTrip: detokenize gives back what tokenize took, a token for each four bytes.
func TestTokenizeRoundTrip(t *testing.T) {
	const text = "Grüße aus Zürich — 你好, \"quoted\"\n"
	for flavor, field := range map[Flavor]string{VLLM: "prompt", SGLang: "text"} {
		_, c := start(t, Options{Flavor: flavor})
		v := c.json(http.MethodPost, "/tokenize", `{"prompt":`+string(quote(text))+`}`)
		if v["count"] != float64((len(text)+3)/4) {
			t.Errorf("%v tokens for %d bytes", v["count"], len(text))
		}
		toks, _ := json.Marshal(v["tokens"])
		if back := c.json(http.MethodPost, "/detokenize", `{"tokens":`+string(toks)+`}`); back[field] != text {
			t.Errorf("%q", back)
		}
	}
}

// TestCorruptPage: a page that is not what its chain says ends the request with an error that nobody can take for an answer.
func TestCorruptPage(t *testing.T) {
	s, c := start(t, Options{Engine: engine.Config{Timing: quick, PageBytes: 64}})
	c.json(http.MethodPost, "/v1/completions", `{"prompt":`+ids(0, 40)+`,"max_tokens":1}`)
	var prompt []uint32
	for i := range uint32(40) {
		prompt = append(prompt, i)
	}
	_ = s.owner.do(func() {
		chain := s.owner.core.Chain(engine.Request{Prompt: prompt}, nil)
		s.owner.core.Page(chain[1])[63] ^= 0x80
	})
	if status, _, body := c.do(http.MethodPost, "/v1/completions", `{"prompt":`+ids(0, 40)+`,"max_tokens":1}`); status != 500 {
		t.Errorf("status %d: %s", status, body)
	}
	chunks := c.stream(t.Context(), "/v1/completions", `{"prompt":`+ids(0, 40)+`,"max_tokens":1,"stream":true}`).all()
	if len(chunks) != 1 || decode(t, chunks[0])["error"] == nil {
		t.Errorf("stream: %v", chunks)
	}
	if n := s.Stats().Load.CorruptPages; n != 2 {
		t.Errorf("%d corrupt pages counted, want 2", n)
	}
}
