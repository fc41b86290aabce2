package state

// Digest is a SHA-256 digest. The zero value stands for "none".
type Digest [32]byte

// IsZero says that there is no digest.
func (d Digest) IsZero() bool { return d == Digest{} }

// String is the digest in 64 lower-case hexadecimal digits.
func (d Digest) String() string { return hexText(d[:]) }

// ParseDigest reads what String writes; anything else is ErrInvalid. It does not take upper case, so that one digest has one text.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	if len(s) != 2*len(d) {
		return Digest{}, fail(ErrInvalid, "a digest is 64 hexadecimal digits")
	}
	for i := range d {
		hi, ok1 := nibble(s[2*i])
		lo, ok2 := nibble(s[2*i+1])
		if !ok1 || !ok2 {
			return Digest{}, fail(ErrInvalid, "a digest is 64 lower-case hexadecimal digits")
		}
		d[i] = hi<<4 | lo
	}
	return d, nil
}

// hexText writes bytes in hexadecimal. encoding/hex would do, but reaches fmt.
func hexText(b []byte) string {
	const digits = "0123456789abcdef"
	out := make([]byte, 0, 2*len(b))
	for _, c := range b {
		out = append(out, digits[c>>4], digits[c&15])
	}
	return string(out)
}

func nibble(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	default:
		return 0, false
	}
}
