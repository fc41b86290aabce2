package body

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// prose is English with a line break now and then, escaped as every client escapes it.
const prose = `The scheduler admits a request when its pages fit; otherwise it waits, and the pages of the oldest finished ` +
	`request are taken first.\nA prefix that several requests share is computed once, which is why the order of arrival matters ` +
	`less than the \"shape\" of the prompts: long system prompts, short questions.\n\n`

// chatBody is a chat of 20 messages and about n bytes.
func chatBody(n int) []byte {
	var sb strings.Builder
	sb.WriteString(`{"model":"meta-llama/Llama-3.1-8B-Instruct","messages":[`)
	each := n/20 - 35
	for i := range 20 {
		if i > 0 {
			sb.WriteByte(',')
		}
		role := [2]string{"user", "assistant"}[i%2]
		text := strings.Repeat(prose, each/len(prose)+1)[:max(each, 1)]
		fmt.Fprintf(&sb, `{"role":"%s","content":"%s"}`, role, strings.TrimRight(text, `\`))
	}
	sb.WriteString(`],"temperature":0.7,"top_p":0.95,"max_tokens":512,"stream":true,"stream_options":{"include_usage":true}}`)
	return []byte(sb.String())
}

// idsBody is a completion of n token ids, spelled as Python's json does.
func idsBody(n int) []byte {
	var sb strings.Builder
	sb.WriteString(`{"model": "meta-llama/Llama-3.1-8B-Instruct", "prompt": [`)
	for i := range n {
		if i > 0 {
			sb.WriteString(", ")
		}
		fmt.Fprint(&sb, i*7919%128000)
	}
	sb.WriteString(`], "max_tokens": 128}`)
	return []byte(sb.String())
}

// wideBody is a chat in a language of three bytes a character.
func wideBody(n int) []byte {
	return []byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("前缀缓存使得共享的提示只需计算一次。", n/51) + `"}]}`)
}

var benchBodies = []struct {
	name string
	kind Kind
	body []byte
}{
	{"chat-1KB", Chat, chatBody(1 << 10)},
	{"chat-32KB", Chat, chatBody(32 << 10)},
	{"chat-99KB", Chat, chatBody(99_000)},
	{"chat-99KB-Chinese", Chat, wideBody(99_000)},
	{"ids-15000", Completion, idsBody(15_000)},
}

// BenchmarkScan stands beside encoding/json.Valid, which checks less and reads nothing, in the same run.
func BenchmarkScan(b *testing.B) {
	for _, c := range benchBodies {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Scan(c.body, c.kind); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(c.name+"/json.Valid", func(b *testing.B) {
			b.SetBytes(int64(len(c.body)))
			for b.Loop() {
				if !json.Valid(c.body) {
					b.Fatal("not valid")
				}
			}
		})
	}
}

// BenchmarkPatch injects two fields, asks for usage and strips one key of a body of 99 KB.
func BenchmarkPatch(b *testing.B) {
	x := benchBodies[2].body
	f, err := Scan(x, Chat)
	if err != nil {
		b.Fatal(err)
	}
	yes := []byte(`true`)
	pieces := make([][]byte, 0, 16)
	b.ReportAllocs()
	for b.Loop() {
		p := NewPatch(x, &f)
		p.Remove(TopP)
		p.Set(N, yes)
		p.Set(Temperature, yes)
		pieces = p.Pieces(pieces[:0])
	}
	if len(pieces) < 4 {
		b.Fatal("nothing was patched")
	}
}

// TestAllocations holds the budget of the request's path: none for a body of any size, one when the model's
// name (or rid) is spelled with escapes, and none for a contract and a patch with room for the pieces.
func TestAllocations(t *testing.T) {
	scan := func(b []byte, kind Kind) float64 {
		return testing.AllocsPerRun(20, func() {
			if _, err := Scan(b, kind); err != nil {
				t.Fatal(err)
			}
		})
	}
	for _, c := range benchBodies {
		if n := scan(c.body, c.kind); n != 0 {
			t.Errorf("%s: %v allocations, want 0", c.name, n)
		}
	}
	if n := scan([]byte(`{"mod\u0065l":"m","n":"1_0","rid":"x","prompt":["a\n"],"extra_key":1}`), Completion); n != 0 {
		t.Errorf("escapes in a name of a key: %v allocations, want 0", n)
	}
	if n := scan([]byte(`{"model":"\u006d"}`), Chat); n != 1 {
		t.Errorf("escapes in the model: %v allocations, want 1", n)
	}

	contract, err := ParseContract([]byte(`{"temperature":{"min":0,"max":1},"top_p":0.95,"n":1,"min_p":0}`), Reject)
	if err != nil {
		t.Fatal(err)
	}
	x := benchBodies[0].body
	pieces := make([][]byte, 0, 16)
	options := []byte(`{"include_usage":true}`)
	var f Facts // a part of the caller's request: the compiler cannot see that the pieces do not keep it
	if n := testing.AllocsPerRun(20, func() {
		var err error
		if f, err = Scan(x, Chat); err != nil {
			t.Fatal(err)
		}
		p := NewPatch(x, &f)
		contract.Inject(&p, contract.Apply(x, &f))
		p.RemoveAll(ProtectedKeys)
		p.Set(StreamOptions, options)
		if pieces = p.Pieces(pieces[:0]); len(pieces) != 7 {
			t.Fatalf("%d pieces", len(pieces))
		}
	}); n != 0 {
		t.Errorf("scan, contract and patch: %v allocations, want 0", n)
	}
}
