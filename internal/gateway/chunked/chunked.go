// Package chunked reads what the gateway's HTTP server and its HTTP client both have to understand alike of bodies in chunks (RFC 9112,
// section 7.1): two readings of one line are what smuggling needs.
package chunked

// maxDigits bounds the digits of a size: 60 bits hold any body, and fit an int64.
const maxDigits = 15

// ParseSize reads the line before a chunk, without its CRLF, and returns the chunk's bytes; 0 is the last chunk. White space may follow the hexadecimal
// digits; what stands behind a semicolon is an extension, and ignored. It is false for anything else. Any goroutine may call it; line is not kept.
func ParseSize(line []byte) (n int64, ok bool) {
	digits := 0
	for i, c := range line {
		var d byte
		switch {
		case '0' <= c && c <= '9':
			d = c - '0'
		case 'a' <= c && c <= 'f':
			d = c - 'a' + 10
		case 'A' <= c && c <= 'F':
			d = c - 'A' + 10
		default:
			if digits == 0 || !tail(line[i:]) {
				return 0, false
			}
			return n, true
		}
		if digits++; digits > maxDigits {
			return 0, false
		}
		n = n<<4 | int64(d)
	}
	return n, digits > 0
}

// Excess is what a body's chunks have had beside data: more than [Excess.Add] lets pass is a sender who has us read for nothing, since neither a limit on the
// body nor one on a line counts it. The zero value is for a body's beginning. It belongs to whoever reads the body.
type Excess int64

// What is let pass, in bytes: so much for each chunk, which one of a byte needs with its size and line ends, twice the chunk's data, and so much
// more in all. It is net/http's.
const (
	perChunk = 16
	inAll    = 16 << 10
)

// Add takes in a chunk of n bytes behind a line of so many, its end not counted, and tells whether that may pass.
func (e *Excess) Add(line int, n int64) bool {
	allowed := perChunk + 2*min(n, inAll) // more would be of no use, and must not overflow
	*e = max(0, *e+Excess(line)+2*Excess(len("\r\n"))-Excess(allowed))
	return *e <= inAll
}

// tail tells whether white space and an extension are all that stands behind a size.
func tail(rest []byte) bool {
	for _, c := range rest {
		switch c {
		case ' ', '\t':
			continue
		case ';':
			return true
		}
		return false
	}
	return true
}
