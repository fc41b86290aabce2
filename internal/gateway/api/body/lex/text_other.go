//go:build !amd64 || race

package lex

import "encoding/binary"

// text reads plain text from i on, by 32 bytes, and returns where it stopped, which may be anywhere in it, and how many escapes it has read: none.
func text(b []byte, i int) (end, escapes int) {
	for ; len(b)-i >= 32; i += 32 {
		w := b[i : i+32 : i+32]
		m := special(binary.LittleEndian.Uint64(w)) | special(binary.LittleEndian.Uint64(w[8:])) |
			special(binary.LittleEndian.Uint64(w[16:])) | special(binary.LittleEndian.Uint64(w[24:]))
		if m&highs != 0 {
			break
		}
	}
	return i, 0
}
