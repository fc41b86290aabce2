package zmtp

import "slices"

// Message is one message as received. The zero value is ready; one that is used again for each Receive costs no allocation once it has
// grown to the longest message, and keeps that memory: assign Message{} to let it go. It belongs to whoever receives into it.
type Message struct {
	// Frames are the message's, in order. They are valid, and may be changed, until the next Receive into the Message.
	Frames [][]byte

	buf  []byte // the frames' bodies, one after another
	ends []int  // of each frame, in buf
}

// Size returns the number of bytes in all frames.
func (m *Message) Size() int {
	n := 0
	for _, f := range m.Frames {
		n += len(f)
	}
	return n
}

// Clone returns a copy with memory of its own.
func (m *Message) Clone() *Message {
	c := &Message{buf: slices.Clone(m.buf), ends: slices.Clone(m.ends)}
	c.cut()
	return c
}

func (m *Message) reset() {
	m.Frames, m.buf, m.ends = m.Frames[:0], m.buf[:0], m.ends[:0]
}

// cut makes the frames from the bytes, once these no longer move.
func (m *Message) cut() {
	at := 0
	for _, end := range m.ends {
		// The capacity ends with the frame: an append to one must not run into the next.
		m.Frames = append(m.Frames, m.buf[at:end:end])
		at = end
	}
	m.buf = m.buf[:at] // a frame that was not whole
}
