package sse

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

const jsonAnswer = `{"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":"\"usage\":{\"prompt_tokens\":9} \\","finish_reason":"stop","usage":{"prompt_tokens":8}}],` +
	`"usage" : { "prompt_tokens": 34, "completion_tokens":2,"total_tokens":36,"prompt_tokens_details":{"cached_tokens":32,"x":["}"]} } , "z":null}` + "\n"

var answers = []struct {
	name, text string
	want       Usage
	complete   bool
}{
	{"vllm", jsonAnswer, Usage{known(34), known(2), known(36), known(32)}, true},
	{"empty", "", Usage{}, false},
	{"no usage", `{"choices":[]}`, Usage{}, true},
	{"usage null", `{"usage":null}`, Usage{}, true},
	{"usage twice", `{"usage":{"prompt_tokens":1},"usage":{"total_tokens":0}}`, Usage{Total: known(0)}, true},
	{"usage then null", `{"usage":{"prompt_tokens":1},"usage":null}`, Usage{}, true},
	{"usage in escapes", `{"\u0075\u0073\u0061\u0067\u0065":{"prompt_tokens":1}}`, Usage{Prompt: known(1)}, true},
	{"usage for a value", `{"a":"usage","b":{"prompt_tokens":1}}`, Usage{}, true},
	{"usage of a list", `[{"usage":{"prompt_tokens":1}},"usage",{"prompt_tokens":1}]`, Usage{}, true},
	{"details null", `{"usage":{"prompt_tokens":1,"prompt_tokens_details":null}}`, Usage{Prompt: known(1)}, true},
	{"cut behind usage", `{"usage":{"prompt_tokens":1}`, Usage{Prompt: known(1)}, false},
	{"cut inside usage", `{"usage":{"prompt_tokens":1`, Usage{}, false},
	{"cut inside a string", `{"a":"}`, Usage{}, false},
	{"two values", `{}{}`, Usage{}, false},
	{"text behind", `{} x`, Usage{}, false},
	{"string behind", `{}"x"`, Usage{}, false},
	{"no JSON", `Internal Server Error`, Usage{}, false},
	{"usage too long", `{"usage":{"prompt_tokens":1,"x":"` + strings.Repeat("x", MaxUsage) + `"}}`, Usage{}, true},
	{"usage behind one too long", `{"usage":{"x":"` + strings.Repeat("x", MaxUsage) + `"},"usage":{"prompt_tokens":1}}`, Usage{Prompt: known(1)}, true},
	{"many backslashes", `{"a":"` + strings.Repeat(`\\`, 99) + `\"","usage":{"prompt_tokens":1}}`, Usage{Prompt: known(1)}, true},
}

func TestAnswers(t *testing.T) {
	for _, c := range answers {
		if got := UsageOf([]byte(c.text)); got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
		for cut := 0; cut <= len(c.text); cut += 1 + len(c.text)/1000 {
			var a Answer
			writeScratch(&a, []byte(c.text[:cut]))
			writeScratch(&a, []byte(c.text[cut:]))
			if a.Usage() != c.want || a.Complete() != c.complete {
				t.Fatalf("%s: cut at %d: %+v, complete %v", c.name, cut, a.Usage(), a.Complete())
			}
		}
	}
}

// modelAnswer is the usage that encoding/json finds.
func modelAnswer(text []byte) Usage {
	u := modelObject(modelObject(text)["usage"])
	if u == nil {
		return Usage{}
	}
	return modelUsage(u)
}

func FuzzAnswer(f *testing.F) {
	for i, c := range answers {
		if len(c.text) < 1<<10 {
			f.Add([]byte(c.text), uint8(i))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, chunk uint8) {
		var whole, parts Answer
		whole.Write(text)
		for rest := text; len(rest) > 0; {
			n := min(1+int(chunk), len(rest))
			writeScratch(&parts, rest[:n])
			rest = rest[n:]
		}
		if whole.Usage() != parts.Usage() || whole.Complete() != parts.Complete() {
			t.Fatalf("whole %+v %v, in parts %+v %v", whole.Usage(), whole.Complete(), parts.Usage(), parts.Complete())
		}
		if cap(parts.buf) > MaxUsage {
			t.Fatalf("keeps %d bytes", cap(parts.buf))
		}
		trimmed := bytes.TrimSpace(text)
		if !json.Valid(text) || trimmed[0] != '{' {
			return
		}
		if !whole.Complete() {
			t.Fatal("valid, but not called complete")
		}
		// A usage that is too long, too deep or not UTF-8 is unknown here, but not to encoding/json.
		if len(text) > MaxUsage || depth(string(text)) > 500 || !utf8.Valid(text) {
			return
		}
		if want := modelAnswer(text); want != whole.Usage() {
			t.Fatalf("got %+v, want %+v", whole.Usage(), want)
		}
	})
}

func TestAnswerAllocations(t *testing.T) {
	var a Answer
	text := []byte(jsonAnswer)
	if n := testing.AllocsPerRun(20, func() {
		a = Answer{}
		a.Write(text[:100])
		a.Write(text[100:])
	}); n > 1 {
		t.Errorf("%v allocations, want 1", n)
	}
	if !a.Complete() {
		t.Error("the answer was not read")
	}
}

func BenchmarkAnswer(b *testing.B) {
	text := []byte(strings.Replace(jsonAnswer, `"text":"`, `"text":"`+strings.Repeat("word \\n and ", 300), 1))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		var a Answer
		a.Write(text)
	}
}
