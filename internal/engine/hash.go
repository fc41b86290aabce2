package engine

import "math/bits"

// BlockHash names a full block: it is a chain over the request's extra keys, every token before the block and the block's
// own tokens. 128 bits, because the cache trusts it without comparing tokens: at a million cached blocks an accidental
// collision has a chance of 1e-27. It is fast, not cryptographic: it guards a simulation, not tenants.
type BlockHash struct{ Hi, Lo uint64 }

// The constants are the first digits of pi; any odd numbers without structure would do.
const (
	mix0 = 0x243f6a8885a308d3
	mix1 = 0x13198a2e03707345
	mix2 = 0xa4093822299f31d1
	mix3 = 0x082efa98ec4e6c89
)

// mum multiplies to 128 bits and folds: each bit of the result depends on every bit of both.
func mum(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// rootHash is the parent of a first block: it stands for what else decides a block's content. Each part goes in with its
// length, so that no salt can pose as an adapter's name.
func rootHash(lora, salt string) BlockHash {
	h := BlockHash{mix2, mix3}
	for _, part := range [...]string{lora, salt} {
		h = h.mix(uint64(len(part)))
		for len(part) > 0 {
			n := min(8, len(part))
			var w uint64
			for i := range n {
				w |= uint64(part[i]) << (8 * i)
			}
			h = h.mix(w)
			part = part[n:]
		}
	}
	return h
}

func (h BlockHash) mix(w uint64) BlockHash {
	return BlockHash{mum(h.Hi^w, mix0^h.Lo), mum(h.Lo^w^mix2, mix1^bits.RotateLeft64(h.Hi, 32))}
}

// Link returns the hash of what by stands for, behind what h stands for: a step of a chain whose tokens are not known.
func (h BlockHash) Link(by BlockHash) BlockHash { return h.mix(by.Hi).mix(by.Lo) }

// next returns the hash of the block that follows h and holds tokens.
func (h BlockHash) next(tokens []uint32) BlockHash {
	n := len(tokens)
	for len(tokens) >= 2 {
		h = h.mix(uint64(tokens[0]) | uint64(tokens[1])<<32)
		tokens = tokens[2:]
	}
	if len(tokens) == 1 {
		h = h.mix(uint64(tokens[0]))
	}
	return h.mix(uint64(n) ^ mix3)
}

// Fill writes the page that belongs to h, whatever its length. It is the only truth about a page's content, wherever the page lies.
func (h BlockHash) Fill(page []byte) {
	x := h.Hi ^ mix0
	for i := 0; i < len(page); i += 8 {
		x += h.Lo | 1
		w := mum(x, mix1)
		for j := i; j < min(i+8, len(page)); j++ {
			page[j] = byte(w)
			w >>= 8
		}
	}
}

// Holds says whether page is what Fill would have written.
func (h BlockHash) Holds(page []byte) bool {
	x := h.Hi ^ mix0
	for i := 0; i < len(page); i += 8 {
		x += h.Lo | 1
		w := mum(x, mix1)
		for j := i; j < min(i+8, len(page)); j++ {
			if page[j] != byte(w) {
				return false
			}
			w >>= 8
		}
	}
	return true
}
