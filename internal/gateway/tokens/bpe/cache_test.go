package bpe

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// mixed joins random pieces of the golden texts, which hold all that is hard.
func mixed(g *rand.Rand, all []string, bytes int) string {
	odd := []string{"a(b", "zz)", "x\n\n<|end|>x", "é <l> é", "word <w>.", "x wlr wlr y", "b</c>", "क़.", "e\u0301.", "a<r> b", "c<lr>\td", "the word, the the nrm.", "lrn lrn x", "éé e\u0301x, e\u0301y", "a sp b", "x  y",
		"I's 's", "WE'LLx", "_wlr_", "a_the_b", "lrn\tx", "a<w> b<w>", "the_x word_y"}
	for b := (&strings.Builder{}); ; {
		if b.Len() >= bytes {
			return strings.ToValidUTF8(b.String(), "")
		}
		s := all[g.IntN(len(all))]
		if g.IntN(2) == 0 {
			s = odd[g.IntN(len(odd))]
		}
		b.WriteString(s[:min(len(s), 300)])
		b.WriteString([]string{"", " ", "\n", "a", "é", "the b"}[g.IntN(6)])
	}
}

// ends are the ends of the words of s, shifted by from.
func ends(tok *Tokenizer, s string, from int) (list []int) {
	piece := 0
	for i := 0; i < len(s); {
		i = tok.split.next(tok.class, s, i, &piece)
		list = append(list, from+i)
	}
	return list
}

// TestCuts is the proof of cutRule: at each place where a text may be cut, the ids of both sides are those of the whole.
func TestCuts(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	all := texts(t)
	for _, name := range tinyNames(t) {
		tok := tiny(t, name)
		g := rand.New(rand.NewPCG(seed, 1))
		cuts := 0
		for range 60 {
			text := mixed(g, all, 200+g.IntN(400))
			whole := tok.Encode(nil, text, Options{})
			for at := 1; at < len(text); at++ {
				if at = tok.cuts.find(tok, text, at, len(text)); at == 0 {
					break
				}
				cuts++
				got := tok.Encode(tok.Encode(nil, text[:at], Options{}), text[at:], Options{})
				if !slices.Equal(got, whole) {
					t.Fatalf("seed %d, %s: cut before %q, after %q: %v, want %v", seed, name, text[at:], text[:at], got, whole)
				}
				// A small vocabulary does not show all of the words' ends.
				if tok.split != nil && !slices.Equal(append(ends(tok, text[:at], 0), ends(tok, text[at:], at)...), ends(tok, text, 0)) {
					t.Fatalf("seed %d, %s: cut before %q, after %q: the words are others", seed, name, text[at:], text[:at])
				}
			}
		}
		// Some kinds are one word from start to end, or are too odd for the rule.
		if none := slices.Contains([]string{"oneword", "unknownfused", "gemmanormalized", "gemmapart", "gemmaunk", "gemmadrop", "gemmaignore"}, name); none != (cuts == 0) {
			t.Errorf("%s: %d places to cut", name, cuts)
		}
	}
}

// TestCacheIsExact grows conversations, several at once over one cache that is too small for them.
func TestCacheIsExact(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	all := texts(t)
	const limit = 256 << 10
	c := NewCache(limit)
	var wg sync.WaitGroup
	for k, name := range []string{"llama3", "qwen3", "gemma", "added", "llama3", "gemmanormalized"} {
		tok := tiny(t, name)
		wg.Go(func() {
			g := rand.New(rand.NewPCG(seed, uint64(k/4)))
			text := ""
			for range 30 {
				text += mixed(g, all, 1+g.IntN(4000))
				want := tok.Encode(nil, text, Options{AddSpecial: true})
				if got := tok.Encode(nil, text, Options{AddSpecial: true, Cache: c}); !slices.Equal(got, want) {
					t.Errorf("seed %d, %s: ids differ in a text of %d bytes", seed, name, len(text))
					return
				}
				if n := c.Bytes(); n > limit {
					t.Errorf("%d bytes in a cache of %d", n, limit)
				}
			}
		})
	}
	wg.Wait()
	if c.Bytes() < limit/2 {
		t.Errorf("%d bytes in the cache: the test did not fill it", c.Bytes())
	}
}

// TestCacheSavesWork: of a prefix that was encoded before, at most a tenth is encoded again; here that is counted, the
// benchmark takes the time.
func TestCacheSavesWork(t *testing.T) {
	tok := tiny(t, "llama3")
	text := string(unzip(t, "prose.txt.gz"))[:32<<10] // of about 8,192 tokens in a real vocabulary
	c := NewCache(1 << 20)
	tok.Encode(nil, text, Options{Cache: c})
	stored := c.Bytes()
	s := tok.pool.get()
	_, rest := tok.encodeCached(nil, text+" And one more turn.", s, c)
	if len(rest) > len(text)/10 {
		t.Errorf("%d bytes of %d are encoded again", len(rest), len(text))
	}
	if c.Bytes() != stored {
		t.Error("a stretch was not found again")
	}
}

func TestCacheEvictsTheOldest(t *testing.T) {
	text := strings.Repeat("x", 1000)
	one := (&chunk{text: text}).bytes()
	c := NewCache(cacheShards * 3 * one)                                           // three in each part
	key := func(i int) chunkKey { return chunkKey{hash: uint64(i) * cacheShards} } // all in the same
	known := func(i int) bool { _, ok := c.get(nil, key(i), text); return ok }
	for i := range 3 {
		c.put(key(i), text, nil)
	}
	if !known(0) { // which makes 1 the oldest
		t.Fatal("0 was forgotten though there was room")
	}
	c.put(key(3), text, nil)
	if known(1) || !known(0) || !known(2) || !known(3) {
		t.Errorf("known: 0 %v, 1 %v, 2 %v, 3 %v; 1 should have gone", known(0), known(1), known(2), known(3))
	}
	if _, ok := c.get(nil, key(0), "another text of the same hash"); ok {
		t.Error("a stretch was found by its hash alone")
	}
	c.put(key(0), text, nil) // again: not twice in the books
	if c.Bytes() != 3*one {
		t.Errorf("%d bytes, want %d", c.Bytes(), 3*one)
	}
	c.put(key(4), strings.Repeat("x", 4*one), nil)
	if c.Bytes() != 3*one {
		t.Error("a stretch that is larger than its part of the cache was kept, or drove others out")
	}
}
