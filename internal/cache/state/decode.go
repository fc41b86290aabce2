package state

import (
	"encoding/binary"
	"strconv"
)

// DecodeNamespace reads the canonical form. Every byte is accounted for: what it accepts, Encode writes again. The bytes may come from
// anybody; no more is allocated than a small multiple of their length. Errors are ErrVersion and ErrEncoding.
func DecodeNamespace(b []byte) (Namespace, error) {
	if len(b) > MaxEncoding {
		return Namespace{}, fail(ErrEncoding, "longer than MaxEncoding")
	}
	if len(b) <= len(namespaceMagic) || string(b[:len(namespaceMagic)]) != namespaceMagic {
		return Namespace{}, fail(ErrEncoding, "this is no namespace")
	}
	if v := b[len(namespaceMagic)]; v != namespaceVersion {
		return Namespace{}, fail(ErrVersion, "namespace version ", strconv.Itoa(int(v)))
	}
	r := &reader{rest: b[len(namespaceMagic)+1:]}
	var n Namespace
	n.fields(r)
	if r.err == nil && len(r.rest) > 0 {
		r.err = fail(ErrEncoding, strconv.Itoa(len(r.rest)), " bytes too many")
	}
	if r.err != nil {
		return Namespace{}, r.err
	}
	if err := n.Validate(); err != nil {
		return Namespace{}, fail(ErrEncoding, err.Error())
	}
	return n, nil
}

// reader is the coder that decodes. After its first error it reads nothing more and every list is empty.
type reader struct {
	rest []byte
	err  error
}

// take returns the next n bytes, or nil and sets the error.
func (r *reader) take(name string, n int) []byte {
	if r.err == nil && n > len(r.rest) {
		r.err = fail(ErrEncoding, "cut short in ", name)
	}
	if r.err != nil {
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) refuse(name, what string) {
	if r.err == nil {
		r.err = fail(ErrEncoding, name, " ", what)
	}
}

func (r *reader) u16(name string) int {
	if b := r.take(name, 2); b != nil {
		return int(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (r *reader) text(name string, v *string) {
	n := r.u16(name)
	if n > maxText {
		r.refuse(name, "is too long")
	}
	*v = string(r.take(name, n))
}

func (r *reader) digest(name string, v *Digest) { copy(v[:], r.take(name, len(v))) }

func (r *reader) flag(name string, v *bool) {
	var b uint8
	if r.u8(name, &b); b > 1 {
		r.refuse(name, "is neither 0 nor 1")
	}
	*v = b == 1
}

func (r *reader) u8(name string, v *uint8) {
	if b := r.take(name, 1); b != nil {
		*v = b[0]
	}
}

func (r *reader) u32(name string, v *uint32) {
	if b := r.take(name, 4); b != nil {
		*v = binary.BigEndian.Uint32(b)
	}
}

func (r *reader) u64(name string, v *uint64) {
	if b := r.take(name, 8); b != nil {
		*v = binary.BigEndian.Uint64(b)
	}
}

func (r *reader) count(name string, _, most int) int {
	n := r.u16(name)
	// The least that an element takes is four bytes, so that a short message cannot ask for a long list.
	if n > most || 4*n > len(r.rest) {
		r.refuse(name, "has too many elements")
	}
	if r.err != nil {
		return 0
	}
	return n
}
