package wire

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// reader is a place in a payload. Its methods read one value; when they return false the place is undefined, and whoever wants to go
// on goes back to where a value began.
type reader struct {
	b []byte
	i int
}

func (r *reader) left() int { return len(r.b) - r.i }

// peek returns the first byte of the next value, or the one byte that msgpack never uses.
func (r *reader) peek() byte {
	if r.i >= len(r.b) {
		return 0xc1
	}
	return r.b[r.i]
}

func (r *reader) null() bool {
	if r.peek() != 0xc0 {
		return false
	}
	r.i++
	return true
}

// big reads n bytes big-endian, after one byte of type.
func (r *reader) big(n int) (v uint64, ok bool) {
	if r.left() < 1+n {
		return 0, false
	}
	p := r.b[r.i+1:]
	switch n {
	case 1:
		v = uint64(p[0])
	case 2:
		v = uint64(binary.BigEndian.Uint16(p))
	case 4:
		v = uint64(binary.BigEndian.Uint32(p))
	default:
		v = binary.BigEndian.Uint64(p)
	}
	r.i += 1 + n
	return v, true
}

// number reads an integer by its 64 bits; negative tells whether these are those of a negative one.
func (r *reader) number() (v uint64, negative, ok bool) {
	c := r.peek()
	switch {
	case c < 0x80:
		r.i++
		return uint64(c), false, true
	case c >= 0xe0:
		r.i++
		return uint64(int64(int8(c))), true, true
	case c >= 0xcc && c <= 0xcf:
		v, ok = r.big(1 << (c - 0xcc))
		return v, false, ok
	case c >= 0xd0 && c <= 0xd3:
		n := 1 << (c - 0xd0)
		v, ok = r.big(n)
		shift := 64 - 8*n
		v = uint64(int64(v<<shift) >> shift)
		return v, int64(v) < 0, ok
	}
	return 0, false, false
}

// float reads a number of any kind.
func (r *reader) float() (float64, bool) {
	switch r.peek() {
	case 0xca:
		v, ok := r.big(4)
		return float64(math.Float32frombits(uint32(v))), ok
	case 0xcb:
		v, ok := r.big(8)
		return math.Float64frombits(v), ok
	}
	v, negative, ok := r.number()
	if negative {
		return float64(int64(v)), ok
	}
	return float64(v), ok
}

// length reads a header whose short form has its length in the low bits of the type, and whose others follow the codes given; code8
// is 0 where there is none.
func (r *reader) length(short, mask, code8, code16, code32 byte) (int, bool) {
	c := r.peek()
	var v uint64
	ok := true
	switch {
	case mask != 0 && c&^mask == short:
		r.i++
		return int(c & mask), true
	case code8 != 0 && c == code8:
		v, ok = r.big(1)
	case c == code16:
		v, ok = r.big(2)
	case c == code32:
		v, ok = r.big(4)
	default:
		ok = false
	}
	// Each element takes a byte at least, so a larger length is a lie; this is also what bounds memory.
	return int(v), ok && v <= uint64(r.left())
}

func (r *reader) array() (int, bool) { return r.length(0x90, 0x0f, 0, 0xdc, 0xdd) }
func (r *reader) object() (int, bool) {
	return r.length(0x80, 0x0f, 0, 0xde, 0xdf)
}

// text reads a string or bytes; they are part of the payload.
func (r *reader) text() (b []byte, isString, ok bool) {
	var n int
	if c := r.peek(); c >= 0xc4 && c <= 0xc6 {
		n, ok = r.length(0, 0, 0xc4, 0xc5, 0xc6)
	} else {
		isString = true
		n, ok = r.length(0xa0, 0x1f, 0xd9, 0xda, 0xdb)
	}
	if !ok || n > r.left() {
		return nil, false, false
	}
	b = r.b[r.i : r.i+n : r.i+n]
	r.i += n
	return b, isString, true
}

// fixed are the bytes that follow the types from 0xc0 on which have no length of their own; -1 for those that have one.
var fixed = [0x20]int8{
	0, -1, 0, 0, -1, -1, -1, -1, -1, -1, 4, 8, 1, 2, 4, 8, // nil, (never used), false, true, bin ×3, ext ×3, floats, uints
	1, 2, 4, 8, 2, 3, 5, 9, 17, -1, -1, -1, -1, -1, -1, -1, // ints, fixext ×5, str ×3, arrays, maps
}

// skip passes over n values with all that is in them. It counts what is still to come instead of calling itself, so depth costs nothing.
func (r *reader) skip(n int) bool {
	for todo := int64(n); todo > 0; todo-- {
		c := r.peek()
		switch {
		case c < 0x80 || c >= 0xe0:
			r.i++
		case c < 0x90:
			todo += 2 * int64(c&0x0f)
			r.i++
		case c < 0xa0:
			todo += int64(c & 0x0f)
			r.i++
		case c < 0xc0:
			r.i += 1 + int(c&0x1f)
		case fixed[c-0xc0] >= 0:
			r.i += 1 + int(fixed[c-0xc0])
		default:
			more, ok := r.skipLong(c)
			if !ok {
				return false
			}
			todo += more
		}
		if r.i > len(r.b) {
			return false
		}
	}
	return true
}

// skipLong passes over a value whose length follows its type, or its header where it has values in it, of which it returns the number.
func (r *reader) skipLong(c byte) (inside int64, ok bool) {
	var v uint64
	switch c {
	case 0xc4, 0xc5, 0xc6: // bin
		v, ok = r.big(1 << (c - 0xc4))
	case 0xc7, 0xc8, 0xc9: // ext: a byte of its own type
		v, ok = r.big(1 << (c - 0xc7))
		v++
	case 0xd9, 0xda, 0xdb: // str
		v, ok = r.big(1 << (c - 0xd9))
	case 0xdc, 0xdd:
		v, ok = r.big(2 << (c - 0xdc))
		return int64(v), ok && v <= uint64(r.left())
	case 0xde, 0xdf:
		v, ok = r.big(2 << (c - 0xde))
		return 2 * int64(v), ok && v <= uint64(r.left())
	}
	if !ok || v > uint64(r.left()) {
		return 0, false
	}
	r.i += int(v)
	return 0, true
}

// hash reads an engine's name for a block; see the package comment.
func (r *reader) hash() (h prefix.Hash, isNumber, ok bool) {
	if c := r.peek(); c == 0xcf && r.left() >= 9 { // what nearly all are
		h = prefix.Hash(binary.BigEndian.Uint64(r.b[r.i+1:]))
		r.i += 9
		return h, true, true
	}
	if v, _, ok := r.number(); ok {
		return prefix.Hash(v), true, true
	}
	b, isString, ok := r.text()
	if !ok || isString || len(b) < 8 {
		return 0, false, false
	}
	return prefix.Hash(binary.BigEndian.Uint64(b[len(b)-8:])), false, true
}

// tokens appends n tokens to dst. Most of the time that a batch takes is spent here, so the usual forms are read in place: first pairs of
// tokens of three or five bytes. Which of the two a token is, no processor foresees, so no branch asks for it; and with pairs half as many reads
// wait for the ones before them to say where they are.
func (r *reader) tokens(dst []uint32, n int) ([]uint32, bool) {
	dst = slices.Grow(dst, n)
	out := dst[len(dst) : len(dst)+n]
	b, i := r.b, r.i
	for k := 0; k < n; {
		for k+1 < n && i+pairReach <= len(b) {
			w := binary.LittleEndian.Uint64(b[i:])
			long := w & 2                         // 0xcd has two bytes behind it, 0xce four
			second := w >> 24 >> (long << 3 & 63) // what w has of it
			if byte(w)-0xcd > 1 || byte(second)-0xcd > 1 {
				break
			}
			out[k] = wide(w)
			out[k+1] = wide(binary.LittleEndian.Uint64(b[i+3+int(long):]))
			i += int(6 + long + second&2)
			k += 2
		}
		if k == n {
			break
		}
		if i+4 < len(b) {
			switch c := b[i]; {
			case c < 0x80:
				out[k] = uint32(c)
				i++
				k++
				continue
			case c == 0xcd:
				out[k] = uint32(b[i+1])<<8 | uint32(b[i+2])
				i += 3
				k++
				continue
			case c == 0xce:
				out[k] = binary.BigEndian.Uint32(b[i+1:])
				i += 5
				k++
				continue
			}
		}
		r.i = i
		v, ok := r.token()
		if !ok {
			return dst[:len(dst)+k], false
		}
		out[k], i = v, r.i
		k++
	}
	r.i = i
	return dst[:len(dst)+n], true
}

// pairReach is how far tokens looks to read a pair: five bytes and a number of eight.
const pairReach = 5 + 8

// wide is the token, of type 0xcd or 0xce, that eight bytes begin with.
func wide(w uint64) uint32 { return uint32(bits.ReverseBytes64(w) << 8 >> ((48 - 8*(w&2)) & 63)) }

// token reads a token of any form.
func (r *reader) token() (uint32, bool) {
	if r.peek() != 0x92 {
		v, negative, ok := r.number()
		return uint32(v), ok && !negative && v <= math.MaxUint32
	}
	r.i++
	v, negative, ok := r.number()
	if !ok || negative || v > math.MaxUint32 {
		return 0, false
	}
	w, negative, ok := r.number()
	return uint32(v), ok && !negative && w <= math.MaxUint32
}
