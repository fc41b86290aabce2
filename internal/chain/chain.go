// Package chain names KV blocks: one name for the same tokens behind the same tokens, whoever computed them.
//
// Engines name their blocks by hashes of their own, each family in its way, some with a seed. Perigee computes a name from
// the tokens themselves, which an engine's events and a publisher give, and a request has; an engine's hash is only an alias.
// So vLLM, SGLang, the simulated engine and the Cache Manager speak of the same prefix.
//
// # The chain, version 1
//
// A name has 128 bits. A chain begins at a root, which stands for what all blocks of a prompt have in common:
//
//	root = H("perigee.chain.v1" ‖ 00 ‖ u32 block size ‖ text(model) ‖ text(LoRA) ‖ text(salt))
//	text(s) = u32 length in bytes ‖ s
//
// and each full block follows from the one before it:
//
//	name = H(parent, 16 bytes ‖ its tokens, u32 each ‖ its extra, if it has any)
//
// H is XXH3 of 128 bits without a seed (xxHash 0.8), all numbers are little-endian, and a name in bytes is the low half, then the
// high half. The tokens need no length: a root fixes the block size. A block that is not full has no name. The extra holds what
// changes a block's content besides tokens, say the hashes of images in it; whoever does not know it cannot name the block,
// and must end the chain there.
//
// XXH3 is fast and not cryptographic: who chooses both prompts can make two have one name. Names therefore only steer. What is
// served for a prompt is decided by the engine's own hash and its namespace, never by a name; a wrong one costs a request time.
// 128 bits instead of 64 because a fleet's index holds 10 million names for months: at 64 an accident has a chance of one in
// 400,000 for each generation of them, at 128 none that matters.
//
// The package is pure, and its functions may be called at once.
package chain

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// Size is the length of a name in bytes.
const Size = 16

// Key is the name of a block, or of a root. The zero value names nothing: no input is known that hashes to it.
type Key struct{ Lo, Hi uint64 }

// IsZero tells whether k names nothing.
func (k Key) IsZero() bool { return k == Key{} }

// Bytes returns k as it goes over a wire and onto a disk.
func (k Key) Bytes() (b [Size]byte) {
	k.put(b[:])
	return b
}

// FromBytes is the inverse of [Key.Bytes].
func FromBytes(b [Size]byte) Key {
	return Key{Lo: binary.LittleEndian.Uint64(b[:8]), Hi: binary.LittleEndian.Uint64(b[8:])}
}

// Root is what the blocks of a prompt have in common. Roots that differ in anything share no block.
type Root struct {
	// Model is the base model's id, the same for all its adapters.
	Model string
	// BlockSize is the tokens of a block, above 0. Several block sizes are several domains: their blocks never match.
	BlockSize int
	// LoRA names the adapter; empty: none.
	LoRA string
	// Salt is the cache salt that keeps tenants apart; empty: none.
	Salt string
}

// Key returns the name at which the chain begins.
func (r Root) Key() Key {
	b := make([]byte, 0, 128)
	b = append(b, "perigee.chain.v1\x00"...)
	b = binary.LittleEndian.AppendUint32(b, uint32(r.BlockSize))
	for _, s := range [...]string{r.Model, r.LoRA, r.Salt} {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	return sum(b)
}

// inline is the bytes that are hashed without an allocation: a block of 128 tokens, the largest that engines use by default
// (vLLM on CPU), with an extra of 112 bytes.
const inline = Size + 4*128 + 112

// Next returns the name of the full block that follows k. The caller gives all its tokens and nil for no extra. It allocates
// only for a block that is larger than engines' usual ones.
func (k Key) Next(tokens []uint32, extra []byte) Key {
	if len(tokens) == 16 && len(extra) == 0 {
		return k.next16((*[16]uint32)(tokens))
	}
	var space [inline]byte
	b := space[:]
	n := Size + 4*len(tokens) + len(extra)
	if n > inline {
		b = make([]byte, n)
	}
	k.put(b)
	put(b[Size:], tokens)
	copy(b[Size+4*len(tokens):], extra)
	return sum(b[:n])
}

// next16 is Next for the commonest block: most of Next's time is to clear and to fill its space, and here that is as large as it must be.
func (k Key) next16(tokens *[16]uint32) Key {
	var b [Size + 4*16]byte
	k.put(b[:])
	for i := range 8 {
		binary.LittleEndian.PutUint64(b[Size+8*i:], uint64(tokens[2*i])|uint64(tokens[2*i+1])<<32)
	}
	return sum(b[:])
}

// Append appends the names of the full blocks of tokens that follow k, and returns the extended slice; the tokens of a last block
// that is not full are left over. blockSize is the root's.
func (k Key) Append(dst []Key, tokens []uint32, blockSize int) []Key {
	for len(tokens) >= blockSize {
		k = k.Next(tokens[:blockSize], nil)
		dst = append(dst, k)
		tokens = tokens[blockSize:]
	}
	return dst
}

func (k Key) put(b []byte) {
	binary.LittleEndian.PutUint64(b, k.Lo)
	binary.LittleEndian.PutUint64(b[8:], k.Hi)
}

// put writes the tokens, two at a time.
func put(b []byte, tokens []uint32) {
	for len(tokens) >= 2 && len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, uint64(tokens[0])|uint64(tokens[1])<<32)
		b, tokens = b[8:], tokens[2:]
	}
	if len(tokens) > 0 {
		binary.LittleEndian.PutUint32(b, tokens[0])
	}
}

func sum(b []byte) Key {
	h := xxh3.Hash128(b)
	return Key{Lo: h.Lo, Hi: h.Hi}
}
