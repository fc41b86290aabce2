package wire

// GreetingSize is the length of a greeting, in bytes.
const GreetingSize = 64

// PrefixSize is how much of a greeting tells whether the peer speaks ZMTP 3 at all. A peer of an earlier version sends this much
// and waits.
const PrefixSize = 11

const (
	mechanism    = "NULL"
	mechanismAt  = 12
	mechanismEnd = 32
)

// AppendGreeting appends the greeting of a peer that speaks ZMTP 3.1 with the NULL mechanism. Under NULL as-server is 0 on both
// sides.
func AppendGreeting(dst []byte) []byte {
	var g [GreetingSize]byte
	g[0], g[9], g[10], g[11] = 0xFF, 0x7F, 3, 1
	// libzmq writes 1 here, the length of an identity in ZMTP 1.0, so that a peer that old reads the signature as a frame.
	g[8] = 1
	copy(g[mechanismAt:mechanismEnd], mechanism)
	return append(dst, g[:]...)
}

// CheckPrefix looks at the first PrefixSize bytes of a greeting, or fewer: it returns an error as soon as they cannot be the
// beginning of a greeting that is understood.
func CheckPrefix(b []byte) error {
	if len(b) > 0 && b[0] != 0xFF {
		// ZMTP 1.0 begins with a length instead; hardly anybody speaks it, and most of what gets here is no ZMTP at all.
		return ErrNotZMTP
	}
	if len(b) > 9 && b[9] != 0x7F {
		return ErrNotZMTP
	}
	if len(b) > 10 && b[10] < 3 {
		return ErrVersion
	}
	return nil
}

// ParseGreeting reads a greeting and returns the minor version to speak: that of the peer, at most 1. A major version above 3 is
// taken as 3.1, which such a peer must step down to. b must have GreetingSize bytes.
func ParseGreeting(b *[GreetingSize]byte) (minor int, err error) {
	if err := CheckPrefix(b[:]); err != nil {
		return 0, err
	}
	name := b[mechanismAt:mechanismEnd]
	for i, c := range name {
		if i < len(mechanism) && c != mechanism[i] || i >= len(mechanism) && c != 0 {
			return 0, ErrMechanism
		}
	}
	if b[10] == 3 && b[11] == 0 {
		return 0, nil
	}
	return 1, nil
}
