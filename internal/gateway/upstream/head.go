package upstream

import (
	"bufio"
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
	if strings.ContainsAny(path, " \r\n") || strings.ContainsAny(req.URL.Host, " \r\n") {
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

// head is an answer's head, understood.
type head struct {
	status     int
	statusText string
	minor      int // of HTTP/1.x
	fields     http.Header
	length     int64 // -1: not said
	chunked    bool
	keepAlive  bool
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
	errChunkTooLong = errors.New("the answer has a chunk line that is too long")
)

// readHead reads one head of at most limit bytes.
func readHead(br *bufio.Reader, limit int) (head, error) {
	h := head{length: -1}
	line, err := readLine(br, &limit)
	if err != nil {
		return h, err
	}
	if err := h.parseStatus(line); err != nil {
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
		name, value, err := parseField(line)
		if err != nil {
			return h, err
		}
		h.fields[name] = append(h.fields[name], value)
	}
}

// readLine reads one line without its end, which is CRLF or, as every client allows, LF. The line is valid until the next read.
func readLine(br *bufio.Reader, limit *int) ([]byte, error) {
	line, err := br.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		line, err = readLongLine(br, line, *limit)
	}
	if err != nil {
		if errors.Is(err, io.EOF) {
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
func (h *head) parseStatus(line []byte) error {
	const prefix = "HTTP/1."
	if len(line) < len(prefix)+5 || string(line[:len(prefix)]) != prefix || line[len(prefix)+1] != ' ' {
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
	for _, c := range rest[:3] {
		if c < '0' || c > '9' {
			return errStatusLine
		}
		h.status = h.status*10 + int(c-'0')
	}
	if h.status < 100 || h.status > 599 {
		return errStatusLine
	}
	h.statusText = statusText(h.status, rest)
	return nil
}

// statusText returns the status and its phrase, without a copy for the usual ones.
func statusText(status int, said []byte) string {
	if status == http.StatusOK {
		return "200 OK"
	}
	return string(said)
}

// parseField reads "Name: value". Folded lines, spaces before the colon and control characters are refused.
func parseField(line []byte) (name, value string, err error) {
	colon := -1
	for i, c := range line {
		if c == ':' {
			colon = i
			break
		}
	}
	if colon <= 0 {
		return "", "", errHeaderLine
	}
	raw := line[colon+1:]
	for len(raw) > 0 && (raw[0] == ' ' || raw[0] == '\t') {
		raw = raw[1:]
	}
	for n := len(raw); n > 0 && (raw[n-1] == ' ' || raw[n-1] == '\t'); n = len(raw) {
		raw = raw[:n-1]
	}
	name, value = string(line[:colon]), string(raw)
	if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
		return "", "", errHeaderLine
	}
	return textproto.CanonicalMIMEHeaderKey(name), value, nil
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
