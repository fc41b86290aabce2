package lore

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"testing"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/script"
)

// tokensOf are so many, the same ones for the same seed.
func tokensOf(seed, n int) (out []uint32) {
	for i := range n {
		out = append(out, uint32(seed*1000+i))
	}
	return out
}

// keysOf are the keys of a prompt's pages, written once more: page by page, from the definition.
func keysOf(seed []byte, tokens []uint32, page int) (out []Key) {
	before := seed
	for ; len(tokens) >= page; tokens = tokens[page:] {
		h := sha256.New()
		h.Write(before)
		for _, t := range tokens[:page] {
			_ = binary.Write(h, binary.LittleEndian, t)
		}
		out = append(out, Key(h.Sum(nil)))
		before = out[len(out)-1][:]
	}
	return out
}

func namesOf(o Options, lora, salt string, tokens []uint32) []chain.Key {
	return chain.Root{Model: o.Model, BlockSize: o.BlockTokens, LoRA: lora, Salt: salt}.Key().Append(nil, tokens, o.BlockTokens)
}

// stored is an event that tells of pages [from, to) of a prompt, by aliases that begin at so many.
func stored(tokens []uint32, page, from, to, aliases int) *prefix.Event {
	e := &prefix.Event{BlockSize: page, Tokens: tokens[from*page : to*page], HasParent: from > 0, Parent: prefix.Hash(aliases + from - 1)}
	for i := from; i < to; i++ {
		e.Hashes = append(e.Hashes, prefix.Hash(aliases+i))
	}
	return e
}

// TestVectors: keys that SGLang 0.5.23 has made itself, by get_hash_str and storage_namespace_seed.
func TestVectors(t *testing.T) {
	for _, v := range []struct {
		extra, salt string
		tokens      []uint32
		key         string
	}{
		{"", "", []uint32{1, 2, 3, 4}, "cf97adeedb59e05bfd73a2b4c2a8885708c4f4f70c84c64b27120e72ab733b72"},
		{"", "tenant-a", []uint32{1, 2, 3, 1<<32 - 1}, "5167c19e1e4d924dbbccdd31162191ff1b1b2ed68e3c5771c18989f67c7ccc83"},
		{"0123abcd", "", []uint32{1, 2, 3, 4}, "e10387f5cfb140fd48daf90fc4f009a0a41f26208f51abd018bd59352b18c197"},
		{"0123abcd", "päge", []uint32{7}, "e46627f2e5d5a68be67c38b66de46816217cc0f8252d6430ba93c927c41b9cf2"},
	} {
		keys := keysOf(Seed(v.extra, v.salt), v.tokens, len(v.tokens))
		if got := hex.EncodeToString(keys[0][:]); got != v.key {
			t.Errorf("%q %q: %s, want %s", v.extra, v.salt, got, v.key)
		}
	}
}

// TestLearns: what events tell, in pieces, is what the pages' own keys and names are, whatever salt and adapter.
func TestLearns(t *testing.T) {
	o := Options{Model: "m", BlockTokens: 4, Adapters: []Adapter{{"tuned", "0123abcd"}}}
	for name, c := range map[string]struct{ lora, extra, salt string }{
		"plain": {}, "salt": {salt: "tenant"}, "adapter": {lora: "tuned", extra: "0123abcd"}, "both": {"tuned", "0123abcd", "tenant"},
	} {
		b := New(o)
		tokens := tokensOf(1, 24)
		keys, names := keysOf(Seed(c.extra, c.salt), tokens, 4), namesOf(o, c.lora, c.salt, tokens)
		var got []Lesson
		for _, part := range [][2]int{{0, 2}, {2, 3}, {3, 6}} {
			e := stored(tokens, 4, part[0], part[1], 100)
			e.LoRA, e.Salt = c.lora, c.salt
			got = b.Apply(e, got)
		}
		var parent chain.Key
		for i, l := range got {
			if want := (Lesson{keys[i], parent, names[i]}); l != want {
				t.Errorf("%s: page %d is %+v, want %+v", name, i, l, want)
			}
			if found, ok := b.Of(keys[i]); !ok || found != l {
				t.Errorf("%s: page %d is known as %+v", name, i, found)
			}
			parent = l.Name
		}
		if want := (Counts{Learned: 6}); len(got) != 6 || b.Counts() != want {
			t.Errorf("%s: %d lessons, %+v", name, len(got), b.Counts())
		}
	}
}

// TestCannot: what cannot be known is counted, and never said otherwise.
func TestCannot(t *testing.T) {
	tokens := tokensOf(1, 24)
	for name, c := range map[string]struct {
		change func(*prefix.Event)
		want   Counts
	}{
		"a parent that is not known":      {func(e *prefix.Event) { e.HasParent, e.Parent = true, 7 }, Counts{Orphans: 6}},
		"an adapter that nobody has told": {func(e *prefix.Event) { e.LoRA = "other" }, Counts{Strange: 6}},
		"no tokens":                       {func(e *prefix.Event) { e.Tokens = nil }, Counts{Strange: 6}},
		"tokens for other pages":          {func(e *prefix.Event) { e.Tokens = e.Tokens[1:] }, Counts{Strange: 6}},
		"pages of another length":         {func(e *prefix.Event) { e.BlockSize = 2 }, Counts{Strange: 6}},
		"what is besides tokens":          {func(e *prefix.Event) { e.Extras = make([][]byte, 6) }, Counts{Strange: 6}},
		"another group":                   {func(e *prefix.Event) { e.Group = 1 }, Counts{}},
		"a removal":                       {func(e *prefix.Event) { e.Kind = prefix.Removed }, Counts{}},
	} {
		b := New(Options{Model: "m", BlockTokens: 4})
		e := stored(tokens, 4, 0, 6, 100)
		c.change(e)
		if got := b.Apply(e, nil); len(got) != 0 || b.Counts() != c.want || b.Len() != 0 {
			t.Errorf("%s: %d lessons, %+v, want %+v", name, len(got), b.Counts(), c.want)
		}
	}
}

// TestAdapters: an adapter for which nothing is hashed, or what is hashed for another one, names no pages: they would be the base model's, or the other one's.
func TestAdapters(t *testing.T) {
	o := Options{Model: "m", BlockTokens: 4, Adapters: []Adapter{
		{"bare", ""}, {"own", "01"}, {"twin", "02"}, {"own", "01"}, {"other", "02"}, {"third", "02"}, {"", "03"}, {"", ""},
	}}
	for lora, want := range map[string]int{"": 6, "own": 6, "bare": 0, "twin": 0, "other": 0, "third": 0} {
		e := stored(tokensOf(1, 24), 4, 0, 6, 100)
		e.LoRA = lora
		if got := New(o).Apply(e, nil); len(got) != want {
			t.Errorf("%d pages of the adapter %q, want %d", len(got), lora, want)
		}
	}
}

// TestLies: however aliases meet and whatever events claim, of a page's key nothing is said but what is in it.
func TestLies(t *testing.T) {
	r := script.Rand(t)
	o := Options{Model: "m", BlockTokens: 2, Most: 16}
	truth := map[Key]Lesson{}
	var prompts [][]uint32
	for p := range 4 {
		tokens := tokensOf(p/2, 16) // two and two begin alike
		if p%2 == 1 {
			copy(tokens[8:], tokensOf(90+p, 8))
		}
		prompts = append(prompts, tokens)
		var parent chain.Key
		for i, k := range keysOf(nil, tokens, 2) {
			truth[k] = Lesson{k, parent, namesOf(o, "", "", tokens)[i]}
			parent = truth[k].Name
		}
	}
	b, said := New(o), 0
	for range 5000 {
		tokens := prompts[r.IntN(len(prompts))]
		from := r.IntN(8)
		e := stored(tokens, 2, from, from+1+r.IntN(8-from), 0)
		lie(r, e)
		for _, l := range b.Apply(e, nil) {
			if want, real := truth[l.Key]; real && l != want {
				t.Fatalf("%+v, want %+v", l, want)
			}
		}
		for k, want := range truth {
			if l, known := b.Of(k); known {
				if said++; l != want {
					t.Fatalf("%+v, want %+v", l, want)
				}
			}
		}
		if b.Len() > o.Most {
			t.Fatalf("%d pages of %d", b.Len(), o.Most)
		}
	}
	if said == 0 {
		t.Error("nothing was ever learned")
	}
}

// lie spoils an event, mostly.
func lie(r *rand.Rand, e *prefix.Event) {
	for i := range e.Hashes {
		if r.IntN(4) == 0 {
			e.Hashes[i] = prefix.Hash(r.IntN(8))
		}
	}
	switch r.IntN(6) {
	case 0:
		e.Parent, e.HasParent = prefix.Hash(r.IntN(8)), r.IntN(4) > 0
	case 1:
		e.Salt = "s"
	case 2:
		e.Tokens = append([]uint32(nil), e.Tokens...)
		e.Tokens[r.IntN(len(e.Tokens))]++
	}
}

// TestForgets: what is followed again and again is kept, however much comes in between; what nobody speaks of is not.
func TestForgets(t *testing.T) {
	b := New(Options{Model: "m", BlockTokens: 4, Most: 8})
	tokens := tokensOf(1, 8)
	b.Apply(stored(tokens, 4, 0, 1, 100), nil)
	for i := range 40 {
		if got := b.Apply(&prefix.Event{BlockSize: 4, Tokens: tokensOf(i, 4), Hashes: []prefix.Hash{prefix.Hash(1000 + i)}, HasParent: true, Parent: 100}, nil); len(got) != 1 {
			t.Fatalf("after %d pages behind it the first one is forgotten", i)
		}
		if b.Len() > 8 {
			t.Fatalf("%d pages are remembered", b.Len())
		}
	}
	if got := b.Apply(&prefix.Event{BlockSize: 4, Tokens: tokensOf(1, 4), Hashes: []prefix.Hash{1}, HasParent: true, Parent: 1000}, nil); len(got) != 0 || b.Counts().Orphans != 1 {
		t.Errorf("%d lessons behind one of which nobody has spoken for 40 pages", len(got))
	}
}
