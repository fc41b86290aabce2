package downstream

import (
	"bytes"
	"net/http"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// Refusal is why a request was refused before any handler saw it.
type Refusal struct {
	// Status is 400, 417, 431, 501 or 505.
	Status int
	// Why is a constant for people. It quotes nothing of the request.
	Why string
}

func malformed(why string) *Refusal { return &Refusal{http.StatusBadRequest, why} }

// The refusals. Those that net/http knows too have its words.
var (
	errLongHead    = &Refusal{http.StatusRequestHeaderFieldsTooLarge, "the head is too long"}
	errVersion     = &Refusal{http.StatusHTTPVersionNotSupported, "unsupported protocol version"}
	errCoding      = &Refusal{http.StatusNotImplemented, "unsupported transfer encoding"}
	errExpectation = &Refusal{http.StatusExpectationFailed, "unknown expectation"}
	errLine        = malformed("a line does not end in CRLF")
	errRequestLine = malformed("malformed request line")
	errMethod      = malformed("invalid method")
	errTarget      = malformed("invalid target")
	errName        = malformed("invalid header name")
	errValue       = malformed("invalid header value")
	errNoHost      = malformed("missing required Host header")
	errTwoHosts    = malformed("too many Host headers")
	errHost        = malformed("malformed Host header")
	errLength      = malformed("invalid Content-Length")
	errTwoLengths  = malformed("a Content-Length and a Transfer-Encoding")
	errOldChunks   = malformed("a Transfer-Encoding in HTTP/1.0")
	errTrailer     = malformed("bad trailer key")
)

// maxFields bounds the lines of a head: more than any client sends, and few enough that their places take no more memory than the head itself
// may. A head with more is as one that is too long.
const maxFields = 1000

// cut looks for the end of a head in what has come, line by line.
type cut struct {
	line  int // where the line begins that has not ended yet
	seen  int // what was looked at
	lines int // that have ended, the request line included
}

// find looks at more and returns where the head ends, 0: further on.
func (c *cut) find(p []byte) (end int, r *Refusal) {
	for {
		i := bytes.IndexByte(p[c.seen:], '\n')
		if i < 0 {
			c.seen = len(p)
			return 0, nil
		}
		i += c.seen
		c.seen = i + 1
		if i == c.line || p[i-1] != '\r' {
			return 0, errLine
		}
		if i-c.line == 1 { // CRLF alone
			return i + 1, nil
		}
		c.line = i + 1
		if c.lines++; c.lines > maxFields {
			return 0, errLongHead
		}
	}
}

type field struct{ name, value string }

// head is a request's head, understood. It is used again: a connection's requests often have the same head, byte for byte, and then all
// that it points to is what it was.
type head struct {
	text   string
	fields []field
	values []string // of the fields; slices of it are what the header has

	method, target string
	url            url.URL
	minor          int // of HTTP/1.x
	host           string
	length         int64 // -1: chunks
	close          bool  // the client wants no further answer
	keep           bool  // an HTTP/1.0 client wants one
	expect         bool  // it waits for 100 Continue
}

// parse reads a head with its end. After a refusal the head is empty.
func (h *head) parse(p []byte) *Refusal {
	if h.text != "" && h.text == string(p) {
		return nil
	}
	*h = head{fields: h.fields[:0], text: string(p)}
	line, rest, _ := strings.Cut(h.text, "\r\n")
	r := h.parseLine(line)
	for r == nil && rest != "\r\n" {
		line, rest, _ = strings.Cut(rest, "\r\n")
		r = h.parseField(line)
	}
	if r == nil {
		r = h.understand()
	}
	if r != nil {
		*h = head{fields: h.fields[:0]}
		return r
	}
	h.values = make([]string, len(h.fields))
	for i := range h.fields {
		h.values[i] = h.fields[i].value
	}
	return nil
}

// parseLine reads "POST /v1/completions HTTP/1.1".
func (h *head) parseLine(line string) *Refusal {
	method, rest, ok1 := strings.Cut(line, " ")
	target, version, ok2 := strings.Cut(rest, " ")
	if !ok1 || !ok2 {
		return errRequestLine
	}
	if !httpguts.ValidHeaderFieldName(method) { // both are tokens
		return errMethod
	}
	switch version {
	case "HTTP/1.1":
		h.minor = 1
	case "HTTP/1.0":
	default:
		if _, _, ok := http.ParseHTTPVersion(version); ok {
			return errVersion
		}
		return errRequestLine
	}
	h.method, h.target = method, target
	return h.parseTarget()
}

// parseTarget reads the target as net/http does.
func (h *head) parseTarget() *Refusal {
	if plainPath(h.target) {
		h.url = url.URL{Path: h.target}
		return nil
	}
	text := h.target
	authority := h.method == http.MethodConnect && !strings.HasPrefix(text, "/")
	if authority {
		text = "http://" + text
	}
	u, err := url.ParseRequestURI(text)
	if err != nil {
		return errTarget
	}
	h.url = *u
	if authority {
		h.url.Scheme = ""
	}
	return nil
}

// plainPath tells whether a target is a path as it stands, with nothing in it that is encoded or divides.
func plainPath(s string) bool {
	if s == "" || s[0] != '/' {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '/', c == '_', c == '-', c == '.', c == '~':
		default:
			return false
		}
	}
	return true
}

// parseField reads "Name: value". Folded lines and spaces before the colon are no names.
func (h *head) parseField(line string) *Refusal {
	name, value, ok := strings.Cut(line, ":")
	if !ok {
		return errName
	}
	if name, ok = canonical(name); !ok {
		return errName
	}
	value = strings.Trim(value, " \t")
	if !httpguts.ValidHeaderFieldValue(value) {
		return errValue
	}
	h.fields = append(h.fields, field{name, value})
	return nil
}

// canonical returns a field's name as [http.Header] has it, and whether it is one.
func canonical(name string) (string, bool) {
	if !httpguts.ValidHeaderFieldName(name) {
		return "", false
	}
	upper := true
	for i := range len(name) {
		c := name[i]
		if upper && 'a' <= c && c <= 'z' || !upper && 'A' <= c && c <= 'Z' {
			return textproto.CanonicalMIMEHeaderKey(name), true
		}
		upper = c == '-'
	}
	return name, true
}

// understand finds out from the fields what the request is for and where its body ends.
func (h *head) understand() *Refusal {
	hosts, codings, lengths, expects, odd := 0, 0, 0, 0, 0
	var coding, length string
	for i := range h.fields {
		value := h.fields[i].value
		switch h.fields[i].name {
		case "Host":
			h.host = value
			hosts++
		case "Content-Length":
			n, ok := parseLength(value)
			if !ok || lengths > 0 && value != length {
				return errLength
			}
			h.length, length = n, value
			lengths++
		case "Transfer-Encoding":
			coding = value
			codings++
		case "Connection":
			h.close = h.close || token(value, "close")
			h.keep = h.keep || token(value, "keep-alive")
		case "Expect":
			if !strings.EqualFold(value, "100-continue") {
				odd++
			}
			expects++
		case "Trailer":
			if badTrailer(value) {
				return errTrailer
			}
		}
	}
	switch {
	case hosts > 1:
		return errTwoHosts
	case hosts == 0 && h.minor > 0 && h.method != http.MethodConnect:
		return errNoHost
	case hosts == 1 && !httpguts.ValidHostHeader(h.host):
		return errHost
	case codings > 0 && h.minor == 0:
		return errOldChunks
	case codings > 1, codings == 1 && !strings.EqualFold(coding, "chunked"):
		return errCoding
	case codings == 1 && lengths > 0:
		return errTwoLengths
	case odd > 0:
		return errExpectation
	}
	if codings == 1 {
		h.length = -1
	}
	if h.url.Host != "" {
		h.host = h.url.Host // RFC 9112, section 3.2.2
	}
	h.close = h.close || h.minor == 0 && !h.keep
	h.expect = expects > 0 && h.minor > 0 && h.length != 0
	return nil
}

// token tells whether a list has a word.
func token(list, word string) bool {
	return strings.EqualFold(list, word) || httpguts.HeaderValuesContainsToken([]string{list}, word)
}

// badTrailer tells whether a trailer is announced that would say where the body ends.
func badTrailer(list string) bool {
	for name := range strings.SplitSeq(list, ",") {
		switch textproto.CanonicalMIMEHeaderKey(strings.Trim(name, " \t")) {
		case "Transfer-Encoding", "Trailer", "Content-Length":
			return true
		}
	}
	return false
}

// parseLength reads digits, and nothing but digits.
func parseLength(text string) (int64, bool) {
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}

// fill puts the fields into an empty header, but for those that say how the request is framed.
func (h *head) fill(into http.Header) {
	for i := range h.fields {
		name := h.fields[i].name
		switch name {
		case "Host", "Transfer-Encoding", "Trailer":
			continue
		}
		if have := into[name]; have != nil {
			into[name] = append(have, h.values[i]) // the slices have no room, so this copies
			continue
		}
		into[name] = h.values[i : i+1 : i+1]
	}
}
