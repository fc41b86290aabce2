package downstream

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// writeBuffer is what is gathered before it is written, in bytes: a head and a short answer, or a part of a stream with its framing. What
	// is longer is written from where it is, together with what was gathered.
	writeBuffer = 4 << 10
	// maxHeld is how much of a body without a declared length is held back until the handler returns, so that it gets one; in bytes, net/http's.
	maxHeld = 2 << 10
	// frameRoom is more than a chunk's size and its line ends take, in bytes.
	frameRoom = 24
)

var writeBuffers = sync.Pool{New: func() any { return new([writeBuffer]byte) }}

// framing is how the end of an answer's body is told.
type framing uint8

const (
	undecided framing = iota
	byLength
	byChunks
	byClose
	bodiless
)

// response is a request's http.ResponseWriter. The connection's next request uses it again.
type response struct {
	c      *conn
	header http.Header
	old    bool // the client speaks HTTP/1.0
	toHead bool // the request's method is HEAD

	status  int // 0: nothing was said yet
	framing framing
	length  int64 // that was declared, or -1
	left    int64 // of it
	counted int64 // of a body that HEAD leaves out
	sniff   bool  // there is no Content-Type, and the handler did not want it so
	dated   bool  // the handler gave a Date
	close   bool  // no request comes after this one
	decided bool  // the head is complete
	err     error // a write failed: nothing more is said

	out    []byte // what is to be written, nil: nothing
	pooled *[writeBuffer]byte
	held   []byte // of the body, while undecided; nil: nothing
	holds  *[writeBuffer]byte
}

var _ http.ResponseWriter = (*response)(nil)

// begin is for a request.
func (w *response) begin(h *head) {
	*w = response{c: w.c, header: w.header, old: h.minor == 0, toHead: h.method == http.MethodHead, close: h.close}
}

// Header implements http.ResponseWriter.
func (w *response) Header() http.Header { return w.header }

// SetReadDeadline is for [http.ResponseController].
func (w *response) SetReadDeadline(t time.Time) error { return w.c.in.until(t) }

// SetWriteDeadline is for [http.ResponseController].
func (w *response) SetWriteDeadline(t time.Time) error { return w.c.writeBy(t) }

// EnableFullDuplex is for [http.ResponseController]. What the handler has not read when it first writes is read past, or closes the connection.
func (w *response) EnableFullDuplex() error { return http.ErrNotSupported }

// WriteHeader implements http.ResponseWriter. What the header is now is what is sent. Informational answers are left out.
func (w *response) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic("invalid status " + strconv.Itoa(status))
	}
	if w.status != 0 || status < 200 {
		return
	}
	w.status, w.length = status, -1
	if status == http.StatusNoContent || status == http.StatusNotModified {
		w.framing = bodiless
	}
	w.take()
	w.appendStatus()
	w.appendFields()
}

func (w *response) appendStatus() {
	switch {
	case w.status == http.StatusOK && !w.old:
		w.out = append(w.out, "HTTP/1.1 200 OK\r\n"...)
		return
	case w.old:
		w.out = append(w.out, "HTTP/1.0 "...)
	default:
		w.out = append(w.out, "HTTP/1.1 "...)
	}
	w.out = strconv.AppendInt(w.out, int64(w.status), 10)
	w.out = append(w.out, ' ')
	text := http.StatusText(w.status)
	if text == "" {
		text = "status code " + strconv.Itoa(w.status)
	}
	w.out = append(append(w.out, text...), "\r\n"...)
}

// appendFields appends the handler's fields, and takes down those that say how the answer is framed.
func (w *response) appendFields() {
	w.sniff = true
	for name, values := range w.header {
		switch name {
		case "Connection":
			for _, v := range values {
				w.close = w.close || token(v, "close")
			}
			continue
		case "Content-Length":
			if len(values) > 0 && w.framing != bodiless {
				if n, ok := parseLength(values[0]); ok && values[0] != "" {
					w.framing, w.length, w.left = byLength, n, n
				}
			}
			continue
		case "Transfer-Encoding", "Trailer":
			continue
		case "Content-Type", "Content-Encoding":
			w.sniff = false
		case "Date":
			w.dated = true
		}
		if strings.HasPrefix(name, http.TrailerPrefix) {
			continue
		}
		for _, v := range values {
			w.field(name, v)
		}
	}
}

// field appends one field. A line's end within it would begin another: it becomes a space, as in net/http.
func (w *response) field(name, value string) {
	w.out = append(w.out, name...)
	w.out = append(w.out, ": "...)
	at := len(w.out)
	w.out = append(w.out, value...)
	for i, c := range w.out[at:] {
		if c == '\r' || c == '\n' {
			w.out[at+i] = ' '
		}
	}
	w.out = append(w.out, "\r\n"...)
}

// decide settles how the body is framed and ends the head. whole is the body's length where it is known, else -1; first is its beginning.
func (w *response) decide(whole int64, first []byte) {
	if w.framing == undecided {
		switch {
		case whole >= 0:
			w.framing, w.length = byLength, whole // all of it is there
		case w.toHead:
			w.framing = byLength // of which the length is not known, and nothing comes
		case w.old:
			w.framing, w.close = byClose, true
		default:
			w.framing = byChunks
		}
	}
	if !w.c.body.settle() || w.c.s.draining.Load() {
		w.close = true
	}
	if w.sniff && len(first) > 0 && !w.toHead {
		w.field("Content-Type", http.DetectContentType(first))
	}
	switch {
	case w.framing == byChunks:
		w.out = append(w.out, "Transfer-Encoding: chunked\r\n"...)
	case w.framing == byLength && w.length >= 0:
		w.out = append(w.out, "Content-Length: "...)
		w.out = strconv.AppendInt(w.out, w.length, 10)
		w.out = append(w.out, "\r\n"...)
	}
	switch {
	case w.close:
		w.out = append(w.out, "Connection: close\r\n"...)
	case w.old:
		w.out = append(w.out, "Connection: keep-alive\r\n"...)
	}
	if !w.dated {
		w.out = append(w.out, dateLine()...)
	}
	w.out = append(w.out, "\r\n"...)
	w.decided = true
}

// Write implements http.ResponseWriter.
func (w *response) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case w.err != nil:
		return 0, w.err
	case len(p) == 0:
		return 0, nil
	case w.framing == bodiless:
		return 0, http.ErrBodyNotAllowed
	case w.length >= 0 && int64(len(p)) > w.left:
		return 0, http.ErrContentLength
	}
	if w.length >= 0 {
		w.left -= int64(len(p))
	}
	if w.toHead {
		w.counted += int64(len(p))
		return len(p), nil
	}
	if w.framing == undecided {
		if len(w.held)+len(p) <= maxHeld {
			w.hold(p)
			return len(p), nil
		}
		first := w.held
		if len(first) == 0 {
			first = p
		}
		w.decide(-1, first)
		w.release()
	} else if !w.decided {
		w.decide(-1, p)
	}
	w.put(p)
	if w.err != nil {
		return 0, w.err
	}
	return len(p), nil
}

// hold keeps a part of the body back.
func (w *response) hold(p []byte) {
	if w.holds == nil {
		w.holds = writeBuffers.Get().(*[writeBuffer]byte)
		w.held = w.holds[:0]
	}
	w.held = append(w.held, p...)
}

// release puts what was held back behind the head.
func (w *response) release() {
	if w.holds == nil {
		return
	}
	w.put(w.held)
	writeBuffers.Put(w.holds)
	w.holds, w.held = nil, nil
}

// put writes a part of the body, or gathers it.
func (w *response) put(p []byte) {
	if len(p) == 0 {
		return
	}
	w.take()
	if w.framing == byChunks {
		w.putChunk(p)
		return
	}
	if len(w.out)+len(p) <= writeBuffer {
		w.out = append(w.out, p...) // also the last part: it is written when the handler has returned, and has given back what it held
		return
	}
	w.write(p, nil)
}

func (w *response) putChunk(p []byte) {
	fits := len(w.out)+len(p)+frameRoom <= writeBuffer
	w.out = strconv.AppendInt(w.out, int64(len(p)), 16)
	w.out = append(w.out, "\r\n"...)
	if !fits {
		w.write(p, lineEnd)
		return
	}
	w.out = append(append(w.out, p...), "\r\n"...)
}

var lineEnd = []byte("\r\n")

// take gets a buffer if there is none.
func (w *response) take() {
	if w.out == nil {
		w.pooled = writeBuffers.Get().(*[writeBuffer]byte)
		w.out = w.pooled[:0]
	}
}

// drop gives the buffer back; what is in it is lost.
func (w *response) drop() {
	if w.pooled != nil {
		writeBuffers.Put(w.pooled)
	}
	w.pooled, w.out = nil, nil
}

// flush writes what was gathered.
func (w *response) flush() {
	if len(w.out) > 0 {
		w.write(nil, nil)
	}
}

// write writes what was gathered and what comes behind it, and gives the buffer back.
func (w *response) write(p, end []byte) {
	if w.err == nil {
		w.err = w.c.write(w.out, p, end)
	}
	w.drop()
}

// FlushError is for [http.ResponseController].
func (w *response) FlushError() error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if !w.decided {
		first := w.held
		w.decide(-1, first)
		w.release()
	}
	w.flush()
	return w.err
}

// Flush implements http.Flusher.
func (w *response) Flush() { _ = w.FlushError() }

// proceed lets a client send that waits for it, unless it has been answered already.
func (w *response) proceed() error {
	if w.decided {
		return http.ErrBodyReadAfterClose
	}
	return w.c.write([]byte("HTTP/1.1 100 Continue\r\n\r\n"), nil, nil)
}

// finish writes what the handler left and tells whether the answer is whole and another request may come.
func (w *response) finish() (keep bool) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if !w.decided {
		whole := int64(len(w.held))
		if w.toHead {
			if whole = w.counted; whole == 0 {
				whole = -1
			}
		}
		w.decide(whole, w.held)
		w.release()
	}
	if w.framing == byChunks && !w.toHead {
		w.take()
		w.out = append(w.out, "0\r\n\r\n"...)
	}
	w.flush()
	return w.err == nil && !w.close && !w.short()
}

// short tells whether less was written than was declared.
func (w *response) short() bool { return w.framing == byLength && w.left > 0 && !w.toHead }

// forget gives back what a handler that did not return properly has left.
func (w *response) forget() {
	w.drop()
	if w.holds != nil {
		writeBuffers.Put(w.holds)
		w.holds, w.held = nil, nil
	}
}

// dated is a line for one second.
type dated struct {
	second int64
	line   string
}

var lastDate atomic.Pointer[dated]

// dateLine returns the Date field with its end.
func dateLine() string {
	now := time.Now()
	if d := lastDate.Load(); d != nil && d.second == now.Unix() {
		return d.line
	}
	d := &dated{now.Unix(), "Date: " + now.UTC().Format(http.TimeFormat) + "\r\n"}
	lastDate.Store(d)
	return d.line
}
