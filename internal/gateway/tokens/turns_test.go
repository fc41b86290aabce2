package tokens

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// conversations are such as matter for the shape, and what is easily taken for them.
var conversations = []string{
	`[]`, ` [ ] `, `[{}]`, `[null]`, `[1]`, `["a"]`, `[[]]`, `{}`, `null`, `"[]"`, `[{"role":"user","content":"a"}] `,
	`[{"role":"system","content":"a\\"},{"role":"user","content":"\"}]"}]`,
	` [ { "role" : "user" , "content" : "a" } , { "role" : "assistant" , "content" : "b" } ] `,
	`[{"role":"user","content":[{"type":"text","text":"a"}]}]`, `[{"role":"user","content":null}]`, `[{"role":"user"}]`,
	`[{"role":"user","content":"a","role":"tool"}]`, `[{"Role":"tool","role":"user","content":"a"}]`,
	`[{"r\u006fle":"tool","content":"a"}]`, `[{"role":"t\u006fol","content":"a"}]`, `[{"role":null,"content":"a"}]`, `[{"role":1,"content":"a"}]`,
	`[{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":[1,{}]}"}}]}]`,
	`[{"role":"assistant","tool_calls":null,"content":"a"}]`, `[{"role":"assistant","function_call":{"name":"f"},"content":"a"}]`,
	`[{"role":"assistant","reasoning":"r","content":"a"},{"role":"assistant","reasoning_content":"r","content":"a"}]`,
	`[{"content":{"role":"user"},"role":"developer","x":-1.5e3,"y":true,"z":[[],{},"]"]}]`,
	`[{"role":"user","content":"a"},{"role":"user","content":"b"},{"role":"system","content":"c"}]`,
	`[{"role":"user","content":"` + strings.Repeat(`\\`, 50) + `"}]`,
	`[` + strings.Repeat(`{"role":"user","content":"a"},{"role":"assistant","content":"b"},`, 20) + `{"role":"user","content":"c"}]`,
}

// wantSameShape holds the walker against encoding/json, wherever that takes the text for JSON.
func wantSameShape(t *testing.T, text []byte) {
	t.Helper()
	got := shapeOfValid(text) // must come back, whatever it is
	if want := shapeOf(text); json.Valid(text) && got != want {
		t.Errorf("%s\nis %+v, want %+v", text, got, want)
	}
}

func TestShapeOfValid(t *testing.T) {
	for _, c := range conversations {
		wantSameShape(t, []byte(c))
		for i := range c { // broken off
			wantSameShape(t, []byte(c[:i]))
		}
	}
	if turns, ok := readTurns([]byte(conversations[11]), nil); !ok || len(turns) != 2 || string(turns[0].content) != `"a\\"` {
		t.Errorf("%v, %q", ok, turns)
	}
	seed := rand.Uint64()
	t.Log("seed", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	parts := []string{`{`, `}`, `[`, `]`, `,`, `:`, `"role"`, `"user"`, `"content"`, `"a"`, `"\\"`, `"\""`, `1`, `null`, ` `, `"tool"`}
	for range 20_000 {
		text := []byte(conversations[r.IntN(len(conversations))])
		for range 1 + r.IntN(3) {
			at := r.IntN(len(text) + 1)
			text = slices.Concat(text[:at], []byte(parts[r.IntN(len(parts))]), text[min(len(text), at+r.IntN(4)):])
		}
		wantSameShape(t, text)
	}
}

func FuzzShapeOfValid(f *testing.F) {
	for _, c := range conversations {
		f.Add([]byte(c))
	}
	f.Fuzz(func(t *testing.T, text []byte) { wantSameShape(t, text) })
}

// BenchmarkShape is a conversation of 32 KB, read by both.
func BenchmarkShape(b *testing.B) {
	content, _ := json.Marshal(strings.Repeat("He said \"yes\".\n", 2048))
	messages := fmt.Appendf(nil, `[{"role":"system","content":%s},{"role":"user","content":"a"}]`, content)
	b.Run("valid", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			shapeOfValid(messages)
		}
	})
	b.Run("json", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			shapeOf(messages)
		}
	})
}
