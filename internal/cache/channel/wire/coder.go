package wire

import (
	"encoding/binary"
	"slices"
	"unsafe"

	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/chain"
)

// coder goes over the fields of a message in the order of their bytes. Writing and reading are two coders over one list, so that
// neither can know a field that the other does not.
type coder interface {
	u8(v *uint8)
	u16(v *uint16)
	u32(v *uint32)
	u64(v *uint64)
	// raw is as many bytes as it has; blob is a u32 length, at most most, and the bytes.
	raw(b []byte)
	blob(v *[]byte, most int)
	text(v *string, most int)
	// u32s and hashes are a u32 count, at most most, and the elements.
	u32s(v *[]uint32, most int)
	hashes(v *[]core.Hash, most int)
	// pieces is a u32 count, at most most, and the pieces: u32 pool, u64 offset, u32 length each.
	pieces(v *[]core.Piece, most int)
	// count goes over the u32 count of a list whose elements have at least size bytes, and returns the one to go on with.
	count(n, most, size int) int
}

// list goes over a list of at most most elements of at least size bytes each.
func list[T any](c coder, v *[]T, most, size int, each func(c coder, e *T)) {
	n := c.count(len(*v), most, size)
	if n != len(*v) {
		*v = nil
		if n > 0 {
			*v = make([]T, n)
		}
	}
	for i := range *v {
		each(c, &(*v)[i])
	}
}

func slotRef(c coder, v *core.SlotRef) {
	c.u32(&v.Arena)
	c.u32(&v.Index)
	c.u32(&v.Gen)
}

func leaseID(c coder, v *core.LeaseID) {
	c.u32(&v.Index)
	c.u32(&v.Gen)
}

func ticket(c coder, v *core.Ticket) {
	c.u64(&v.Op)
	c.u64(&v.Revision)
}

func chainKey(c coder, v *chain.Key) {
	c.u64(&v.Lo)
	c.u64(&v.Hi)
}

func flag(c coder, v *bool) {
	b := uint8(0)
	if *v {
		b = 1
	}
	c.u8(&b)
	*v = b == 1
	if r, ok := c.(*reader); ok && b > 1 {
		r.bad = true
	}
}

// writer is the coder that writes.
type writer struct{ buf []byte }

func (w *writer) u8(v *uint8)   { w.buf = append(w.buf, *v) }
func (w *writer) u16(v *uint16) { w.buf = binary.LittleEndian.AppendUint16(w.buf, *v) }
func (w *writer) u32(v *uint32) { w.buf = binary.LittleEndian.AppendUint32(w.buf, *v) }
func (w *writer) u64(v *uint64) { w.buf = binary.LittleEndian.AppendUint64(w.buf, *v) }
func (w *writer) raw(b []byte)  { w.buf = append(w.buf, b...) }

func (w *writer) blob(v *[]byte, _ int) {
	w.buf = append(binary.LittleEndian.AppendUint32(w.buf, uint32(len(*v))), *v...)
}

func (w *writer) text(v *string, _ int) {
	w.buf = append(binary.LittleEndian.AppendUint32(w.buf, uint32(len(*v))), *v...)
}

func (w *writer) u32s(v *[]uint32, _ int) {
	w.buf = binary.LittleEndian.AppendUint32(w.buf, uint32(len(*v)))
	for _, n := range *v {
		w.buf = binary.LittleEndian.AppendUint32(w.buf, n)
	}
}

func (w *writer) hashes(v *[]core.Hash, _ int) {
	w.buf = binary.LittleEndian.AppendUint32(w.buf, uint32(len(*v)))
	w.buf = append(w.buf, flat(*v)...)
}

func (w *writer) pieces(v *[]core.Piece, _ int) {
	w.buf = binary.LittleEndian.AppendUint32(w.buf, uint32(len(*v)))
	w.buf = slices.Grow(w.buf, pieceSize*len(*v))
	for i := range *v {
		x := &(*v)[i]
		w.buf = binary.LittleEndian.AppendUint32(w.buf, x.Pool)
		w.buf = binary.LittleEndian.AppendUint64(w.buf, x.Offset)
		w.buf = binary.LittleEndian.AppendUint32(w.buf, x.Length)
	}
}

func (w *writer) count(n, _, _ int) int {
	w.buf = binary.LittleEndian.AppendUint32(w.buf, uint32(n))
	return n
}

// reader is the coder that reads. After its first fault it reads zeros, and every list is empty.
type reader struct {
	rest []byte
	bad  bool
	// words is room for lists of u32, of which a publish has one a block. It is no more than what is left to be read can hold.
	words []uint32
}

// take returns the next n bytes, or nil.
func (r *reader) take(n int) []byte {
	if r.bad || n > len(r.rest) {
		r.bad = true
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) u8(v *uint8) {
	if b := r.take(1); b != nil {
		*v = b[0]
	}
}

func (r *reader) u16(v *uint16) {
	if b := r.take(2); b != nil {
		*v = binary.LittleEndian.Uint16(b)
	}
}

func (r *reader) u32(v *uint32) {
	if b := r.take(4); b != nil {
		*v = binary.LittleEndian.Uint32(b)
	}
}

func (r *reader) u64(v *uint64) {
	if b := r.take(8); b != nil {
		*v = binary.LittleEndian.Uint64(b)
	}
}

func (r *reader) raw(b []byte) { copy(b, r.take(len(b))) }

func (r *reader) count(_, most, size int) int {
	n := uint32(0)
	r.u32(&n)
	if uint64(n) > uint64(most) || uint64(n)*uint64(size) > uint64(len(r.rest)) {
		r.bad = true
	}
	if r.bad {
		return 0
	}
	return int(n)
}

func (r *reader) blob(v *[]byte, most int) {
	if n := r.count(0, most, 1); n > 0 {
		*v = append([]byte(nil), r.take(n)...)
	}
}

func (r *reader) text(v *string, most int) { *v = string(r.take(r.count(0, most, 1))) }

func (r *reader) u32s(v *[]uint32, most int) {
	n := r.count(0, most, 4)
	if n == 0 {
		return
	}
	if len(r.words) < n {
		r.words = make([]uint32, len(r.rest)/4)
	}
	b := r.take(4 * n)
	*v, r.words = r.words[:n:n], r.words[n:]
	for i := range *v {
		(*v)[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
}

func (r *reader) hashes(v *[]core.Hash, most int) {
	n := r.count(0, most, 32)
	if n == 0 {
		return
	}
	b := r.take(32 * n)
	*v = sized(*v, n)
	copy(flat(*v), b)
}

// pieceSize is bytes of a piece. A restore is mostly pieces, and field by field they would take as long as copying a tenth of it.
const pieceSize = 16

func (r *reader) pieces(v *[]core.Piece, most int) {
	n := r.count(0, most, pieceSize)
	if n == 0 {
		return
	}
	b := r.take(pieceSize * n)
	*v = make([]core.Piece, n)
	for i := range *v {
		x := b[pieceSize*i : pieceSize*(i+1)]
		(*v)[i] = core.Piece{
			Pool: binary.LittleEndian.Uint32(x), Offset: binary.LittleEndian.Uint64(x[4:]), Length: binary.LittleEndian.Uint32(x[12:]),
		}
	}
}

// flat is the hashes as their bytes, one behind the other, which is how arrays of bytes lie. A query is mostly hashes, and one copy of
// 16 KiB takes a tenth of 512 copies of 32 bytes.
func flat(h []core.Hash) []byte {
	if len(h) == 0 {
		return nil
	}
	return unsafe.Slice(&h[0][0], len(h)*len(h[0]))
}
