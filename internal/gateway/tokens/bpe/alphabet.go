package bpe

import "unicode/utf8"

// byteChars gives the character that stands for a byte in a byte-level vocabulary: itself where it prints, else one of
// those from U+0100 on, in the order of the bytes. GPT-2 chose it so that a vocabulary is readable text.
var byteChars = func() (chars [256]rune) {
	next := rune(256)
	for b := range chars {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			chars[b] = rune(b)
		} else {
			chars[b] = next
			next++
		}
	}
	return chars
}()

// charBytes is the way back, -1 for a character that stands for no byte. The last one that does is U+0143.
var charBytes = func() (bytes [0x144]int16) {
	for c := range bytes {
		bytes[c] = -1
	}
	for b, c := range byteChars {
		bytes[c] = int16(b)
	}
	return bytes
}()

// appendBytes appends the bytes that the characters of token stand for. false: one of them stands for none, and dst is
// as it was.
func appendBytes(dst, token []byte) ([]byte, bool) {
	n := len(dst)
	for i := 0; i < len(token); {
		r, size := rune(token[i]), 1
		if r >= utf8.RuneSelf {
			r, size = utf8.DecodeRune(token[i:])
		}
		if int(r) >= len(charBytes) || charBytes[r] < 0 {
			return dst[:n], false
		}
		dst = append(dst, byte(charBytes[r]))
		i += size
	}
	return dst, true
}
