package upstream

import (
	"bytes"
	"errors"
	"io"

	"github.com/perigee-llm/perigee/internal/gateway/chunked"
)

type bodyKind uint8

const (
	bodyFixed bodyKind = iota
	bodyChunked
	bodyToClose
)

// maxChunkLine bounds a chunk's size line with its extensions, in bytes. Nobody we know sends any.
const maxChunkLine = 256

// body is an answer's body. When it was read to its end, or closed, the connection is no longer its.
type body struct {
	c      *conn // nil once it is over
	kind   bodyKind
	keep   bool
	left   int64 // of the fixed body, or of the chunk at hand
	inner  bool  // a chunk has begun, so its end must come before the next
	excess chunked.Excess
	err    error // how it ended
}

// Read implements io.Reader. It returns what is there, and waits only if nothing is.
func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if len(p) == 0 {
		return 0, nil
	}
	var (
		n   int
		err error
	)
	switch b.kind {
	case bodyChunked:
		n, err = b.readChunks(p)
	case bodyFixed:
		n, err = b.readSome(p)
		if err == nil && b.left == 0 {
			err = io.EOF
		}
	default:
		n, err = b.c.in.reader().Read(p)
		if err != nil && !errors.Is(err, io.EOF) {
			break
		}
	}
	if err != nil {
		b.finish(err)
	}
	return n, err
}

// Waiter is an answer's body that can be waited for without a buffer to read into. The bodies of a [Transport] implement it.
type Waiter interface {
	// Wait returns when a Read would return something: bytes, the end, or an error. It may return early.
	Wait()
}

var _ Waiter = (*body)(nil)

// Wait implements Waiter. The connection holds no buffer while it waits.
func (b *body) Wait() {
	for b.c != nil && b.err == nil {
		b.skipChunkEnd()
		if b.c.in.buffered() > 0 || (b.kind == bodyFixed && b.left == 0) {
			return
		}
		if b.c.in.wait() != nil {
			return // Read will meet it
		}
		if !b.skipChunkEnd() || b.c.in.buffered() > 0 {
			return
		}
	}
}

// skipChunkEnd reads past the end of a chunk that was read, if that has come, and tells whether it did: it is nothing to a reader, and
// would keep the buffer.
func (b *body) skipChunkEnd() bool {
	if b.kind != bodyChunked || !b.inner || b.left > 0 || b.c.in.buffered() < len("\r\n") {
		return false
	}
	br := b.c.in.reader()
	if end, _ := br.Peek(len("\r\n")); string(end) != "\r\n" {
		return false // malformed, which the next Read tells
	}
	_, _ = br.Discard(len("\r\n"))
	b.inner = false
	return true
}

// readSome reads a part of what is left of a fixed length.
func (b *body) readSome(p []byte) (int, error) {
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.c.in.reader().Read(p)
	b.left -= int64(n)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// readChunks fills p with as many chunks as are there already.
func (b *body) readChunks(p []byte) (n int, err error) {
	for {
		if b.left == 0 {
			if n > 0 && !b.nextIsThere() {
				return n, nil
			}
			if err := b.nextChunk(); err != nil {
				return n, err
			}
		}
		k, err := b.readSome(p[n:])
		n += k
		if err != nil || n == len(p) {
			return n, err
		}
		if b.c.in.buffered() == 0 {
			return n, nil
		}
	}
}

// nextIsThere tells whether the end of this chunk and the head of another one are in the buffer, so that looking for them would not
// hold back what has come. The last chunk is left for the next read: a trailer may follow it.
func (b *body) nextIsThere() bool {
	there, _ := b.c.in.reader().Peek(b.c.in.buffered()) // never waits
	if b.inner {
		_, rest, found := bytes.Cut(there, newline)
		if !found {
			return false
		}
		there = rest
	}
	return bytes.IndexByte(there, '\n') > 0 && there[0] != '0'
}

var newline = []byte{'\n'}

// nextChunk reads the end of one chunk and the head of the next. The last chunk is io.EOF.
func (b *body) nextChunk() error {
	if b.inner {
		line, err := b.chunkLine()
		if err != nil {
			return err
		}
		if len(line) != 0 {
			return errChunk
		}
		b.inner = false
	}
	line, err := b.chunkLine()
	if err != nil {
		return err
	}
	size, ok := chunked.ParseSize(line)
	if !ok {
		return errChunk
	}
	if !b.excess.Add(len(line), size) {
		return errExcess
	}
	if size > 0 {
		b.left, b.inner = size, true
		return nil
	}
	trailer := b.c.t.o.MaxHead
	for {
		line, err := readLine(b.c.in.reader(), &trailer)
		if err != nil {
			return err
		}
		if len(line) == 0 {
			return io.EOF
		}
		if _, _, err := parseField(string(line)); err != nil { // read past, but not past just anything
			return err
		}
	}
}

// chunkLine reads a line between chunks without its end. Unlike a head's, it must end in CRLF: one party that takes LF alone
// and one that does not would see different chunks. For the same reason a CR within it is refused.
func (b *body) chunkLine() ([]byte, error) {
	limit := maxChunkLine
	line, err := readLine(b.c.in.reader(), &limit)
	switch {
	case errors.Is(err, errHeadTooLong):
		return nil, errChunkTooLong
	case err != nil:
		return nil, err
	case maxChunkLine-limit != len(line)+len("\r\n"), bytes.IndexByte(line, '\r') >= 0:
		return nil, errChunk
	}
	return line, nil
}

// finish ends the body: the connection is put aside after a clean end, else closed.
func (b *body) finish(err error) {
	b.err = err
	if b.c == nil {
		return
	}
	c := b.c
	b.c = nil
	c.release(b.keep && errors.Is(err, io.EOF))
}

// errClosed is what a read returns after Close.
var errClosed = errors.New("the answer's body was closed")

// Close implements io.Closer. A body that was not read to its end takes its connection with it.
func (b *body) Close() error {
	if b.c != nil {
		c := b.c
		b.c = nil
		b.err = errClosed
		c.discard()
	}
	return nil
}
