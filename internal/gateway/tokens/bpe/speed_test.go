package bpe

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode"
)

// TestAllocs: encoding allocates nothing in steady state.
func TestAllocs(t *testing.T) {
	// The combining characters that prose about tokenizers has would cost normal form its allocations.
	text := strings.Map(func(r rune) rune {
		if unicode.Is(unicode.M, r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(string(unzip(t, "prose.txt.gz"))[:20<<10], ""))
	for _, name := range []string{"llama3", "qwen3", "deepseek", "o200k", "gemma"} {
		tok := tiny(t, name)
		for _, o := range []Options{{AddSpecial: true}, {Cache: NewCache(1 << 20)}} {
			dst := tok.Encode(nil, text, o)
			if n := testing.AllocsPerRun(20, func() { dst = tok.Encode(dst[:0], text, o) }); n != 0 {
				t.Errorf("%s: %v allocations a call, with a cache: %v", name, n, o.Cache != nil)
			}
		}
	}
}

// TestManyAtOnce is for the race detector: calls share the lazy answers and the scratches.
func TestManyAtOnce(t *testing.T) {
	text := string(unzip(t, "prose.txt.gz"))[:8<<10]
	for _, name := range []string{"llama3", "qwen3", "gemma"} {
		tok := tiny(t, name)
		want := tiny(t, name).Encode(nil, text, Options{})
		cache := NewCache(64 << 10)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 5 {
					if got := tok.Encode(nil, text, Options{Cache: cache}); !slices.Equal(got, want) {
						t.Errorf("%s: ids differ", name)
					}
				}
			})
		}
		wg.Wait()
	}
}

// TestScratchIsBounded: a word of a megabyte does not stay in memory.
func TestScratchIsBounded(t *testing.T) {
	tok := tiny(t, "oneword")
	tok.Encode(nil, string(unzip(t, "code.txt.gz")), Options{})
	s := tok.pool.get()
	if cap(s.syms) > keepSymbols || cap(s.heap) > 2*keepSymbols || cap(s.norm) > keepNorm {
		t.Errorf("%d symbols and %d heap entries are kept", cap(s.syms), cap(s.heap))
	}
}

// TestMaxWord: a text with a word over the bound has no ids, wherever the word stands and whatever is remembered, and takes no memory for it; a text without
// one has the ids that it has without a bound.
func TestMaxWord(t *testing.T) {
	prose := string(unzip(t, "code.txt.gz"))[:8<<10]
	for _, name := range tinyNames(t) {
		tok, cache := tiny(t, name), NewCache(1<<20)
		for _, at := range []int{0, 4 << 10, len(prose)} {
			text := prose[:at] + strings.Repeat("\u4e00", 1<<16) + prose[at:] // in no merge of most
			text += strings.Repeat("a", 1<<17)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			ids := tok.Encode(make([]uint32, 0, len(text)), text, Options{Cache: cache, MaxWord: 16 << 10})
			runtime.ReadMemStats(&after)
			whole := tok.Encode(nil, text, Options{})
			if took := after.TotalAlloc - before.TotalAlloc; ids == nil && took > 24*uint64(len(text)) {
				t.Errorf("%s: %d KiB for a text of %d that is not encoded", name, took>>10, len(text)>>10)
			}
			if ids != nil && !slices.Equal(ids, whole) {
				t.Errorf("%s: other ids", name)
			}
			if again := tok.Encode(nil, prose, Options{Cache: cache, MaxWord: 1 << 20}); !slices.Equal(again, tok.Encode(nil, prose, Options{})) {
				t.Errorf("%s: other ids afterwards", name)
			}
		}
		if ids := tok.Encode(nil, strings.Repeat("a", 1<<17), Options{MaxWord: 16 << 10}); tok.split != nil && ids != nil {
			t.Errorf("%s: a long word is encoded", name)
		}
	}
}

func BenchmarkLoad(b *testing.B) {
	for _, name := range names {
		b.Run(name, func(b *testing.B) {
			ofModel(b, name) // or skip
			data, err := os.ReadFile("../../../../.cache/tokenizers/" + name + ".json")
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if _, err := Parse(data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkEncode(b *testing.B) {
	for _, name := range names {
		for _, sample := range []string{"code", "prose"} {
			text := string(unzip(b, sample+".txt.gz"))
			for _, words := range []bool{false, true} {
				b.Run(fmt.Sprintf("%s/%s/words=%v", name, sample, words), func(b *testing.B) {
					tok := ofModel(b, name)
					tok.pool.noWords = !words
					dst := tok.Encode(nil, text, Options{})
					b.SetBytes(int64(len(text)))
					b.ReportAllocs()
					for b.Loop() {
						dst = tok.Encode(dst[:0], text, Options{})
					}
				})
			}
		}
	}
}

// BenchmarkPrefix encodes a text of about 8,192 tokens for the first time and when its prefix is known.
func BenchmarkPrefix(b *testing.B) {
	for _, name := range names {
		tok := ofModel(b, name)
		text := string(unzip(b, "prose.txt.gz"))[:36<<10] + "\nAnd one more turn of the conversation."
		dst := tok.Encode(nil, text, Options{})
		b.Run(fmt.Sprintf("%s/first/%dtokens", name, len(dst)), func(b *testing.B) {
			for b.Loop() {
				dst = tok.Encode(dst[:0], text, Options{Cache: NewCache(1 << 20)})
			}
		})
		b.Run(name+"/again", func(b *testing.B) {
			o := Options{Cache: NewCache(1 << 20)}
			for b.Loop() {
				dst = tok.Encode(dst[:0], text, o)
			}
		})
	}
}
