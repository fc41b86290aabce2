package wire

import (
	"encoding/binary"
	"slices"

	"github.com/perigee-llm/perigee/internal/cache/core"
)

// The elements of the lists that a restore or a publish of thousands of pages consists of, each in one go: field by field, through coder, one takes 60 to
// 300 ns at either end, a tenth of the copying of a small page. The lists of fields are what counts; a test holds these against them.

// flatList is list for elements of exactly size bytes, which put and get know all at once.
func flatList[T any](c coder, v *[]T, most, size int, each func(c coder, e *T), put func(b []byte, e *T), get func(b []byte, e *T)) {
	switch c := c.(type) {
	case *writer:
		c.buf = binary.LittleEndian.AppendUint32(c.buf, uint32(len(*v)))
		at := len(c.buf)
		c.buf = slices.Grow(c.buf, size*len(*v))[:at+size*len(*v)]
		for i := range *v {
			put(c.buf[at+i*size:at+(i+1)*size], &(*v)[i])
		}
	case *reader:
		n := c.count(0, most, size)
		if n == 0 {
			return
		}
		b := c.take(size * n)
		*v = sized(*v, n)
		for i := range *v {
			get(b[i*size:(i+1)*size], &(*v)[i])
		}
	default:
		list(c, v, most, size, each)
	}
}

const grantedSize, sealedSize, planSize = 13, 20, 24

func putSlot(b []byte, s *core.SlotRef) {
	binary.LittleEndian.PutUint32(b, s.Arena)
	binary.LittleEndian.PutUint32(b[4:], s.Index)
	binary.LittleEndian.PutUint32(b[8:12], s.Gen)
}

func getSlot(b []byte) core.SlotRef {
	return core.SlotRef{Arena: binary.LittleEndian.Uint32(b), Index: binary.LittleEndian.Uint32(b[4:]), Gen: binary.LittleEndian.Uint32(b[8:12])}
}

func putGranted(b []byte, s *GrantedSlot) {
	b[0] = uint8(s.Disposition)
	putSlot(b[1:grantedSize], &s.Slot)
}

func getGranted(b []byte, s *GrantedSlot) {
	s.Disposition, s.Slot = core.Disposition(b[0]), getSlot(b[1:grantedSize])
}

func putSealed(b []byte, s *Sealed) {
	putSlot(b, &s.Slot)
	binary.LittleEndian.PutUint64(b[12:sealedSize], s.Checksum)
}

func getSealed(b []byte, s *Sealed) {
	s.Slot, s.Checksum = getSlot(b), binary.LittleEndian.Uint64(b[12:sealedSize])
}

func putPlan(b []byte, s *core.PlanSlot) {
	putSlot(b, &s.Slot)
	binary.LittleEndian.PutUint32(b[12:], s.Bytes)
	binary.LittleEndian.PutUint64(b[16:planSize], s.Checksum)
}

func getPlan(b []byte, s *core.PlanSlot) {
	s.Slot, s.Bytes, s.Checksum = getSlot(b), binary.LittleEndian.Uint32(b[12:]), binary.LittleEndian.Uint64(b[16:planSize])
}

// blockSize is the bytes of a block without tokens and extra keys; blockHead those before its tokens, their count included.
const blockSize, blockHead = 76, 72

// blocks goes over the blocks of a Publish; words is room for their tokens.
func blocks(c coder, v *[]Block, words *[]uint32) {
	switch c := c.(type) {
	case *writer:
		c.buf = binary.LittleEndian.AppendUint32(c.buf, uint32(len(*v)))
		for i := range *v {
			c.block(&(*v)[i])
		}
	case *reader:
		n := c.count(0, MaxBlocks, blockSize)
		if n == 0 {
			return
		}
		*v = sized(*v, n)
		// What is left beside the blocks themselves are tokens and extra keys.
		*words = sized(*words, (len(c.rest)-n*blockSize)/4)
		c.words = *words
		for i := range *v {
			c.block(&(*v)[i])
		}
	default:
		list(c, v, MaxBlocks, blockSize, blockFields)
	}
}

func blockFields(c coder, b *Block) {
	c.u32(&b.Group)
	c.raw(b.Hash[:])
	c.raw(b.Parent[:])
	c.u32s(&b.Tokens, MaxTokens)
	c.blob(&b.Extra, MaxExtra)
}

func (w *writer) block(b *Block) {
	buf := slices.Grow(w.buf, blockSize+4*len(b.Tokens)+len(b.Extra))
	buf = binary.LittleEndian.AppendUint32(buf, b.Group)
	buf = append(append(buf, b.Hash[:]...), b.Parent[:]...)
	buf = binary.LittleEndian.AppendUint32(buf, uint32(len(b.Tokens)))
	at := len(buf)
	buf = buf[:at+4*len(b.Tokens)]
	for i, t := range b.Tokens {
		binary.LittleEndian.PutUint32(buf[at+4*i:], t)
	}
	buf = binary.LittleEndian.AppendUint32(buf, uint32(len(b.Extra)))
	w.buf = append(buf, b.Extra...)
}

func (r *reader) block(b *Block) {
	if r.bad || len(r.rest) < blockHead {
		r.bad = true
		return
	}
	head := r.rest[:blockHead-4]
	r.rest = r.rest[blockHead-4:]
	b.Group = binary.LittleEndian.Uint32(head)
	b.Hash, b.Parent = core.Hash(head[4:36]), core.Hash(head[36:68])
	r.u32s(&b.Tokens, MaxTokens)
	r.blob(&b.Extra, MaxExtra)
}
