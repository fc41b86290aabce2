package wire

import (
	"encoding/binary"
	"errors"
)

// Version is the version of the protocol that this package speaks.
const Version = 1

// HeaderSize is the length of a frame's head in bytes.
const HeaderSize = 32

// MaxDescriptors is how many descriptors may come with one frame: an instance has an arena for each size of its pages, and engines
// have up to about ten; Linux allows 253.
const MaxDescriptors = 64

// Errors of this package.
var (
	// ErrMalformed says that bytes are no frame or message of this version. The connection cannot go on.
	ErrMalformed = errors.New("malformed frame")
	// ErrTooLong says that a frame is longer than its kind may be.
	ErrTooLong = errors.New("frame too long")
	// ErrUnknown says that a frame is of no known kind. It may be skipped.
	ErrUnknown = errors.New("unknown kind of message")
)

// Header is a frame's head.
type Header struct {
	Length      uint32
	Kind        Kind
	Descriptors uint16
	Ref         uint64
	Epoch       uint64
	Session     uint32
}

// ParseHeader reads a head, and checks the length against the kind's bound. On ErrUnknown and ErrTooLong the Header is good.
func ParseHeader(b []byte) (h Header, err error) {
	if len(b) < HeaderSize || b[5] != 0 || binary.LittleEndian.Uint32(b[28:]) != 0 {
		return Header{}, ErrMalformed
	}
	h = Header{
		Length:      binary.LittleEndian.Uint32(b),
		Kind:        Kind(b[4]),
		Descriptors: binary.LittleEndian.Uint16(b[6:]),
		Ref:         binary.LittleEndian.Uint64(b[8:]),
		Epoch:       binary.LittleEndian.Uint64(b[16:]),
		Session:     binary.LittleEndian.Uint32(b[24:]),
	}
	switch {
	case h.Descriptors > MaxDescriptors:
		return Header{}, ErrMalformed
	case h.Length > h.Kind.MaxLength():
		return h, ErrTooLong
	case newMessage(h.Kind) == nil:
		return h, ErrUnknown
	}
	return h, nil
}

// Append appends m as a frame. Of h it takes Ref, Epoch, Session and Descriptors; length and kind are m's.
func Append(dst []byte, h Header, m Message) []byte {
	at := len(dst)
	dst = append(dst, make([]byte, HeaderSize)...)
	w := writer{buf: dst}
	m.fields(&w)
	dst = w.buf
	head := dst[at:]
	binary.LittleEndian.PutUint32(head, uint32(len(head)-HeaderSize))
	head[4] = byte(m.Kind())
	binary.LittleEndian.PutUint16(head[6:], h.Descriptors)
	binary.LittleEndian.PutUint64(head[8:], h.Ref)
	binary.LittleEndian.PutUint64(head[16:], h.Epoch)
	binary.LittleEndian.PutUint32(head[24:], h.Session)
	return dst
}

// Decode reads the payload of a frame of kind k, and all of it. The message keeps nothing of the payload. Errors are ErrUnknown and
// ErrMalformed.
func Decode(k Kind, payload []byte) (Message, error) {
	m := newMessage(k)
	if m == nil {
		return nil, ErrUnknown
	}
	if err := DecodeInto(m, payload); err != nil {
		return nil, err
	}
	return m, nil
}

// DecodeInto is Decode into a message that is empty: a new one, or one that Recycle has emptied. After an error it is of no use.
func DecodeInto(m Message, payload []byte) error {
	r := reader{rest: payload}
	m.fields(&r)
	if r.bad || len(r.rest) > 0 {
		return ErrMalformed
	}
	return nil
}
