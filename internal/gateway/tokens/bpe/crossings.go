package bpe

import "unicode/utf8"

// crossings are the pairs of characters that some merge joins: the last of its left token and the first of its right.
// Between two characters that no merge joins, a text without spaces to split at can be cut before merging, and the
// merges of either side are the same as in the whole: what they depend on lies on their own side.
//
// Without the cuts a text of the Gemma kind is one word of its whole length, and merging costs 10 times as much.
type crossings struct {
	ascii [128][2]uint64
	slots []uint64 // first<<21 | second, plus one; 0: empty
	count int
}

// newCrossings returns nil where a symbol may be other than the characters that it stands for, so that the reasoning
// above would not hold: unknown characters that vanish or fuse, or bytes of characters that take part in merges.
func newCrossings(m *model) *crossings {
	if m.ignoreMerges || !m.byteFallback {
		return nil
	}
	apart := map[uint32]bool{}
	for _, id := range m.fallback {
		if id == noToken {
			return nil
		}
		apart[id] = true
	}
	c := &crossings{slots: make([]uint64, 1<<12)}
	for _, slot := range m.merges.slots {
		if slot == emptySlot {
			continue
		}
		left, right := uint32(slot>>44), uint32(slot>>24)&(1<<20-1)
		if apart[left] || apart[right] {
			return nil
		}
		a, _ := utf8.DecodeLastRune(m.vocab.bytes(left))
		b, _ := utf8.DecodeRune(m.vocab.bytes(right))
		if a < 128 && b < 128 {
			c.ascii[a][b>>6] |= 1 << (b & 63)
		} else {
			c.add(uint64(a)<<21 | uint64(b) + 1)
		}
	}
	return c
}

func (c *crossings) slot(key uint64) uint64 {
	return key * 0x9e3779b97f4a7c15 >> 32 & uint64(len(c.slots)-1)
}

func (c *crossings) add(key uint64) {
	i := c.slot(key)
	for ; c.slots[i] != 0; i = (i + 1) & uint64(len(c.slots)-1) {
		if c.slots[i] == key {
			return
		}
	}
	c.slots[i] = key
	if c.count++; c.count > len(c.slots)/2 {
		old := c.slots
		c.slots, c.count = make([]uint64, 2*len(old)), 0
		for _, k := range old {
			if k != 0 {
				c.add(k)
			}
		}
	}
}

// joins tells whether some merge joins a and b.
func (c *crossings) joins(a, b rune) bool {
	if a < 128 && b < 128 {
		return c.ascii[a][b>>6]>>(b&63)&1 != 0
	}
	key := uint64(a)<<21 | uint64(b) + 1
	for i := c.slot(key); ; i = (i + 1) & uint64(len(c.slots)-1) {
		switch c.slots[i] {
		case key:
			return true
		case 0:
			return false
		}
	}
}

// cut returns the end of the part that starts at byte i of s: the first place that no merge joins.
func (c *crossings) cut(s string, i int) int {
	a, n := utf8.DecodeRuneInString(s[i:])
	i += n
	for i < len(s) {
		b := rune(s[i])
		n = 1
		if b >= utf8.RuneSelf {
			b, n = utf8.DecodeRuneInString(s[i:])
		}
		if !c.joins(a, b) {
			break
		}
		a = b
		i += n
	}
	return i
}
