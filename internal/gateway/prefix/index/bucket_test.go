package index

import (
	"math/rand/v2"
	"testing"
)

// TestLook holds look, in both its forms, and free against a loop, with entries that differ from the tag in one bit, or in none, or are free.
func TestLook(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 20_000 {
		ids := uint32(1)<<(1+r.IntN(idBits)) - 1
		tag := r.Uint32() &^ ids
		if r.IntN(4) == 0 {
			tag = 0
		}
		var b bucket
		var want, empty uint32
		b.set(0, r.Uint32())
		for slot := 1; slot <= slots; slot++ {
			e := tag | r.Uint32()&ids
			switch r.IntN(4) {
			case 0:
				e ^= 1 << r.IntN(32)
			case 1:
				e = r.Uint32N(3)
			}
			b.set(slot, e)
			if e&^ids == tag {
				want |= 1 << slot
			}
			if e == 0 {
				empty |= 1 << slot
			}
		}
		for name, f := range map[string]func(*bucket, uint32, uint32) (uint32, uint32){"look": look, "matches": (*bucket).matches} {
			if got, word := f(&b, tag, ids); got != want || word != b.word() {
				t.Fatalf("%s of %x with tag %x and numbers %x: slots %x, word %x, want %x, %x", name, b, tag, ids, got, word, want, b.word())
			}
		}
		if got := free(&b); got != empty {
			t.Fatalf("%x has the free slots %x, want %x", b, got, empty)
		}
	}
}
