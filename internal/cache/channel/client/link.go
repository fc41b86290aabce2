package client

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
)

// link is one connection: calls go out under a lock, and one goroutine reads and hands answers to the calls by their ref.
type link struct {
	uc   *net.UnixConn
	down func(error)   // told once, when the connection is of no more use
	lost chan struct{} // closed then
	// done is closed when the connection has ended, by the Manager's doing or by close: later than lost if the Manager has said that it will
	// end. It ends it when it has let go of everything that is ours.
	done chan struct{}

	writing sync.Mutex
	head    wire.Header // epoch and session, once known
	out     []byte      // what is held, and then what is written
	ref     uint64

	mu struct {
		sync.Mutex
		calls map[uint64]*call
		err   error // set when it has ended
	}
}

// call is a question whose answers are awaited. It has no bound: the Manager answers with as much as was asked for.
type call struct {
	ref  uint64
	link *link
	wake chan struct{}
	in   []answer // guarded by link.mu
}

type answer struct {
	h     wire.Header
	m     wire.Message
	files []*os.File
}

func dial(ctx context.Context, path string, down func(error)) (*link, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, errors.Join(ErrLost, err)
	}
	l := &link{uc: c.(*net.UnixConn), down: down, lost: make(chan struct{}), done: make(chan struct{})}
	l.mu.calls = map[uint64]*call{}
	go l.read()
	return l, nil
}

// ask sends a message and returns the call that waits for its answers. End it with forget. before runs under the lock in which messages are
// put into their order.
func (l *link) ask(m wire.Message, before func()) (*call, error) { return l.askBy(m, before, plain, 0) }

// plain writes a frame without descriptors.
func plain(uc *net.UnixConn, frame []byte) error {
	_, err := uc.Write(frame)
	return err
}

// askBy is ask, with the frame written by send, and so many descriptors told of in its head.
func (l *link) askBy(m wire.Message, before func(), send func(uc *net.UnixConn, frame []byte) error, files uint16) (*call, error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	if before != nil {
		before()
	}
	l.ref++
	c := &call{ref: l.ref, link: l, wake: make(chan struct{}, 1)}
	l.mu.Lock()
	err := l.mu.err
	if err == nil {
		l.mu.calls[c.ref] = c
	}
	l.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := l.write(c.ref, m, send, files); err != nil {
		l.forget(c)
		return nil, err
	}
	return c, nil
}

// say sends a message that has no answer, or one that another call waits for: that call's ref.
func (l *link) say(ref uint64, m wire.Message) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	return l.write(ref, m, plain, 0)
}

// hold keeps a message that has no answer, or one that another call waits for, until the next one is written, and has it go before that in the same write: each
// write wakes the Manager. Whoever holds one asks or says another.
func (l *link) hold(ref uint64, m wire.Message) {
	l.writing.Lock()
	defer l.writing.Unlock()
	h := l.head
	h.Ref = ref
	l.out = wire.Append(l.out, h, m)
}

// write sends a message, and what is held before it. Descriptors go with the first byte of what is sent, so that what is held goes alone then.
func (l *link) write(ref uint64, m wire.Message, send func(uc *net.UnixConn, frame []byte) error, files uint16) error {
	if files > 0 && len(l.out) > 0 {
		if err := l.sent(plain); err != nil {
			return err
		}
	}
	h := l.head
	h.Ref, h.Descriptors = ref, files
	l.out = wire.Append(l.out, h, m)
	return l.sent(send)
}

// sent sends what is in out.
func (l *link) sent(send func(uc *net.UnixConn, frame []byte) error) error {
	err := send(l.uc, l.out)
	l.out = l.out[:0]
	if err != nil {
		l.fail(err)
		return errors.Join(ErrLost, err)
	}
	return nil
}

// fail says once that the connection is of no more use.
func (l *link) fail(err error) {
	l.mu.Lock()
	again := l.mu.err != nil
	if !again {
		l.mu.err = errors.Join(ErrLost, err)
	}
	l.mu.Unlock()
	if !again {
		close(l.lost)
		l.down(err)
	}
}

func (l *link) forget(c *call) {
	l.mu.Lock()
	delete(l.mu.calls, c.ref)
	in := c.in
	c.in = nil
	l.mu.Unlock()
	for _, a := range in {
		closeAll(a.files)
	}
}

// next waits for the call's next answer. A refusal is an error.
func (c *call) next(ctx context.Context) (answer, error) {
	l := c.link
	for {
		l.mu.Lock()
		if len(c.in) > 0 {
			a := c.in[0]
			c.in = c.in[1:]
			l.mu.Unlock()
			if r, ok := a.m.(*wire.Refused); ok {
				return answer{}, &Refused{r.Of, r.Class, r.Text}
			}
			return a, nil
		}
		err := l.mu.err
		l.mu.Unlock()
		if err != nil {
			return answer{}, err
		}
		select {
		case <-c.wake:
		case <-l.lost:
		case <-ctx.Done():
			return answer{}, ctx.Err()
		}
	}
}

// last waits for the call's next answer as long as the connection lasts: for what must not be left while the Manager is at it.
func (c *call) last() (answer, error) {
	a, err := c.next(context.Background())
	if err == nil || ClassOf(err) != 0 && !errors.Is(err, ErrLost) {
		return a, err
	}
	<-c.link.done
	return answer{}, err
}

// read hands out answers until the connection ends.
func (l *link) read() {
	src := &receiver{uc: l.uc}
	in := bufio.NewReaderSize(src, 64<<10)
	var buf []byte
	err := error(nil)
	for err == nil {
		var a answer
		if a, buf, err = l.frame(in, src, buf); err == nil {
			l.deliver(a)
		}
	}
	l.uc.Close()
	closeAll(src.files)
	if errors.Is(err, wire.ErrMalformed) || errors.Is(err, wire.ErrTooLong) {
		err = errors.Join(ErrProtocol, err)
	}
	l.fail(err)
	close(l.done)
}

func (l *link) frame(in *bufio.Reader, src *receiver, buf []byte) (answer, []byte, error) {
	head, err := in.Peek(wire.HeaderSize)
	if err != nil {
		return answer{}, buf, err
	}
	h, err := wire.ParseHeader(head)
	if err != nil && !errors.Is(err, wire.ErrUnknown) {
		return answer{}, buf, err
	}
	in.Discard(wire.HeaderSize)
	if cap(buf) < int(h.Length) {
		buf = make([]byte, h.Length)
	}
	buf = buf[:h.Length]
	if _, err := io.ReadFull(in, buf); err != nil {
		return answer{}, buf, err
	}
	a := answer{h: h}
	if n := int(h.Descriptors); n > 0 {
		if n > len(src.files) {
			return answer{}, buf, wire.ErrMalformed
		}
		a.files = append(a.files, src.files[:n]...)
		src.files = src.files[n:]
	}
	if in.Buffered() == 0 { // descriptors come with their frame's first byte: what is left is of this one, which does not tell of it
		closeAll(src.files)
		src.files = nil
	}
	if err == nil { // an unknown kind is a newer Manager's news, and passed over
		a.m, err = wire.Decode(h.Kind, buf)
	} else {
		err = nil
	}
	return a, buf, err
}

// deliver gives an answer to its call. What nobody waits for is dropped.
func (l *link) deliver(a answer) {
	if c, ok := a.m.(*wire.Closing); ok {
		l.fail(&Refused{Class: c.Class, Text: c.Text}) // and its end will come
		return
	}
	l.mu.Lock()
	c := l.mu.calls[a.h.Ref]
	if c != nil && a.m != nil {
		c.in = append(c.in, a)
	}
	l.mu.Unlock()
	if c == nil || a.m == nil {
		closeAll(a.files)
		return
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (l *link) close() {
	l.uc.Close()
	<-l.done
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// receiver reads a socket, and keeps the descriptors that come along.
type receiver struct {
	uc    *net.UnixConn
	files []*os.File
	oob   [512]byte // room for MaxDescriptors
}

// Read implements io.Reader.
func (r *receiver) Read(b []byte) (int, error) {
	n, oobn, _, _, err := r.uc.ReadMsgUnix(b, r.oob[:])
	if oobn > 0 {
		messages, perr := unix.ParseSocketControlMessage(r.oob[:oobn])
		for _, m := range messages {
			fds, ferr := unix.ParseUnixRights(&m)
			perr = errors.Join(perr, ferr)
			for _, fd := range fds {
				r.files = append(r.files, os.NewFile(uintptr(fd), "arena"))
			}
		}
		if perr != nil || len(r.files) > 2*wire.MaxDescriptors {
			return 0, wire.ErrMalformed
		}
	}
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}
