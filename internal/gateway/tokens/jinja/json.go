package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ParseJSON reads one JSON value as Python's json.loads does: dicts in the order of the text, a repeated key keeps its
// first place and its last value, integers of any size up to 4,300 digits, 1.0 stays a float, 1e400 is infinite. It is stricter
// in three things, each an ErrInput: NaN and Infinity, a lone surrogate and bytes that are not UTF-8 are refused. Nesting
// beyond 400 levels is ErrLimit.
//
// The value keeps parts of src: do not change src while it is in use.
func ParseJSON(src []byte) (v Value, err error) {
	defer caught(&err, func() int { return 0 })
	r := &reader{src: string(src)}
	v = r.value(0)
	if r.space(); r.pos < len(r.src) {
		r.fail("more than one value")
	}
	return v, nil
}

type reader struct {
	src string
	pos int
}

func (r *reader) fail(msg string) {
	panic(&Error{Class: ErrInput, Msg: msg + " at byte " + strconv.Itoa(r.pos)})
}

func (r *reader) space() {
	for r.pos < len(r.src) {
		switch r.src[r.pos] {
		case ' ', '\t', '\n', '\r':
			r.pos++
		default:
			return
		}
	}
}

// byte skips white space and returns the next byte, which it does not take; 0 at the end.
func (r *reader) byte() byte {
	r.space()
	if r.pos == len(r.src) {
		return 0
	}
	return r.src[r.pos]
}

func (r *reader) value(depth int) Value {
	tooDeep(depth)
	switch c := r.byte(); c {
	case '{':
		return r.object(depth)
	case '[':
		return r.array(depth)
	case '"':
		return text(r.string())
	case 't':
		return r.word("true", boolean(true))
	case 'f':
		return r.word("false", boolean(false))
	case 'n':
		return r.word("null", none)
	default:
		if c == '-' || c >= '0' && c <= '9' {
			return r.number()
		}
	}
	r.fail("not JSON")
	return Value{}
}

func (r *reader) word(w string, v Value) Value {
	if !strings.HasPrefix(r.src[r.pos:], w) {
		r.fail("not JSON")
	}
	r.pos += len(w)
	return v
}

func (r *reader) array(depth int) Value {
	var items []Value
	r.pos++
	if r.byte() == ']' {
		r.pos++
		return listOf(nil)
	}
	for {
		items = append(items, r.value(depth+1))
		switch r.byte() {
		case ',':
			r.pos++
		case ']':
			r.pos++
			return listOf(items)
		default:
			r.fail("expected , or ]")
		}
	}
}

func (r *reader) object(depth int) Value {
	d := &dict{}
	r.pos++
	if r.byte() == '}' {
		r.pos++
		return dictOf(d)
	}
	for {
		if r.byte() != '"' {
			r.fail("expected a key")
		}
		key := r.string()
		if r.byte() != ':' {
			r.fail("expected :")
		}
		r.pos++
		d.setText(key, r.value(depth+1))
		switch r.byte() {
		case ',':
			r.pos++
		case '}':
			r.pos++
			return dictOf(d)
		default:
			r.fail("expected , or }")
		}
	}
}

func (r *reader) digits() {
	from := r.pos
	for r.pos < len(r.src) && r.src[r.pos] >= '0' && r.src[r.pos] <= '9' {
		r.pos++
	}
	if r.pos == from {
		r.fail("not a number")
	}
}

func (r *reader) at(set string) bool {
	return r.pos < len(r.src) && strings.IndexByte(set, r.src[r.pos]) >= 0
}

func (r *reader) number() Value {
	from := r.pos
	if r.at("-") {
		r.pos++
	}
	if r.at("0") {
		r.pos++
	} else {
		r.digits()
	}
	whole := true
	if r.at(".") {
		whole = false
		r.pos++
		r.digits()
	}
	if r.at("eE") {
		whole = false
		r.pos++
		if r.at("+-") {
			r.pos++
		}
		r.digits()
	}
	s := r.src[from:r.pos]
	if !whole {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil && !math.IsInf(f, 0) { // out of range is infinite, as in Python
			r.fail("not a number")
		}
		return float(f)
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return integer(n)
	}
	if len(s) > 4300 {
		r.fail("an integer of more than 4300 digits")
	}
	n, _ := new(big.Int).SetString(s, 10)
	return bigInt(n)
}

// string reads a string. Without escapes it is a part of the source.
func (r *reader) string() string {
	r.pos++
	from := r.pos
	for r.pos < len(r.src) && r.src[r.pos] != '"' && r.src[r.pos] != '\\' {
		if r.src[r.pos] < ' ' {
			r.fail("a control character in a string")
		}
		r.pos++
	}
	s := r.src[from:r.pos]
	if !r.at(`\`) {
		if r.pos == len(r.src) {
			r.fail("a string without its end")
		}
		r.pos++
		return r.valid(s)
	}
	b := append(make([]byte, 0, 2*len(s)+16), s...)
	for {
		if r.pos >= len(r.src) {
			r.fail("a string without its end")
		}
		c := r.src[r.pos]
		switch {
		case c == '"':
			r.pos++
			return r.valid(string(b))
		case c == '\\':
			b = r.escape(b)
		case c < ' ':
			r.fail("a control character in a string")
		default:
			end := r.pos + 1
			for end < len(r.src) && r.src[end] != '"' && r.src[end] != '\\' && r.src[end] >= ' ' {
				end++
			}
			b = append(b, r.src[r.pos:end]...)
			r.pos = end
		}
	}
}

func (r *reader) valid(s string) string {
	if !utf8.ValidString(s) {
		r.fail("bytes that are not UTF-8")
	}
	return s
}

func (r *reader) escape(b []byte) []byte {
	if r.pos+1 >= len(r.src) {
		r.fail("a string without its end")
	}
	c := r.src[r.pos+1]
	r.pos += 2
	switch c {
	case '"', '\\', '/':
		return append(b, c)
	case 'b':
		return append(b, '\b')
	case 'f':
		return append(b, '\f')
	case 'n':
		return append(b, '\n')
	case 'r':
		return append(b, '\r')
	case 't':
		return append(b, '\t')
	case 'u':
		u := r.hex4()
		if u >= 0xd800 && u < 0xdc00 && strings.HasPrefix(r.src[r.pos:], `\u`) {
			r.pos += 2
			low := r.hex4()
			if low < 0xdc00 || low > 0xdfff {
				r.fail("a lone surrogate")
			}
			u = 0x10000 + (u-0xd800)<<10 + (low - 0xdc00)
		}
		if u >= 0xd800 && u <= 0xdfff {
			r.fail("a lone surrogate")
		}
		return utf8.AppendRune(b, u)
	}
	r.fail("an unknown escape")
	return nil
}

func (r *reader) hex4() rune {
	if r.pos+4 > len(r.src) {
		r.fail("a string without its end")
	}
	var u rune
	for _, c := range []byte(r.src[r.pos : r.pos+4]) {
		d := strings.IndexByte("0123456789abcdef", c|0x20)
		if d < 0 || !isHex(c) {
			r.fail("not a hexadecimal digit")
		}
		u = u<<4 | rune(d)
	}
	r.pos += 4
	return u
}

// dumper writes JSON as Python's json.dumps does.
type dumper struct {
	dst             []byte
	ascii, sorted   bool
	indented        bool
	indent          string
	itemSep, keySep string
}

func (w *dumper) newline(depth int) {
	if w.indented {
		w.dst = append(w.dst, '\n')
		for range depth {
			w.dst = append(w.dst, w.indent...)
		}
	}
}

func (w *dumper) value(c *context, v Value, depth int) {
	tooDeep(depth)
	c.step(1)
	switch v.k {
	case kNone:
		w.dst = append(w.dst, "null"...)
	case kBool:
		w.dst = strconv.AppendBool(w.dst, v.n != 0)
	case kInt:
		w.dst = strconv.AppendInt(w.dst, v.n, 10)
	case kBig:
		c.step(v.big().BitLen() / bytesPerStep)
		w.dst = appendBig(w.dst, v.big())
	case kFloat:
		w.dst = appendJSONFloat(w.dst, v.float())
	case kString, kMarkup:
		c.step(len(v.s) / bytesPerStep)
		w.string(v.s)
	case kList, kTuple:
		w.list(c, v.items(), depth)
	case kDict:
		w.dict(c, v.dict(), depth)
	default:
		failed("Object of type " + v.typeName() + " is not JSON serializable")
	}
	c.room(len(w.dst))
}

func appendJSONFloat(dst []byte, f float64) []byte {
	switch {
	case math.IsInf(f, 1):
		return append(dst, "Infinity"...)
	case math.IsInf(f, -1):
		return append(dst, "-Infinity"...)
	case math.IsNaN(f):
		return append(dst, "NaN"...)
	}
	return appendFloat(dst, f)
}

func (w *dumper) list(c *context, items []Value, depth int) {
	if len(items) == 0 {
		w.dst = append(w.dst, "[]"...)
		return
	}
	w.dst = append(w.dst, '[')
	for i, x := range items {
		if i > 0 {
			w.dst = append(w.dst, w.itemSep...)
		}
		w.newline(depth + 1)
		w.value(c, x, depth+1)
	}
	w.newline(depth)
	w.dst = append(w.dst, ']')
}

func (w *dumper) dict(c *context, d *dict, depth int) {
	if d.len() == 0 {
		w.dst = append(w.dst, "{}"...)
		return
	}
	entries := d.entries
	if w.sorted {
		entries = sortedEntries(c, entries)
	}
	w.dst = append(w.dst, '{')
	for i, e := range entries {
		if i > 0 {
			w.dst = append(w.dst, w.itemSep...)
		}
		w.newline(depth + 1)
		switch e.key.k {
		case kString, kMarkup:
			w.string(e.key.s)
		case kNone, kBool, kInt, kBig, kFloat:
			w.dst = append(w.dst, '"')
			w.value(c, e.key, depth+1)
			w.dst = append(w.dst, '"')
		default:
			failed("keys must be str, int, float, bool or None, not " + e.key.typeName())
		}
		w.dst = append(w.dst, w.keySep...)
		w.value(c, e.val, depth+1)
	}
	w.newline(depth)
	w.dst = append(w.dst, '}')
}

func (w *dumper) string(s string) {
	w.dst = append(w.dst, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && (c < 0x7f || !w.ascii) {
			i++
			continue
		}
		w.dst = append(w.dst, s[from:i]...)
		size := 1
		switch c {
		case '"', '\\':
			w.dst = append(w.dst, '\\', c)
		case '\n':
			w.dst = append(w.dst, `\n`...)
		case '\r':
			w.dst = append(w.dst, `\r`...)
		case '\t':
			w.dst = append(w.dst, `\t`...)
		case '\b':
			w.dst = append(w.dst, `\b`...)
		case '\f':
			w.dst = append(w.dst, `\f`...)
		default:
			var r rune
			r, size = utf8.DecodeRuneInString(s[i:])
			if r > 0xffff {
				r -= 0x10000
				w.dst = appendHex(append(w.dst, `\u`...), 0xd800+r>>10, 4)
				r = 0xdc00 + r&0x3ff
			}
			w.dst = appendHex(append(w.dst, `\u`...), r, 4)
		}
		i += size
		from = i
	}
	w.dst = append(append(w.dst, s[from:]...), '"')
}
