package sse

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// state is everything that a caller can learn of a stream, and whether [DONE] has come as an event of its own.
type state struct {
	Done, Failed bool
	Usage        Usage
	End          Ending
}

func stateOf(s *Sniffer) state {
	return state{s.found.done, s.Failed(), s.Usage(), s.End()}
}

func known(n int64) Count { return Count{N: n, Known: true} }

// vllmStream is how vLLM 0.11 answers with stream_options.include_usage, and sglangStream how SGLang does.
const (
	vllmStream = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}` + "\n\n" +
		`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"\"usage\":{\"prompt_tokens\":99}"},"logprobs":null,"finish_reason":null}]}` + "\n\n" +
		`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"é"},"finish_reason":"length","stop_reason":null}]}` + "\n\n" +
		`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":34,"total_tokens":36,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":32}}}` + "\n\n" +
		"data: [DONE]\n\n"
	sglangStream = ": ping\r\n\r\n" +
		`data: {"id":"x","object":"text_completion","choices":[{"index":0,"text":"a","finish_reason":null}],"usage":null}` + "\r\n\r\n" +
		"event: message\r\nid: 7\r\n" +
		`data: {"id":"x","object":"text_completion",` + "\r\n" + `data: "choices":[{"index":0,"text":"b","finish_reason":"stop"},{"index":1,"finish_reason":"abort"}],"usage":{"prompt_tokens":5,"completion_tokens":0}}` + "\r\n\r\n" +
		"data:[DONE]\r\n\r\n"
)

var streams = []struct {
	name, text string
	want       state
}{
	{"vllm", vllmStream, state{Done: true, End: EndClean,
		Usage: Usage{known(34), known(2), known(36), known(32)}}},
	{"sglang: CRLF, comment, two data lines, no details", sglangStream, state{Done: true, End: EndClean,
		Usage: Usage{Prompt: known(5), Completion: known(0)}}},
	{"CR alone", "data: {\"choices\":[]}\r\rdata: [DONE]\r\r", state{Done: true, End: EndClean}},
	{"mixed line ends", "data: 1\r\n\ndata: 2\r\rdata: 3\n\r\n", state{End: EndUnknown}},
	{"empty", "", state{End: EndUnknown}},
	{"only comments", ": a\n\n: b\n\n", state{End: EndUnknown}},
	{"empty data is an event", "data\n\ndata:\n\ndata: \n\n", state{End: EndUnknown}},
	{"no data is none", "event: x\nid: 1\n\n\n\n", state{End: EndUnknown}},
	{"other fields that begin alike", "datax: 1\n\ndat: 1\n\nDATA: 1\n\n data: 1\n\n", state{End: EndUnknown}},
	{"cut after a whole event", "data: {\"choices\":[]}\n\n", state{End: EndTruncated}},
	{"cut inside an event", "data: {\"cho", state{End: EndTruncated}},
	{"cut between an event's line and its empty line", "data: {\"choices\":[]}\n", state{End: EndTruncated}},
	{"DONE without its empty line", "data: {\"choices\":[]}\n\ndata: [DONE]\n", state{End: EndClean}},
	{"DONE without any line end", "data: {\"choices\":[]}\n\ndata: [DONE]", state{End: EndClean}},
	{"half of DONE", "data: {\"choices\":[]}\n\ndata: [DON", state{End: EndTruncated}},
	{"DONE said by the model", "data: {\"choices\":[{\"text\":\"data: [DONE]\\n\\n\"}]}\n\n", state{End: EndTruncated}},
	{"DONE in a comment", "data: {\"choices\":[]}\n\n: [DONE]\n\n", state{End: EndTruncated}},
	{"DONE as another line's beginning", "data: [DONE]\ndata: x\n\n", state{End: EndUnknown}},
	{"vllm error", "data: {\"error\": {\"message\":\"x\",\"code\":400}}\n\ndata: [DONE]\n\n", state{Done: true, Failed: true, End: EndClean}},
	{"older error", "data: {\"object\":\"error\",\"message\":\"x\"}\n\n", state{Failed: true, End: EndTruncated}},
	{"error null", "data: {\"choices\":[],\"error\":null}\n\n", state{End: EndTruncated}},
	{"error of a choice is none of the stream", "data: {\"choices\":[{\"error\":{}}],\"x\":{\"error\":1}}\n\n", state{End: EndTruncated}},
	{"usage elsewhere", "data: {\"choices\":[{\"usage\":{\"prompt_tokens\":1}}]}\n\n", state{End: EndTruncated}},
	{"usage null keeps the last one", "data: {\"usage\":{\"prompt_tokens\":1}}\n\ndata: {\"usage\":null}\n\n", state{Usage: Usage{Prompt: known(1)}}},
	{"usage twice in an event", "data: {\"usage\":{\"prompt_tokens\":1},\"usage\":{\"total_tokens\":2}}\n\n", state{Usage: Usage{Total: known(2)}}},
	{"usage goes back and forth", `data: {"choices":[{"text":"a"}],"usage":{"total_tokens":1}}` + "\n\n" + `data: {"usage":{"total_tokens":2}}` + "\n\n" +
		`data: {"choices":[{"text":"b"}],"usage":{"total_tokens":1}}` + "\n\n", state{Usage: Usage{Total: known(1)}, End: EndTruncated}},
	{"usage of odd types", "data: {\"usage\":{\"prompt_tokens\":1.5,\"completion_tokens\":\"2\",\"total_tokens\":-1,\"prompt_tokens_details\":[]}}\n\n", state{}},
	{"usage with escapes in its name", "data: {\"us\\u0061ge\":{\"prompt_tokens\":1}}\n\n", state{Usage: Usage{Prompt: known(1)}}},
	{"broken JSON says nothing", "data: {\"usage\":{\"prompt_tokens\":1}\n\ndata: {\"usage\":{\"prompt_tokens\":1}}}\n\n", state{}},
	{"not UTF-8 says nothing", "data: {\"usage\":{\"prompt_tokens\":1},\"x\":\"\xff\"}\n\n", state{}},
	{"another API", "event: response.created\ndata: {\"type\":\"response.created\"}\n\n", state{End: EndUnknown}},
	{"longest event", "data: " + padded(MaxEvent) + "\n\n", state{Usage: Usage{Prompt: known(7)}}},
	{"longer event passes", "data: " + padded(MaxEvent+1) + "\n\ndata: {\"usage\":{\"prompt_tokens\":8}}\n\n", state{Usage: Usage{Prompt: known(8)}}},
	{"long by many lines", strings.Repeat("data: 0123456789\n", MaxEvent/11+1) + "\ndata: [DONE]\n\n", state{Done: true, End: EndClean}},
	{"long comment costs nothing", ": " + strings.Repeat("x", 3*MaxEvent) + "\ndata: [DONE]\n\n", state{Done: true, End: EndClean}},
}

// padded is a usage event of n bytes.
func padded(n int) string {
	const head, tail = `{"usage":{"prompt_tokens":7},"x":"`, `"}`
	return head + strings.Repeat("x", n-len(head)-len(tail)) + tail
}

func TestStreams(t *testing.T) {
	for _, c := range streams {
		t.Run(c.name, func(t *testing.T) {
			var s Sniffer
			s.Write([]byte(c.text))
			if got := stateOf(&s); got != c.want {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// TestEverySplit cuts each stream in two at every byte, and into chunks of each small size.
func TestEverySplit(t *testing.T) {
	for _, c := range streams {
		text := []byte(c.text)
		step := 1 + len(text)/900 // long ones at a sample of places
		for cut := 0; cut <= len(text); cut += step {
			var s Sniffer
			writeScratch(&s, text[:cut])
			writeScratch(&s, text[cut:])
			if got := stateOf(&s); got != c.want {
				t.Fatalf("%s: cut at %d: got %+v, want %+v", c.name, cut, got, c.want)
			}
		}
		for size := 1; size <= 17; size++ {
			if len(text) > MaxEvent && size%8 != 1 {
				continue // three sizes are enough where it takes long
			}
			var s Sniffer
			for rest := text; len(rest) > 0; {
				n := min(size, len(rest))
				writeScratch(&s, rest[:n])
				rest = rest[n:]
				if cap(s.buf) > maxCarried {
					t.Fatalf("%s: keeps %d bytes", c.name, cap(s.buf))
				}
			}
			if got := stateOf(&s); got != c.want {
				t.Fatalf("%s: chunks of %d: got %+v, want %+v", c.name, size, got, c.want)
			}
		}
	}
}

// writeScratch writes a copy and spoils it, so a reference that is kept shows.
func writeScratch(s interface{ Write([]byte) }, p []byte) {
	scratch := bytes.Clone(p)
	s.Write(scratch)
	for i := range scratch {
		scratch[i] = '\n'
	}
}

// model reads a whole stream line by line, slowly and obviously.
func model(text string) state {
	var st state
	openAI := false
	text = strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n")
	rows := strings.Split(text, "\n")
	var data []string
	for _, row := range rows[:len(rows)-1] {
		if row != "" {
			if v, ok := modelValue(row); ok {
				data = append(data, v)
			}
			continue
		}
		if data != nil {
			if joined := strings.Join(data, "\n"); len(joined) <= MaxEvent {
				openAI = modelEvent(&st, joined) || openAI
			}
		}
		data = nil
	}
	last := rows[len(rows)-1]
	pending := strings.Join(data, "\n")
	v, lastIsData := modelValue(last)
	switch {
	case st.Done,
		data != nil && last == "" && len(pending) <= MaxEvent && strings.TrimSpace(pending) == "[DONE]",
		data == nil && lastIsData && len(v) <= MaxEvent && strings.TrimSpace(v) == "[DONE]":
		st.End = EndClean
	case openAI || st.Failed || data != nil || last != "":
		st.End = EndTruncated
	}
	return st
}

func modelValue(row string) (string, bool) {
	name, value, _ := strings.Cut(row, ":")
	return strings.TrimPrefix(value, " "), name == "data"
}

// modelEvent reports whether the event looks like OpenAI's.
func modelEvent(st *state, data string) bool {
	if strings.TrimSpace(data) == "[DONE]" {
		st.Done = true
		return false
	}
	object := modelObject([]byte(data))
	if object == nil || !utf8.ValidString(data) || depth(data) > 512 {
		return false
	}
	var kind string
	if raw, ok := object["object"]; ok && json.Unmarshal(raw, &kind) == nil && kind == "error" {
		st.Failed = true
	}
	if raw, ok := object["error"]; ok && string(raw) != "null" {
		st.Failed = true
	}
	if u := modelObject(object["usage"]); u != nil {
		st.Usage = modelUsage(u)
	}
	_, hasObject := object["object"]
	_, hasChoices := object["choices"]
	return hasObject || hasChoices
}

func modelObject(raw []byte) map[string]json.RawMessage {
	var m map[string]json.RawMessage
	if json.Unmarshal(raw, &m) != nil {
		return nil
	}
	return m
}

func modelUsage(u map[string]json.RawMessage) Usage {
	return Usage{modelCount(u["prompt_tokens"]), modelCount(u["completion_tokens"]), modelCount(u["total_tokens"]),
		modelCount(modelObject(u["prompt_tokens_details"])["cached_tokens"])}
}

func modelCount(raw json.RawMessage) Count {
	n, err := strconv.ParseUint(string(raw), 10, 64)
	if err != nil || n > math.MaxInt64 {
		return Count{}
	}
	return known(int64(n))
}

// depth is the deepest nesting of valid JSON.
func depth(text string) int {
	d, deepest, in := 0, 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case in && c == '\\':
			i++
		case c == '"':
			in = !in
		case in:
		case c == '{' || c == '[':
			d++
			deepest = max(deepest, d)
		case c == '}' || c == ']':
			d--
		}
	}
	return deepest
}

func TestModelAgreesWithTheTable(t *testing.T) {
	for _, c := range streams {
		if got := model(c.text); got != c.want {
			t.Errorf("%s: model says %+v, want %+v", c.name, got, c.want)
		}
	}
}

// TestAlikeEvents streams events that are nearly alike, as they are read by comparison: a difference must
// never be taken for text.
func TestAlikeEvents(t *testing.T) {
	rng := testRand(t)
	texts := []string{"", "a", " word", `\n`, `\"`, `\u00e9\ud83d\ude00`, "é世", `","finish_reason":"stop`, `"},"finish_reason":"length"},{"x":{"y":"`,
		"bad \xff", `bad \x`, "bad \x01", `\`, `"`, strings.Repeat("long ", 100), `","usage":{"prompt_tokens":5},"x":"`}
	shapes := []string{
		`{"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}],"usage":null}`,
		`{"id":"1","object":"chat.completion.chunk","choices":[{"index":1,"delta":{"content":"%s"},"finish_reason":null}]}`,
		`{"id":"1","object":"text_completion","choices":[{"index":0,"text":"%s","finish_reason":null}]}`,
		`{"id":"1","choices":[{"text":"%s","finish_reason":"stop"}]}`,
		`{"id":"1","choices":[{"text":"a"}],"usage":{"prompt_tokens":1,"x":"%s"}}`,
		`{"choices":[{"delta":{"content":"%s"}}],"error":"%[1]s"}`,
		`{"choices":[{"delta":{"content":"%s","content":"%[1]s"}}],"choices":[]}`,
		`{"choices":[{"text":"%s"}],"object":"error"}`,
		// Pairs of the same length, which differ before the text or behind it.
		`{"errno":1,"choices":[{"text":"%s"}]}`,
		`{"error":1,"choices":[{"text":"%s"}]}`,
		`{"choices":[{"text":"%s","finish_reason":null}]}`,
		`{"choices":[{"text":"%s","finish_reason":"eh"}]}`,
	}
	for range 1500 {
		var sb strings.Builder
		shape := shapes[rng.IntN(len(shapes))]
		for range 1 + rng.IntN(8) {
			if rng.IntN(4) == 0 {
				shape = shapes[rng.IntN(len(shapes))]
			}
			data := fmt.Sprintf(shape, texts[rng.IntN(len(texts))])
			if rng.IntN(8) == 0 {
				data = data[:rng.IntN(len(data)+1)]
			}
			sb.WriteString("data: " + data + "\n\n")
		}
		var s Sniffer
		s.Write([]byte(sb.String()))
		if got, want := stateOf(&s), model(sb.String()); got != want {
			t.Fatalf("got  %+v\nwant %+v\n%s", got, want, sb.String())
		}
	}
}

var seed = flag.Uint64("seed", 0, "seed of the random tests; 0 takes the time")

func testRand(t *testing.T) *rand.Rand {
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("replay with -seed=%d", s)
	return rand.New(rand.NewPCG(s, 0))
}

func FuzzSniffer(f *testing.F) {
	for i, c := range streams {
		f.Add([]byte(c.text), uint16(i))
	}
	f.Add([]byte("data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[{\"text\":\"b\",\"finish_reason\":\"stop\"}]}\n\n"), uint16(9))
	f.Fuzz(func(t *testing.T, text []byte, chunk uint16) {
		want := model(string(text))
		for _, size := range []int{1, 1 + int(chunk), len(text)} {
			var s Sniffer
			for rest := text; len(rest) > 0; {
				n := min(size, len(rest))
				writeScratch(&s, rest[:n])
				rest = rest[n:]
			}
			if got := stateOf(&s); got != want {
				t.Fatalf("chunks of %d: got %+v\nwant %+v", size, got, want)
			}
			if cap(s.buf) > maxCarried {
				t.Fatalf("keeps %d bytes", cap(s.buf))
			}
		}
	})
}

// stream64 is a stream of 64 chunks as a fast engine sends it, one write each.
func stream64() [][]byte {
	var chunks [][]byte
	for i := range 64 {
		chunks = append(chunks, fmt.Appendf(nil, `data: {"id":"chatcmpl-3f1b9a6c2d","object":"chat.completion.chunk","created":1764460000,"model":"llama-3.1-8b","choices":[{"index":0,"delta":{"content":" word%d"},"logprobs":null,"finish_reason":null}],"usage":null}`+"\n\n", i))
	}
	return append(chunks, []byte(`data: {"id":"chatcmpl-3f1b9a6c2d","object":"chat.completion.chunk","created":1764460000,"model":"llama-3.1-8b","choices":[],"usage":{"prompt_tokens":34,"total_tokens":98,"completion_tokens":64,"prompt_tokens_details":{"cached_tokens":32}}}`+"\n\n"), []byte("data: [DONE]\n\n"))
}

func TestAllocations(t *testing.T) {
	chunks := stream64()
	if n := testing.AllocsPerRun(20, func() {
		var s Sniffer
		for _, c := range chunks {
			s.Write(c)
		}
	}); n > 1 {
		t.Errorf("%v allocations for a stream of whole events, want 1: what alike ones are compared with", n)
	}
	// With events cut in two, the buffer is made once and then used again.
	var s Sniffer
	if n := testing.AllocsPerRun(20, func() {
		s = Sniffer{}
		for _, c := range chunks {
			s.Write(c[:len(c)/2])
			s.Write(c[len(c)/2:])
		}
	}); n > 2 {
		t.Errorf("%v allocations for a stream of cut events, want 2", n)
	}
	if s.End() != EndClean || !s.Usage().Cached.Known {
		t.Error("the stream was not read")
	}
}

func BenchmarkSniffer(b *testing.B) {
	chunks := stream64()
	n := 0
	for _, c := range chunks {
		n += len(c)
	}
	b.SetBytes(int64(n))
	b.ReportAllocs()
	for b.Loop() {
		var s Sniffer
		for _, c := range chunks {
			s.Write(c)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(chunks)), "ns/chunk")
}
