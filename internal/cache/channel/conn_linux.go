package channel

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
)

// Peer is who is at the other end, by the kernel's word. PID is 0 for a process that this one cannot see.
type Peer struct {
	PID int
	UID uint32
}

// Conn is one connection. Send, Kick, Settle and End may be called at once by anybody.
type Conn struct {
	Peer Peer
	// Data is the handler's; it is touched in Frame and Gone only.
	Data any

	server *Server
	uc     *net.UnixConn
	pidfd  *os.File // nil: none to be had, or taken

	writing sync.Mutex // held over a write; before mu
	mu      struct {
		sync.Mutex
		out    *[]byte // frames that wait, in one of outs; nil: none do
		files  []attached
		ended  bool // nothing more is taken
		writer bool // there is a goroutine that writes
		gone   bool // the reader has ended: none begins
	}
	file *os.File // the reader's: what came with the frame in hand
}

// attached is descriptors that go with the frame at an offset of out.
type attached struct {
	at    int
	files []*os.File
}

// Header is the head of a frame to the peer, as far as it is known here.
func (c *Conn) Header(ref uint64, session uint32) wire.Header {
	return wire.Header{Ref: ref, Epoch: c.server.opt.Epoch, Session: session}
}

// Send queues a frame. It never waits. The files have to stay open until it is written. In Frame the answer goes out when Frame
// returns, or with Flush; anybody else says Kick.
func (c *Conn) Send(h wire.Header, m wire.Message, files ...*os.File) {
	c.mu.Lock()
	if c.mu.ended {
		c.mu.Unlock()
		return
	}
	out := c.queueLocked()
	if len(files) > 0 {
		c.mu.files = append(c.mu.files, attached{len(*out), files})
		h.Descriptors = uint16(len(files))
	}
	*out = wire.Append(*out, h, m)
	full := len(*out) > c.server.opt.Queue
	c.mu.Unlock()
	if full {
		c.End(wire.Slow, "")
	}
}

// outs are buffers for frames that wait to be written, lent for as long as some do. Silent connections have none.
var outs = sync.Pool{New: func() any { return new([]byte) }}

// queueLocked returns the buffer that frames are appended to.
func (c *Conn) queueLocked() *[]byte {
	if c.mu.out == nil {
		c.mu.out = outs.Get().(*[]byte)
	}
	return c.mu.out
}

// lend gives a buffer back.
func lend(out *[]byte) {
	if out != nil && cap(*out) <= keepBuffer {
		*out = (*out)[:0]
		outs.Put(out)
	}
}

// Kick has what is queued written, by a goroutine that ends when nothing is: most connections never need one, since the reader writes the answers to
// what it reads.
func (c *Conn) Kick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.writer || c.mu.gone || c.mu.out == nil {
		return // the writer will see it; or there is nobody to read it, or nothing
	}
	c.mu.writer = true
	c.server.wg.Go(c.write)
}

// Flush writes what is queued, and waits for the peer to take it: for the connection's own Frame only.
func (c *Conn) Flush() {
	c.writing.Lock()
	defer c.writing.Unlock()
	for {
		c.mu.Lock()
		out, files := c.mu.out, c.mu.files
		c.mu.out, c.mu.files = nil, nil
		c.mu.Unlock()
		if out == nil {
			return
		}
		err := c.writeOut(*out, files)
		lend(out)
		if err != nil {
			c.broken()
			return
		}
	}
}

// broken ends a connection that cannot be written to any more. It is not closed here: its end is what tells a peer that the handler has let go of
// all that is the peer's, and that is after Gone.
func (c *Conn) broken() {
	c.mu.Lock()
	lend(c.mu.out)
	c.mu.ended, c.mu.out, c.mu.files = true, nil, nil
	c.mu.Unlock()
	c.uc.CloseRead() // the reader notices
}

// keepBuffer bounds the buffers that are kept for all to use again, in bytes: enough for the usual query, and for a grant or a plan of thousands of
// pages.
const keepBuffer = 256 << 10

func (c *Conn) writeOut(out []byte, files []attached) error {
	at := 0
	for _, f := range files {
		if f.at > at {
			if _, err := c.uc.Write(out[at:f.at]); err != nil {
				return err
			}
			at = f.at
		}
		// The descriptors go with the frame's first bytes.
		err := withFDs(f.files, nil, func(fds []int) error {
			n, _, err := c.uc.WriteMsgUnix(out[at:at+wire.HeaderSize], unix.UnixRights(fds...), nil)
			at += n
			return err
		})
		if err != nil {
			return err
		}
	}
	_, err := c.uc.Write(out[at:])
	return err
}

// withFDs calls do with the files' descriptors, which are theirs until it returns: the number of a file that is closed meanwhile would be another's, and the peer
// would get that. It fails for one that is closed.
func withFDs(files []*os.File, fds []int, do func(fds []int) error) error {
	if len(files) == 0 {
		return do(fds)
	}
	raw, err := files[0].SyscallConn()
	if err != nil {
		return err
	}
	if closed := raw.Control(func(fd uintptr) { err = withFDs(files[1:], append(fds, int(fd)), do) }); closed != nil {
		return closed
	}
	return err
}

// Settle says that the connection is part of a session: it may be silent for as long as it likes.
func (c *Conn) Settle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.ended { // else what is left to be said has its time
		c.uc.SetDeadline(time.Time{})
	}
}

// TakePidfd gives the peer's pidfd to the caller, who closes it; nil if there is none, or it was taken.
func (c *Conn) TakePidfd() *os.File {
	f := c.pidfd
	c.pidfd = nil
	return f
}

// End tells the peer why, if it listens, and ends the connection. Gone follows from the connection's own goroutine.
func (c *Conn) End(class wire.Class, text string) {
	c.mu.Lock()
	if c.mu.ended {
		c.mu.Unlock()
		return
	}
	c.mu.ended = true
	if class != 0 && class != wire.Slow {
		out := c.queueLocked()
		*out = wire.Append(*out, c.Header(0, 0), &wire.Closing{Class: class, Text: text})
	}
	// The writer writes what it can in this time, which is enough for a peer that reads.
	c.uc.SetDeadline(time.Now().Add(endGrace))
	c.uc.CloseRead()
	c.mu.Unlock()
	c.Kick()
}

// endGrace is how long the last words may take. A peer that is alive reads in microseconds; but our own writer may have to wait for a core, and who
// is not told why his session has ended asks again in vain.
const endGrace = time.Second

// write writes what others have for the peer, until there is no more.
func (c *Conn) write() {
	for {
		c.Flush()
		c.mu.Lock()
		if c.mu.out == nil {
			c.mu.writer = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
	}
}

// read serves the connection.
func (c *Conn) read() {
	class, text := c.serve()
	c.End(class, text)
	c.Flush()
	c.mu.Lock()
	c.mu.gone = true
	c.mu.Unlock()
	c.server.forget(c)
	c.server.opt.Handler.Gone(c)
	c.release()
}

func (c *Conn) release() {
	c.uc.Close()
	if c.pidfd != nil {
		c.pidfd.Close()
	}
}

// serve handles frames until the peer leaves or is to be left.
func (c *Conn) serve() (wire.Class, string) {
	in, err := newReceiver(c.uc)
	if err != nil {
		return 0, ""
	}
	defer in.close()
	greeted := false
	for {
		if in.wait() != nil { // here, where little is on the stack: the collector gives half of it back then
			return 0, ""
		}
		h, m, err := c.next(in)
		switch {
		case errors.Is(err, wire.ErrUnknown):
			c.Send(c.Header(h.Ref, h.Session), &wire.Refused{Of: h.Kind, Class: wire.Unknown})
		case errors.Is(err, wire.ErrMalformed) || errors.Is(err, wire.ErrTooLong):
			return wire.Malformed, err.Error()
		case err != nil:
			return 0, ""
		case !greeted:
			hello, ok := m.(*wire.Hello)
			if !ok {
				return wire.WrongRole, "the first message is Hello"
			}
			if hello.MinVersion > wire.Version || hello.MaxVersion < wire.Version {
				return wire.BadVersion, ""
			}
			greeted = true
			w := c.server.opt.Welcome
			w.Version = wire.Version
			c.Send(c.Header(h.Ref, 0), &w)
		default:
			if h.Descriptors > 0 {
				c.file = in.take()
			}
			c.server.opt.Handler.Frame(c, h, m)
			if f := c.TakeFile(); f != nil {
				f.Close()
			}
		}
		if in.buffered() == 0 {
			in.drop() // it came with a frame that had no use for it
		}
		if h.Kind != wire.KindSeal || in.buffered() < wire.HeaderSize {
			c.Flush()
		} // the end of what was sealed is not waited for by who goes on at once, and goes with the next answer: each write wakes a process
	}
}

// payloads are buffers for payloads, lent for as long as one is read. Silent connections have none.
var payloads = sync.Pool{New: func() any { return new([]byte) }}

// next reads one frame. Of an unknown kind it reads the payload, too.
func (c *Conn) next(in *receiver) (wire.Header, wire.Message, error) {
	head, err := in.peek(wire.HeaderSize)
	if err != nil {
		return wire.Header{}, nil, err
	}
	h, err := wire.ParseHeader(head)
	if err != nil && !errors.Is(err, wire.ErrUnknown) {
		return h, nil, err
	}
	in.discard(wire.HeaderSize)
	buf := payloads.Get().(*[]byte)
	defer payloads.Put(buf)
	payload, bad := readPayload(in, (*buf)[:0], int(h.Length))
	if cap(payload) <= keepBuffer {
		*buf = payload
	}
	if bad != nil || err != nil {
		return h, nil, errors.Join(bad, err)
	}
	var m wire.Message
	if used := usedOf(h.Kind); used != nil {
		m, _ = used.Get().(wire.Message)
	}
	if m == nil {
		m, err = wire.Decode(h.Kind, payload)
		return h, m, err
	}
	return h, m, wire.DecodeInto(m, payload)
}

// publishes, seals and queries are messages that were recycled.
var publishes, seals, queries sync.Pool

func usedOf(k wire.Kind) *sync.Pool {
	switch k {
	case wire.KindPublish:
		return &publishes
	case wire.KindSeal:
		return &seals
	case wire.KindQuery:
		return &queries
	}
	return nil
}

// Recycle says that the handler needs nothing of a message any more: its memory is for the next one. He need not say so.
func Recycle(m wire.Message) {
	if used := usedOf(m.Kind()); used != nil && wire.Recycle(m) {
		used.Put(m)
	}
}

// readPayload reads n bytes into buf. It makes room as they come, so that a claim alone costs nothing.
func readPayload(in io.Reader, buf []byte, n int) ([]byte, error) {
	for len(buf) < n {
		step := min(n-len(buf), max(64<<10, len(buf)))
		if cap(buf)-len(buf) < step {
			buf = append(make([]byte, 0, len(buf)+step), buf...)
		}
		at := len(buf)
		buf = buf[:at+step]
		if _, err := io.ReadFull(in, buf[at:]); err != nil {
			return buf, err
		}
	}
	return buf, nil
}

// Fenceable says that the end of the peer's process can be learnt: there is a pidfd to be taken.
func (c *Conn) Fenceable() bool { return c.pidfd != nil }
