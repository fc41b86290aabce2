package chain

import (
	"encoding/hex"
	"testing"
)

// TestVectors holds the names themselves: another implementation, or this one in another version, has to give the same. They
// were computed with Python's xxhash 3.5 from the description in the package comment, see testdata/vectors.py.
func TestVectors(t *testing.T) {
	tokens := make([]uint32, 300)
	for i := range tokens {
		tokens[i] = uint32(i*7919+13) % 152064
	}
	for name, c := range map[string]struct {
		root Root
		want []string // the root, then the blocks
	}{
		"16":    {Root{Model: "m", BlockSize: 16}, vectors["16"]},
		"128":   {Root{Model: "m", BlockSize: 128}, vectors["128"]},
		"256":   {Root{Model: "m", BlockSize: 256}, vectors["256"]},
		"lora":  {Root{Model: "m", BlockSize: 128, LoRA: "a"}, vectors["lora"]},
		"salt":  {Root{Model: "m", BlockSize: 128, Salt: "a"}, vectors["salt"]},
		"model": {Root{Model: "mä", BlockSize: 128}, vectors["model"]},
	} {
		t.Run(name, func(t *testing.T) {
			got := append([]Key{c.root.Key()}, c.root.Key().Append(nil, tokens, c.root.BlockSize)...)
			if len(got) < len(c.want) || len(got) != 1+len(tokens)/c.root.BlockSize {
				t.Fatalf("%d names", len(got))
			}
			for i, want := range c.want {
				b := got[i].Bytes()
				if s := hex.EncodeToString(b[:]); s != want {
					t.Errorf("name %d is %s, want %s", i, s, want)
				}
				if FromBytes(b) != got[i] {
					t.Errorf("name %d does not survive its bytes", i)
				}
			}
		})
	}
}

// TestWhatSeparates changes one thing after another: each must give other names.
func TestWhatSeparates(t *testing.T) {
	roots := []Root{
		{}, {Model: "a"}, {LoRA: "a"}, {Salt: "a"}, {Model: "a", LoRA: "a"}, {Model: "aa"}, {Model: "a", Salt: "a"},
		{BlockSize: 16}, {BlockSize: 32}, {LoRA: "a", Salt: "a"}, {Salt: "aa"}, {LoRA: "aa"}, {Model: "\x01\x00\x00\x00a"},
	}
	seen := map[Key]any{}
	note := func(k Key, what any) {
		if was, there := seen[k]; there {
			t.Errorf("%+v and %+v have one name", was, what)
		}
		if k.IsZero() {
			t.Errorf("%+v names nothing", what)
		}
		seen[k] = what
	}
	for _, r := range roots {
		note(r.Key(), r)
	}
	r := Root{Model: "m", BlockSize: 2}.Key()
	note(r.Next([]uint32{1, 2}, nil), "1 2")
	note(r.Next([]uint32{2, 1}, nil), "2 1")
	note(r.Next([]uint32{1, 2}, []byte{0}), "1 2 extra")
	note(r.Next([]uint32{1, 2}, nil).Next([]uint32{1, 2}, nil), "1 2 1 2")
}

// TestNextIsTheFormula holds every length and every sort of extra against the bytes that the package comment describes.
func TestNextIsTheFormula(t *testing.T) {
	k := Root{Model: "m", BlockSize: 1}.Key()
	tokens := make([]uint32, 200)
	for i := range tokens {
		tokens[i] = uint32(i+1) * 2654435761
	}
	for n := range tokens {
		for _, extra := range [][]byte{nil, {1}, make([]byte, 200)} {
			b := k.Bytes()
			text := b[:]
			for _, token := range tokens[:n] {
				text = append(text, byte(token), byte(token>>8), byte(token>>16), byte(token>>24))
			}
			if got, want := k.Next(tokens[:n], extra), sum(append(text, extra...)); got != want {
				t.Errorf("%d tokens, %d bytes extra: %v, want %v", n, len(extra), got, want)
			}
		}
	}
}

func TestNextAllocatesNothing(t *testing.T) {
	tokens, extra := make([]uint32, 128), make([]byte, 112)
	k := Root{Model: "m", BlockSize: 128}.Key()
	if n := testing.AllocsPerRun(100, func() { k = k.Next(tokens, extra) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAppend(b *testing.B) {
	tokens := make([]uint32, 8192)
	keys := make([]Key, 0, 512)
	k := Root{Model: "m", BlockSize: 16}.Key()
	b.ReportAllocs()
	for b.Loop() {
		keys = k.Append(keys[:0], tokens, 16)
	}
}
