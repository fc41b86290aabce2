package tokens

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/tokens/bpe"
)

// words returns about n bytes of text that looks like prose to a tokenizer.
func words(g *rand.Rand, n int) string {
	var b strings.Builder
	for b.Len() < n {
		for range 1 + g.IntN(9) {
			b.WriteByte(byte('a' + g.IntN(26)))
		}
		b.WriteString([]string{" ", " ", " ", ", ", ". ", "\n", " é", " 12"}[g.IntN(8)])
	}
	return b.String()
}

// conversation returns messages of at least so many bytes of text, in turns of four kilobytes.
func conversation(g *rand.Rand, bytes int) []map[string]string {
	turns := []map[string]string{{"role": "system", "content": words(g, 2000)}}
	for n := 0; n < bytes; n += 4000 {
		turns = append(turns, map[string]string{"role": []string{"user", "assistant"}[len(turns)%2^1], "content": words(g, 4000)})
	}
	return turns
}

func encode(t testing.TB, turns []map[string]string) []byte {
	t.Helper()
	text, err := json.Marshal(turns)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestGrowing: conversations that grow, several at once through two models and one memory that is far too small for them, have the ids
// that they have without it, and the memory keeps its bound.
func TestGrowing(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	const limit = 128 << 10
	cache := bpe.NewCache(limit)
	one := testModel(t, nil)
	other := open(t, map[string]string{"tokenizer.json": tinyFile(t, "qwen3"), "tokenizer_config.json": testConfig, "chat_template.jinja": testTemplate}, nil)
	var wg sync.WaitGroup
	most := make([]int, 6)
	for i := range most {
		plain := []*Model{one, other}[i%2]
		cached := plain.WithCache(cache)
		wg.Go(func() {
			g := rand.New(rand.NewPCG(seed, uint64(i/2))) // two have the same text
			var turns []map[string]string
			for range 20 {
				turns = append(turns, conversation(g, 1+g.IntN(8000))...)
				r := Request{Messages: encode(t, turns)}
				want, _ := plain.Measure(r)
				got, ok := cached.Measure(r)
				if !ok || !got.Exact || !slices.Equal(got.IDs, want.IDs) {
					t.Errorf("seed %d: %d: ids differ in a conversation of %d turns", seed, i, len(turns))
					return
				}
				most[i] = max(most[i], cache.Bytes())
			}
		})
	}
	wg.Wait()
	for _, n := range most {
		if n > limit || n < limit/2 {
			t.Errorf("%d bytes in a memory of %d", n, limit)
		}
	}
}

// BenchmarkGrowing is what one more turn of 64 bytes costs on a conversation of 8,192 tokens of prose: for the first time, each a
// conversation of its own, and with its beginning remembered. Real tokenizers are taken where scripts/tokenizers.sh has fetched them,
// and a small one in any case, whose tokens are shorter. "measure" is the whole of what a request costs, "encode" the tokenizer's part.
func BenchmarkGrowing(b *testing.B) {
	source, err := os.ReadFile(filepath.Join("template", "testdata", "templates", "Qwen3-8B-Q8_0.jinja"))
	if err != nil {
		b.Fatal(err)
	}
	prose := unzip(b, filepath.Join("bpe", "testdata", "prose.txt.gz"))
	for _, name := range []string{"tiny", "llama3_1", "qwen3", "deepseek_v3", "gptoss", "gemma3"} {
		text := tinyFile(b, "qwen3")
		if name != "tiny" {
			file, err := os.ReadFile(filepath.Join("..", "..", "..", ".cache", "tokenizers", name+".json"))
			if err != nil {
				continue
			}
			text = string(file)
		}
		m := open(b, map[string]string{"tokenizer.json": text, "chat_template.jinja": string(source)}, nil)
		if err := m.TemplateError(); err != nil {
			b.Fatal(err)
		}
		bytes := len(prose) * 8192 / len(m.Encode(prose, false))
		cache := bpe.NewCache(64 << 20)
		for _, c := range []struct {
			name string
			m    *Model
			move int // from one request's beginning to the next one's
		}{{"first", m, (len(prose) - bytes) / 64}, {"again", m.WithCache(cache), 0}} {
			var requests []Request
			var texts []string
			for i := range 64 {
				turns := []map[string]string{{"role": "user", "content": strings.ToValidUTF8(prose[i*c.move:][:bytes], "")}, {"role": "assistant", "content": fmt.Sprint(i, prose[i*100:][:64])}}
				r := Request{Messages: encode(b, turns)}
				f, _ := c.m.Measure(r)
				text, _ := m.Decode(f.IDs, false, 1<<30)
				requests, texts = append(requests, r), append(texts, text)
			}
			b.Run(name+"/measure/"+c.name, func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					c.m.Measure(requests[i%64])
				}
			})
			b.Run(name+"/encode/"+c.name, func(b *testing.B) {
				b.ReportAllocs()
				var ids []uint32
				for i := 0; b.Loop(); i++ {
					ids = c.m.tok.Encode(ids[:0], texts[i%64], bpe.Options{Cache: c.m.cache})
				}
				b.ReportMetric(float64(len(ids)), "tokens")
			})
		}
		b.Logf("%s: %d bytes are remembered", name, cache.Bytes())
	}
}
