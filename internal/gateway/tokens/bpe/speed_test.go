package bpe

import (
	"fmt"
	"os"
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
