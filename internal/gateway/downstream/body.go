package downstream

import (
	"errors"
	"io"
	"net/http"

	"github.com/perigee-llm/perigee/internal/gateway/chunked"
	"github.com/perigee-llm/perigee/internal/gateway/sock"
)

const (
	// maxChunkLine bounds the line of a chunk's size with its extensions, in bytes. Nobody we know sends any.
	maxChunkLine = 256
	// maxDrain is how much of a body that the handler left is read for the sake of the connection, in bytes: net/http's. Beyond it a new
	// connection is cheaper.
	maxDrain = 256 << 10
)

var (
	errChunk  = errors.New("malformed chunk")
	errExcess = errors.New("chunks that are mostly not data")
)

// body is a request's body. The connection's next request uses it again.
type body struct {
	c       *conn
	chunked bool
	short   bool  // all of it is at most sock.Most
	left    int64 // of the fixed body, or of the chunk at hand
	inner   bool  // a chunk has begun, so its end must come before the next
	excess  chunked.Excess
	expect  bool  // the client waits for 100 Continue before it sends
	err     error // how it ended; io.EOF: it was read
}

// begin is for a request's head: length -1 means chunks.
func (b *body) begin(length int64, expect bool) {
	*b = body{c: b.c, chunked: length < 0, short: length >= 0 && length <= sock.Most, left: max(length, 0), expect: expect}
	if length == 0 {
		b.end(io.EOF)
	}
}

// Read implements io.Reader. It returns what is there, and waits only if nothing is. The last bytes come with io.EOF.
func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if len(p) == 0 {
		return 0, nil
	}
	if b.expect {
		b.expect = false
		if err := b.c.resp.proceed(); err != nil {
			return 0, b.end(err)
		}
	}
	if b.chunked {
		return b.readChunks(p)
	}
	n, err := b.readSome(p)
	if err == nil && b.left == 0 {
		err = io.EOF
	}
	if err != nil {
		_ = b.end(err)
	}
	return n, err
}

// Close implements io.Closer. What was not read is the server's business.
func (b *body) Close() error { return nil }

// end takes down how the body ended. The buffer goes back if nothing of a further request is in it.
func (b *body) end(err error) error {
	b.err = err
	b.c.in.restIfEmpty()
	if errors.Is(err, io.EOF) {
		b.c.heed.begin()
	}
	return err
}

// readSome reads a part of what is left of a fixed length.
func (b *body) readSome(p []byte) (n int, err error) {
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	switch {
	case b.c.in.buffered() > 0:
		n = b.c.in.copyTo(p)
	case b.short:
		n, err = b.c.in.readShort(p)
	default:
		n, err = b.c.in.read(p) // what is long may be long to work with, too
	}
	b.left -= int64(n)
	switch {
	case n > 0:
		err = nil // it will come again, if there is more to read
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// readChunks reads a part of a chunk, from the next one if this is over. Further chunks that are there already come with the same call.
func (b *body) readChunks(p []byte) (n int, err error) {
	for n < len(p) && (n == 0 || b.c.in.buffered() > 0) {
		if b.left == 0 {
			if err := b.nextChunk(); err != nil {
				return n, b.end(err)
			}
		}
		k, err := b.readSome(p[n:])
		n += k
		if err != nil {
			return n, b.end(err)
		}
	}
	return n, nil
}

// nextChunk reads the end of one chunk and the head of the next. After the last chunk and its trailer it returns io.EOF.
func (b *body) nextChunk() error {
	if b.inner {
		line, err := b.c.in.line(len("\r\n"))
		if errors.Is(err, errLongLine) || err == nil && string(line) != "\r\n" {
			return errChunk
		}
		if err != nil {
			return err
		}
		b.inner = false
	}
	line, err := b.chunkLine(maxChunkLine)
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
	for limit := int(b.c.s.o.MaxHeaderBytes); ; {
		line, err := b.chunkLine(limit)
		if err != nil {
			return err
		}
		if len(line) == 0 {
			return io.EOF
		}
		limit -= len(line) + len("\r\n")
		var h head
		if h.parseField(string(line)) != nil { // read past, but not past just anything
			return errChunk
		}
	}
}

// chunkLine reads a line between chunks without its end, which is CRLF: one party that takes LF alone and one that does not would see different
// chunks. For the same reason a CR within it is refused.
func (b *body) chunkLine(limit int) ([]byte, error) {
	line, err := b.c.in.line(limit)
	if err != nil {
		return nil, err
	}
	n := len(line) - len("\r\n")
	if n < 0 || line[n] != '\r' {
		return nil, errChunk
	}
	for _, c := range line[:n] {
		if c == '\r' {
			return nil, errChunk
		}
	}
	return line[:n], nil
}

// settle reads what the handler left, if it is not much, and tells whether the connection can have another request. It is done before the answer's
// head is written: that says whether there will be one.
func (b *body) settle() bool {
	if b.err == nil && (b.expect || !b.chunked && b.left > maxDrain) {
		b.err = http.ErrBodyReadAfterClose // the client may yet send it, or may not
		return false
	}
	if b.err != nil {
		return errors.Is(b.err, io.EOF)
	}
	scratch := readBuffers.Get().(*[readBuffer]byte)
	defer readBuffers.Put(scratch)
	for n := 0; b.err == nil; {
		k, err := b.Read(scratch[:])
		if n += k; err == nil && n > maxDrain {
			b.err = http.ErrBodyReadAfterClose
		}
	}
	return errors.Is(b.err, io.EOF)
}
