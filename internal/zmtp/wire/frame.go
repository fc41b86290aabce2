package wire

import "encoding/binary"

// MaxHeader is the length of the longest frame header, in bytes.
const MaxHeader = 9

const (
	flagMore    = 1 << 0
	flagLong    = 1 << 1
	flagCommand = 1 << 2
)

// Header is what goes before a frame's body.
type Header struct {
	Size    uint64 // of the body in bytes, below 1<<63. A peer may claim anything: bound it before allocating.
	More    bool   // another frame of the same message follows
	Command bool   // the body is a command; then More is false
}

// ParseHeader reads a header at the beginning of b and returns its length; 0 without an error means that b is too short to hold
// it. A size that would have fitted in one byte may be given in eight, as libzmq accepts too.
func ParseHeader(b []byte) (h Header, n int, err error) {
	if len(b) == 0 {
		return h, 0, nil
	}
	flags := b[0]
	h.More, h.Command = flags&flagMore != 0, flags&flagCommand != 0
	if flags&^(flagMore|flagLong|flagCommand) != 0 || h.More && h.Command {
		return h, 0, ErrFrame
	}
	if flags&flagLong == 0 {
		if len(b) < 2 {
			return h, 0, nil
		}
		h.Size = uint64(b[1])
		return h, 2, nil
	}
	if len(b) < MaxHeader {
		return h, 0, nil
	}
	h.Size = binary.BigEndian.Uint64(b[1:])
	if h.Size>>63 != 0 {
		return h, 0, ErrFrame
	}
	return h, MaxHeader, nil
}

// AppendHeader appends a frame's header, in its shortest form.
func AppendHeader(dst []byte, h Header) []byte {
	var flags byte
	if h.More {
		flags |= flagMore
	}
	if h.Command {
		flags |= flagCommand
	}
	if h.Size < 256 {
		return append(dst, flags, byte(h.Size))
	}
	return binary.BigEndian.AppendUint64(append(dst, flags|flagLong), h.Size)
}

// AppendMessage appends a message of the frames, at least one. An empty frame is an empty slice or nil.
func AppendMessage(dst []byte, frames ...[]byte) []byte {
	for i, f := range frames {
		dst = AppendHeader(dst, Header{Size: uint64(len(f)), More: i < len(frames)-1})
		dst = append(dst, f...)
	}
	return dst
}

// MessageSize returns how many bytes AppendMessage appends.
func MessageSize(frames ...[]byte) int {
	n := 0
	for _, f := range frames {
		if n += 2 + len(f); len(f) > 255 {
			n += MaxHeader - 2
		}
	}
	return n
}
