package api

import (
	"encoding/json"
	"net/http"
	"strconv"
	"unicode/utf8"
)

// jsonAnswer writes an answer in JSON through a buffer from the pool. The client has its time for each piece anew.
type jsonAnswer struct {
	c   *call
	all *[chunk]byte
	buf []byte // of all; what is to be written
	err error  // the client left, or does not read: nothing more is written
}

// beginJSON begins an answer, which the caller ends with end.
func (c *call) beginJSON() *jsonAnswer {
	c.w.Header().Set("Content-Type", "application/json")
	c.extend()
	c.w.WriteHeader(http.StatusOK)
	a := &jsonAnswer{c: c, all: chunks.Get().(*[chunk]byte)}
	a.buf = a.all[:0]
	return a
}

// end writes what is left.
func (a *jsonAnswer) end() {
	a.room(chunk)
	if a.err == nil && a.c.sent > chunk { // the end of a short one is the server's to write, which then knows its length
		a.err = a.c.flush()
	}
	if a.err == nil { // a buffer that a write failed with may be in use still
		chunks.Put(a.all)
	}
	a.all, a.buf = nil, nil
}

// room makes room for n bytes.
func (a *jsonAnswer) room(n int) {
	if len(a.buf)+n <= chunk {
		return
	}
	if a.err == nil {
		a.err = a.c.send(a.buf)
	}
	a.buf = a.buf[:0]
}

// text writes a few bytes as they are.
func (a *jsonAnswer) text(s string) {
	a.room(len(s))
	a.buf = append(a.buf, s...)
}

// number writes a number.
func (a *jsonAnswer) number(n uint64) {
	a.room(20)
	a.buf = strconv.AppendUint(a.buf, n, 10)
}

// quotedAtOnce is how much of a string is quoted at once, in bytes: six times as much fits into the buffer, which is what a byte can become.
const quotedAtOnce = 1 << 10

// quoted writes a string as encoding/json does.
func (a *jsonAnswer) quoted(s string) {
	a.text(`"`)
	for len(s) > 0 {
		n := min(len(s), quotedAtOnce)
		for back := 1; back < utf8.UTFMax && n < len(s) && !utf8.RuneStart(s[n]); back++ {
			n--
		}
		text, err := json.Marshal(s[:n])
		if err != nil { // a string always encodes
			panic(err)
		}
		text = text[1 : len(text)-1]
		a.room(len(text))
		a.buf = append(a.buf, text...)
		s = s[n:]
	}
	a.text(`"`)
}
