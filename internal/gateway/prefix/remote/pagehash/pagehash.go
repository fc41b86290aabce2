// Package pagehash names the pages of a prompt as SGLang's router does, for indexers that know them by these names. Perigee's own names are
// in package chain; these are used where somebody else's index is asked, and nowhere else.
//
// It promises the same numbers as SGLang (sgl-router, hashing of KV events):
//
//	digest = SHA-256(the digest before, 32 bytes ‖ the page's tokens, u32 little-endian)
//	hash   = the first 8 bytes of the digest, big-endian, signed
//
// The first page has nothing before its tokens, or, with a cache salt, SHA-256("sglang-cache-salt-v1" ‖ 00 ‖ salt). With bigrams, which
// EAGLE and its like have, a page is of units instead of tokens: unit j is token j, then token j+1, so a prompt of n tokens has n-1.
// An adapter is no part of it: whoever asks for one must not use these names.
//
// The package is pure, and its functions may be called at once.
package pagehash

import (
	"crypto/sha256"
	"encoding/binary"
)

// Scheme says how an engine's pages are cut.
type Scheme struct {
	// PageSize is the units of a page, above 0.
	PageSize int
	// Bigram says that a unit is two tokens.
	Bigram bool
}

// Pages returns how many full pages a prompt of so many tokens has.
func (s Scheme) Pages(tokens int) int { return s.units(tokens) / s.PageSize }

func (s Scheme) units(tokens int) int {
	if s.Bigram {
		return max(0, tokens-1)
	}
	return tokens
}

// saltDomain is what a salt is hashed behind.
const saltDomain = "sglang-cache-salt-v1\x00"

// Append appends the hashes of the prompt's pages, at most so many, and returns the extended slice. A last page that is not full is hashed
// too, as SGLang's router does; no engine keeps one in its cache.
func (s Scheme) Append(dst []int64, tokens []uint32, salt string, most int) []int64 {
	var digest [sha256.Size]byte
	page := make([]byte, 0, sha256.Size+8*s.PageSize) // the digest before and a page of bigrams
	before := 0
	if salt != "" {
		digest, before = sha256.Sum256(append([]byte(saltDomain), salt...)), sha256.Size
	}
	units := s.units(len(tokens))
	for first := 0; first < units && most > 0; first += s.PageSize {
		page = append(page[:0], digest[:before]...)
		for j := first; j < min(first+s.PageSize, units); j++ {
			page = binary.LittleEndian.AppendUint32(page, tokens[j])
			if s.Bigram {
				page = binary.LittleEndian.AppendUint32(page, tokens[j+1])
			}
		}
		digest, before = sha256.Sum256(page), sha256.Size
		dst = append(dst, int64(binary.BigEndian.Uint64(digest[:8])))
		most--
	}
	return dst
}
