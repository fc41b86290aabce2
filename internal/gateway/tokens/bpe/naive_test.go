package bpe

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// naive merges as the definition says: again and again the pair of the lowest rank, the leftmost of them.
type naive struct {
	vocab map[string]uint32
	ranks map[[2]string]int
}

func (n naive) merge(syms []string) (ids []uint32) {
	for {
		best, at := -1, 0
		for i := 1; i < len(syms); i++ {
			if r, ok := n.ranks[[2]string{syms[i-1], syms[i]}]; ok && (best < 0 || r < best) {
				best, at = r, i
			}
		}
		if best < 0 {
			break
		}
		syms = slices.Replace(syms, at-1, at+1, syms[at-1]+syms[at])
	}
	for _, s := range syms {
		ids = append(ids, n.vocab[s])
	}
	return ids
}

// randomModel draws a vocabulary over letters, and the merges in an order of their own. With fallback the bytes of other
// characters have tokens.
func randomModel(g *rand.Rand, letters []string, fallback bool) (naive, map[string]any) {
	n := naive{vocab: map[string]uint32{}, ranks: map[[2]string]int{}}
	var tokens []string
	add := func(t string) {
		if _, ok := n.vocab[t]; !ok {
			n.vocab[t] = uint32(len(n.vocab))
			tokens = append(tokens, t)
		}
	}
	for _, l := range letters {
		add(l)
	}
	merges := [][2]string{}
	for range g.IntN(60) {
		p := [2]string{tokens[g.IntN(len(tokens))], tokens[g.IntN(len(tokens))]}
		if _, twice := n.ranks[p]; !twice {
			n.ranks[p] = 0
			add(p[0] + p[1])
			merges = append(merges, p)
		}
	}
	g.Shuffle(len(merges), func(i, j int) { merges[i], merges[j] = merges[j], merges[i] })
	for i, p := range merges {
		n.ranks[p] = i
	}
	if fallback {
		for b := range 256 {
			add(fmt.Sprintf("<0x%02X>", b))
		}
	}
	return n, map[string]any{"type": "BPE", "vocab": n.vocab, "merges": merges, "byte_fallback": fallback}
}

// TestNaive compares with the definition on random vocabularies: the two ways to merge, and cutting where nothing can
// merge across.
func TestNaive(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	g := rand.New(rand.NewPCG(seed, 0))
	rounds := 400
	if raceEnabled {
		rounds = 40
	}
	for range rounds {
		letters := []string{"a", "b", "c", "é", "日"}[:2+g.IntN(4)]
		chars := g.IntN(2) == 0
		if !chars {
			letters = []string{"a", "b", "c", "d"}[:2+g.IntN(3)]
		}
		n, model := randomModel(g, letters, chars)
		file := map[string]any{"version": "1.0", "model": model}
		if !chars {
			file["pre_tokenizer"] = map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}
		}
		data, err := json.Marshal(file)
		if err != nil {
			t.Fatal(err)
		}
		tok, err := Parse(data)
		if err != nil {
			t.Fatalf("seed %d: %v in %s", seed, err, data)
		}
		if chars && tok.model.cross == nil {
			t.Fatal("the text is not cut before merging")
		}
		for range 20 {
			var syms []string
			for range 1 + g.IntN(300) {
				if chars && g.IntN(10) == 0 {
					for _, b := range []byte("ü") {
						syms = append(syms, fmt.Sprintf("<0x%02X>", b))
					}
					continue
				}
				syms = append(syms, letters[g.IntN(len(letters))])
			}
			text := strings.ReplaceAll(strings.Join(syms, ""), "<0xC3><0xBC>", "ü")
			want := n.merge(syms)
			for range 2 { // the second time from the word cache
				if got := tok.Encode(nil, text, Options{}); !slices.Equal(got, want) {
					t.Fatalf("seed %d: %q: %v, want %v, of %s", seed, text, got, want, data)
				}
			}
		}
	}
}
