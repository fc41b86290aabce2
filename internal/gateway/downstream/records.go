package downstream

import (
	"bytes"
	"crypto/tls"
	"reflect"
	"sync"
	"unsafe"
)

const (
	// recordBuffer is more than twice a record of TLS with what a *tls.Conn wants to be free behind it, in bytes: then its buffer moves what it
	// holds to the front, and never becomes another.
	recordBuffer = 40 << 10
	// gatherBuffer is more than a record, in bytes: what is written together. It is held until the client's socket has taken it.
	gatherBuffer = 17 << 10
	// keptRecord is how much of a record that is not whole is kept where it just fits, in bytes.
	keptRecord = 4 << 10
)

var (
	recordBuffers = sync.Pool{New: func() any { return new([recordBuffer]byte) }}
	gatherBuffers = sync.Pool{New: func() any { return new([gatherBuffer]byte) }}
)

// A *tls.Conn keeps two buffers for as long as it lives: the one that it reads records to, which is as long as the longest record so far, or twice
// that, and the one of its handshake. 4 KiB after a short request and 40 after a long one are more than all else that a stream has of ours while
// its engine is silent. There is no way to have them let go, so they are taken: this looks up where they are.
//
// If a later Go has them elsewhere, they are not found, nothing is taken, and a connection takes more memory. TestRecordBuffers tells of it then.
var (
	rawInput  = placeOf("rawInput")
	handInput = placeOf("hand")
)

// place is where in a tls.Conn a buffer is.
type place struct {
	offset uintptr
	known  bool
}

func placeOf(name string) place {
	f, ok := reflect.TypeFor[tls.Conn]().FieldByName(name)
	if !ok || f.Type != reflect.TypeFor[bytes.Buffer]() {
		return place{}
	}
	return place{f.Offset, true}
}

// of returns the buffer, or nil.
func (p place) of(c *tls.Conn) *bytes.Buffer {
	if !p.known {
		return nil
	}
	return (*bytes.Buffer)(unsafe.Add(unsafe.Pointer(c), p.offset))
}

// records is the buffer that a *tls.Conn reads records to. It is of the pool, and only there from the first byte that comes to the last that is
// taken. Who reads owns it.
type records struct {
	buffer *bytes.Buffer // the *tls.Conn's; nil: it was not found
	pooled *[recordBuffer]byte
}

func (r *records) of(c *tls.Conn) {
	r.buffer = rawInput.of(c)
	if hand := handInput.of(c); hand != nil && hand.Len() == 0 {
		*hand = bytes.Buffer{} // as long as the client's hello
	}
}

// lend gives the *tls.Conn a buffer of the pool, with what it has of a record. What it has deciphered and not given away yet stays where it is.
func (r *records) lend() {
	if r.buffer == nil || r.pooled != nil || r.buffer.Len() > recordBuffer/2 {
		return
	}
	r.pooled = recordBuffers.Get().(*[recordBuffer]byte)
	*r.buffer = *bytes.NewBuffer(append(r.pooled[:0], r.buffer.Bytes()...))
}

// takeBack takes the buffer away. It is for when the *tls.Conn has nothing deciphered that nobody has read, as when it has just said that there is
// nothing. Of a record that is not whole up to most bytes are kept where they just fit; with more the buffer stays.
func (r *records) takeBack(most int) {
	if r.buffer == nil {
		return
	}
	switch n := r.buffer.Len(); {
	case n == 0:
		*r.buffer = bytes.Buffer{}
	case n > most || r.pooled == nil:
		return
	default:
		*r.buffer = *bytes.NewBuffer(bytes.Clone(r.buffer.Bytes()))
	}
	if r.pooled != nil {
		recordBuffers.Put(r.pooled)
		r.pooled = nil
	}
}

// drop takes the buffer away from a *tls.Conn that reads no more.
func (r *records) drop() {
	if r.buffer != nil && r.pooled != nil {
		*r.buffer = bytes.Buffer{}
		recordBuffers.Put(r.pooled)
		r.pooled = nil
	}
}
