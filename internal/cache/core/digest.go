package core

import (
	"encoding/binary"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// digestOf tells a repeated query from a changed one. A client that makes two of its own collide gets the first one's answer, which it
// had coming; nobody else's is in reach.
func digestOf(e *Query) [16]byte {
	var h xxh3.Hasher
	var head [24]byte
	head[0] = byte(e.Mode)
	binary.LittleEndian.PutUint32(head[4:], uint32(e.Scope))
	binary.LittleEndian.PutUint32(head[8:], e.Consumers)
	binary.LittleEndian.PutUint32(head[12:], uint32(len(e.Demand)))
	h.Write(head[:])
	for _, w := range e.Demand {
		binary.LittleEndian.PutUint32(head[0:], w.Group)
		binary.LittleEndian.PutUint64(head[8:], uint64(len(w.Hashes)))
		h.Write(head[:])
		h.Write(flat(w.Hashes))
	}
	return h.Sum128().Bytes()
}

// flat is the bytes of the hashes, one after another.
func flat(h []Hash) []byte {
	if len(h) == 0 {
		return nil
	}
	return unsafe.Slice(&h[0][0], len(h)*len(Hash{}))
}
