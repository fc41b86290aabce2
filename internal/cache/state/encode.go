package state

import (
	"crypto/sha256"
	"encoding/binary"
)

// The canonical encoding of a namespace, version 1. All integers are big endian and of fixed size; nothing is padded or aligned.
//
//	bytes 0–17   "perigee/namespace" and a zero byte
//	byte  18     version: 1
//	then         the fields in the order of fields.go, each as
//	             text     u16 length, then as many bytes of UTF-8 without control characters
//	             digest   32 bytes
//	             flag     one byte, 0 or 1
//	             u8, u32, u64
//	             list     u16 count, then the elements
//
// The id of a namespace is SHA-256 of all these bytes, the magic included, so that no other digest of ours can be taken for one.
//
// Version history: 1 is the first. A version's list of fields never changes: another list is another version, and pages of older ones
// are no longer found, which is right, because they do not say what the new field was.
//
// Rejected: JSON with sorted keys, as OrbitKV has it. What is canonical would hang on three libraries' views of escapes, numbers and
// empty values; here there is one way to write a value, and a decoder can prove that it saw that one.
const (
	namespaceMagic   = "perigee/namespace\x00"
	namespaceVersion = 1
)

// Bounds of a namespace. They are refused before anything is allocated for what is beyond them.
const (
	// MaxEncoding bounds the canonical form in bytes: a thousand layers of two segments take 150 KB.
	MaxEncoding = 1 << 20
	// MaxGroups bounds KV cache groups; engines have up to about ten.
	MaxGroups = 64
	// MaxPageBytes bounds a page. The largest in use are some 100 MiB: all layers of a block of a big model in one piece.
	MaxPageBytes = 1 << 32

	maxText     = 1024 // long enough for a version with its build, and for a seed in hexadecimal
	maxOptions  = 64
	maxSegments = 4096 // layers times parts of one group
	maxDims     = 8
)

// NamespaceID names a namespace: SHA-256 of its encoding. The zero value is no namespace.
type NamespaceID Digest

// IsZero says that it names nothing.
func (id NamespaceID) IsZero() bool { return id == NamespaceID{} }

// String is the id in 64 lower-case hexadecimal digits.
func (id NamespaceID) String() string { return Digest(id).String() }

// Encode returns the canonical form, or ErrInvalid with every fault that Validate finds.
func (n *Namespace) Encode() ([]byte, error) {
	if err := n.Validate(); err != nil {
		return nil, err
	}
	w := &writer{buf: append([]byte(namespaceMagic), namespaceVersion)}
	n.fields(w)
	if len(w.buf) > MaxEncoding {
		return nil, fail(ErrInvalid, "the encoding is longer than MaxEncoding")
	}
	return w.buf, nil
}

// ID returns the namespace's id, or ErrInvalid as Encode does.
func (n *Namespace) ID() (NamespaceID, error) {
	b, err := n.Encode()
	if err != nil {
		return NamespaceID{}, err
	}
	return NamespaceID(sha256.Sum256(b)), nil
}

// writer is the coder that encodes.
type writer struct{ buf []byte }

func (w *writer) text(_ string, v *string) {
	w.buf = binary.BigEndian.AppendUint16(w.buf, uint16(len(*v)))
	w.buf = append(w.buf, *v...)
}

func (w *writer) digest(_ string, v *Digest) { w.buf = append(w.buf, v[:]...) }
func (w *writer) u8(_ string, v *uint8)      { w.buf = append(w.buf, *v) }
func (w *writer) u32(_ string, v *uint32)    { w.buf = binary.BigEndian.AppendUint32(w.buf, *v) }
func (w *writer) u64(_ string, v *uint64)    { w.buf = binary.BigEndian.AppendUint64(w.buf, *v) }

func (w *writer) flag(_ string, v *bool) {
	b := byte(0)
	if *v {
		b = 1
	}
	w.buf = append(w.buf, b)
}

func (w *writer) count(_ string, n, _ int) int {
	w.buf = binary.BigEndian.AppendUint16(w.buf, uint16(n))
	return n
}
