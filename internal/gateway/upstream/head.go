package upstream

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// appendHead appends the head of a request whose body's length is known.
func appendHead(b []byte, req *http.Request) ([]byte, error) {
	path := req.URL.RequestURI()
	if divided(path) || divided(req.URL.Host) {
		return b, errors.New("the URL cannot be sent")
	}
	b = append(b, req.Method...)
	b = append(b, ' ')
	b = append(b, path...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, req.URL.Host...)
	b = append(b, "\r\n"...)
	if req.ContentLength > 0 || req.Method == http.MethodPost || req.Method == http.MethodPut {
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, req.ContentLength, 10)
		b = append(b, "\r\n"...)
	}
	for name, values := range req.Header {
		if !httpguts.ValidHeaderFieldName(name) {
			return b, errors.New("a header's name cannot be sent")
		}
		for _, v := range values {
			if !httpguts.ValidHeaderFieldValue(v) {
				return b, errors.New("the value of header " + name + " cannot be sent")
			}
			b = append(b, name...)
			b = append(b, ": "...)
			b = append(b, v...)
			b = append(b, "\r\n"...)
		}
	}
	return append(b, "\r\n"...), nil
}

// divided tells whether a text has a space or a control character in it, which would end what it is a part of.
func divided(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' {
			return true
		}
	}
	return false
}

// head is an answer's head, understood.
type head struct {
	status     int
	statusText string
	minor      int // of HTTP/1.x
	fields     http.Header
	length     int64 // -1: not said
	chunked    bool
	keepAlive  bool

	room []string // for the fields' values; empty
}

// The ways in which a head can be wrong.
var (
	errHeadTooLong  = errors.New("the answer's head is too long")
	errStatusLine   = errors.New("the answer does not begin as HTTP/1 does")
	errHeaderLine   = errors.New("the answer has a malformed header line")
	errLength       = errors.New("the answer's Content-Length is not one number")
	errTwoLengths   = errors.New("the answer has a Content-Length and a Transfer-Encoding")
	errEncoding     = errors.New("the answer's Transfer-Encoding is not chunked")
	errChunk        = errors.New("the answer has a malformed chunk")
	errExcess       = errors.New("the answer's chunks are mostly not data")
	errChunkTooLong = errors.New("the answer has a chunk line that is too long")
)

// readHead reads one head of at most limit bytes. Nearly all heads are buffered as a whole, and are one text then, of which names and values are parts.
// room is for the values of its fields, if they are no more.
func readHead(br *bufio.Reader, limit int, room []string) (head, error) {
	h := head{length: -1, room: room}
	there, _ := br.Peek(br.Buffered()) // never waits
	if n := wholeHead(there); n > 0 && n <= limit {
		err := h.parse(string(there[:n]), bytes.Count(there[:n], newline))
		_, _ = br.Discard(n) // they are buffered
		return h, err
	}
	line, err := readLine(br, &limit)
	if err != nil {
		return h, err
	}
	if err := h.parseStatus(string(line)); err != nil {
		return h, err
	}
	h.fields = make(http.Header, 8)
	for {
		line, err := readLine(br, &limit)
		if err != nil {
			return h, err
		}
		if len(line) == 0 {
			return h, h.frame()
		}
		name, value, err := parseField(string(line))
		if err != nil {
			return h, err
		}
		h.fields[name] = append(h.fields[name], value)
	}
}

// wholeHead returns the length of the head that b begins with, its end included; 0: it has no end yet.
func wholeHead(b []byte) int {
	for at := 0; ; {
		i := bytes.IndexByte(b[at:], '\n')
		if i < 0 {
			return 0
		}
		at += i + 1
		switch rest := b[at:]; {
		case len(rest) >= 1 && rest[0] == '\n':
			return at + 1
		case len(rest) >= 2 && rest[0] == '\r' && rest[1] == '\n':
			return at + 2
		}
	}
}

// parse reads a head that is there as a whole and has so many lines.
func (h *head) parse(text string, lines int) error {
	line, rest := cutLine(text)
	if err := h.parseStatus(line); err != nil {
		return err
	}
	h.fields = make(http.Header, lines)
	values := h.room // one for each field, in one piece
	if h.room = nil; lines > cap(values) {
		values = make([]string, 0, lines)
	}
	for {
		if line, rest = cutLine(rest); line == "" {
			return h.frame()
		}
		name, value, err := parseField(line)
		if err != nil {
			return err
		}
		if before := h.fields[name]; before != nil {
			h.fields[name] = append(before, value)
			continue
		}
		values = append(values, value)
		h.fields[name] = values[len(values)-1 : len(values) : len(values)]
	}
}

// cutLine cuts off the first line of what has one, and its end.
func cutLine(text string) (line, rest string) {
	line, rest, _ = strings.Cut(text, "\n")
	return strings.TrimSuffix(line, "\r"), rest
}

// readLine reads one line without its end, which is CRLF or, as every client allows, LF. The line is valid until the next read.
func readLine(br *bufio.Reader, limit *int) ([]byte, error) {
	line, err := br.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		line, err = readLongLine(br, line, *limit)
	}
	if err != nil {
		switch {
		case errors.Is(err, io.EOF) && len(line) > *limit: // as where it comes in pieces
			err = errHeadTooLong
		case errors.Is(err, io.EOF):
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	if *limit -= len(line); *limit < 0 {
		return nil, errHeadTooLong
	}
	line = line[:len(line)-1]
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	return line, nil
}

// readLongLine reads on a line that is longer than the read buffer.
func readLongLine(br *bufio.Reader, part []byte, limit int) ([]byte, error) {
	long := append([]byte(nil), part...)
	for len(long) <= limit {
		part, err := br.ReadSlice('\n')
		long = append(long, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return long, err
		}
	}
	return nil, errHeadTooLong
}

// parseStatus reads "HTTP/1.1 200 OK".
func (h *head) parseStatus(line string) error {
	const prefix = "HTTP/1."
	if len(line) < len(prefix)+5 || line[:len(prefix)] != prefix || line[len(prefix)+1] != ' ' {
		return errStatusLine
	}
	switch line[len(prefix)] {
	case '0':
	case '1':
		h.minor = 1
	default:
		return errStatusLine
	}
	rest := line[len(prefix)+2:]
	if len(rest) > 3 && rest[3] != ' ' {
		return errStatusLine
	}
	for _, c := range []byte(rest[:3]) {
		if c < '0' || c > '9' {
			return errStatusLine
		}
		h.status = h.status*10 + int(c-'0')
	}
	if h.status < 100 || h.status > 599 {
		return errStatusLine
	}
	if h.statusText = rest; rest == usualStatus {
		h.statusText = usualStatus // which holds no head in memory
	}
	return nil
}

const usualStatus = "200 OK"

// parseField reads "Name: value". Folded lines, spaces before the colon and control characters are refused.
func parseField(line string) (name, value string, err error) {
	colon := strings.IndexByte(line, ':')
	if colon <= 0 {
		return "", "", errHeaderLine
	}
	name, value = line[:colon], strings.Trim(line[colon+1:], " \t")
	if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
		return "", "", errHeaderLine
	}
	return canonical(name), value, nil
}

// canonical returns a field's name as [http.Header] has it. What engines behind uvicorn send is known, and costs no look-up.
func canonical(name string) string {
	switch name {
	case "date":
		return "Date"
	case "server":
		return "Server"
	case "content-length":
		return "Content-Length"
	case "content-type":
		return "Content-Type"
	case "transfer-encoding":
		return "Transfer-Encoding"
	case "cache-control":
		return "Cache-Control"
	case "x-request-id":
		return "X-Request-Id"
	}
	return textproto.CanonicalMIMEHeaderKey(name)
}

// frame finds out from the fields where the body ends and whether the connection stays.
func (h *head) frame() error {
	lengths, encodings := h.fields["Content-Length"], h.fields["Transfer-Encoding"]
	if len(encodings) > 0 {
		if len(lengths) > 0 {
			return errTwoLengths
		}
		if len(encodings) > 1 || !strings.EqualFold(encodings[0], "chunked") || h.minor == 0 {
			return errEncoding
		}
		h.chunked = true
	}
	for i, text := range lengths {
		if i > 0 && text != lengths[0] {
			return errLength
		}
		n, err := parseLength(text)
		if err != nil {
			return err
		}
		h.length = n
	}
	h.keepAlive = h.minor == 1
	for _, v := range h.fields["Connection"] {
		if httpguts.HeaderValuesContainsToken([]string{v}, "close") {
			h.keepAlive = false
			break
		}
		if h.minor == 0 && httpguts.HeaderValuesContainsToken([]string{v}, "keep-alive") {
			h.keepAlive = true
		}
	}
	return nil
}

// parseLength reads digits, and nothing but digits.
func parseLength(text string) (int64, error) {
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return 0, errLength
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, errLength
	}
	return n, nil
}
