package bpe

import "hash/maphash"

// maxID bounds token ids: 20 bits hold one, less the value that marks an empty slot. The largest vocabulary in use has
// 262,144 tokens.
const maxID = 1<<20 - 2

type span struct{ off, n uint32 }

// A vocabulary finds the id of a token by its bytes. All tokens lie in one piece of memory, so that a vocabulary of
// 200,000 costs the collector nothing.
type vocabulary struct {
	seed  maphash.Seed // files come from outside: nobody shall build one that makes look-ups slow
	slots []vocabSlot  // open addressing, a power of two, at most half full
	spans []span       // by id; n is 0 for an id without a token
	arena []byte
	count int
}

type vocabSlot struct{ tag, id1 uint32 } // the upper half of the hash; the id plus one, 0: empty

func newVocabulary(tokens, ids int) *vocabulary {
	size := 16
	for size < 2*tokens {
		size *= 2
	}
	return &vocabulary{seed: maphash.MakeSeed(), slots: make([]vocabSlot, size), spans: make([]span, ids)}
}

func (v *vocabulary) bytes(id uint32) []byte {
	s := v.spans[id]
	return v.arena[s.off : s.off+s.n]
}

// add makes the token of span s in the arena known under id. false: there is a token of these bytes.
func (v *vocabulary) add(id uint32, s span) bool {
	h := maphash.Bytes(v.seed, v.arena[s.off:s.off+s.n])
	i := h & uint64(len(v.slots)-1)
	for ; v.slots[i].id1 != 0; i = (i + 1) & uint64(len(v.slots)-1) {
		if o := v.slots[i]; o.tag == uint32(h>>32) && string(v.bytes(o.id1-1)) == string(v.arena[s.off:s.off+s.n]) {
			return false
		}
	}
	v.slots[i] = vocabSlot{uint32(h >> 32), id + 1}
	v.count++
	return true
}

func (v *vocabulary) find(s string) (uint32, bool) { return v.findHash(s, maphash.String(v.seed, s)) }

// findHash is find for a caller that has the hash of s already.
func (v *vocabulary) findHash(s string, h uint64) (uint32, bool) {
	mask := uint64(len(v.slots) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		o := v.slots[i]
		if o.id1 == 0 {
			return 0, false
		}
		if o.tag == uint32(h>>32) && string(v.bytes(o.id1-1)) == s {
			return o.id1 - 1, true
		}
	}
}

// A mergeTable gives the rank of a pair of tokens, and the token that a rank makes.
//
// A slot is 64 bits: 20 of the left id, 20 of the right, 24 of the rank. One load answers most questions, and the
// 446,000 merges of the largest byte-level vocabulary take 8 MiB.
type mergeTable struct {
	slots []uint64
	shift uint
	made  []uint32 // the new token, by rank
}

const (
	noRank    = 1<<24 - 1 // a pair that does not merge; ranks are less
	emptySlot = ^uint64(0)
)

func newMergeTable(merges int) *mergeTable {
	bits := uint(4)
	for 1<<bits < 2*merges {
		bits++
	}
	m := &mergeTable{slots: make([]uint64, 1<<bits), shift: 64 - bits, made: make([]uint32, 0, merges)}
	for i := range m.slots {
		m.slots[i] = emptySlot
	}
	return m
}

// add gives the pair the next rank. A pair that was there gets the new rank, as in the reference implementation.
func (m *mergeTable) add(left, right, made uint32) {
	key := uint64(left)<<20 | uint64(right)
	i := m.slot(key)
	for m.slots[i] != emptySlot && m.slots[i]>>24 != key {
		i = (i + 1) & uint64(len(m.slots)-1)
	}
	m.slots[i] = key<<24 | uint64(len(m.made))
	m.made = append(m.made, made)
}

// slot spreads by a multiplication (the golden ratio in 64 bits) and takes the upper bits, which depend on all of key.
func (m *mergeTable) slot(key uint64) uint64 { return key * 0x9e3779b97f4a7c15 >> m.shift }

func (m *mergeTable) rank(left, right uint32) uint32 {
	key := uint64(left)<<20 | uint64(right)
	for i := m.slot(key); ; i = (i + 1) & uint64(len(m.slots)-1) {
		switch s := m.slots[i]; {
		case s>>24 == key:
			return uint32(s) & noRank
		case s == emptySlot:
			return noRank
		}
	}
}
