package bpe

import (
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// A cursor reads JSON text once, forwards. encoding/json is not used: it takes keys that differ in case for the same,
// keeps the last of two equal keys in silence, and needs three times the half second that we give a vocabulary of
// 200,000 tokens.
//
// The text must be valid UTF-8. Positions in errors are byte offsets.
type cursor struct {
	b      []byte
	i      int
	buf    []byte // the last string that held escapes
	values int    // how many values tree has read
}

// maxValues bounds what tree builds, at up to 100 bytes a value; Gemma's 6,415 added tokens are 51,000 values.
const maxValues = 1 << 20

// maxDepth is more than twice the nesting of any real file, and small enough for the stack.
const maxDepth = 32

func (c *cursor) fail(what string) error {
	return &FormatError{Problem: what + " at byte " + strconv.Itoa(c.i)}
}

// peek skips white space and returns the next byte, 0 at the end of the text.
func (c *cursor) peek() byte {
	for c.i < len(c.b) {
		switch c.b[c.i] {
		case ' ', '\n', '\t', '\r':
			c.i++
		default:
			return c.b[c.i]
		}
	}
	return 0
}

func (c *cursor) expect(want byte) error {
	if c.peek() != want {
		return c.fail("expected " + strconv.QuoteRune(rune(want)))
	}
	c.i++
	return nil
}

// str reads a string. The bytes are good until the next call.
func (c *cursor) str() ([]byte, error) {
	if err := c.expect('"'); err != nil {
		return nil, err
	}
	start := c.i
	for c.i < len(c.b) {
		switch b := c.b[c.i]; {
		case b == '"':
			c.i++
			return c.b[start : c.i-1], nil
		case b == '\\':
			c.buf = append(c.buf[:0], c.b[start:c.i]...)
			return c.escaped()
		case b < 0x20:
			return nil, c.fail("control character in a string")
		}
		c.i++
	}
	return nil, c.fail("unterminated string")
}

// escaped reads on from the first backslash of a string.
func (c *cursor) escaped() ([]byte, error) {
	for c.i < len(c.b) {
		b := c.b[c.i]
		c.i++
		switch {
		case b == '"':
			return c.buf, nil
		case b < 0x20:
			return nil, c.fail("control character in a string")
		case b != '\\':
			c.buf = append(c.buf, b)
		default:
			if err := c.escape(); err != nil {
				return nil, err
			}
		}
	}
	return nil, c.fail("unterminated string")
}

func (c *cursor) escape() error {
	if c.i == len(c.b) {
		return c.fail("unterminated string")
	}
	b := c.b[c.i]
	c.i++
	switch b {
	case '"', '\\', '/':
		c.buf = append(c.buf, b)
	case 'b':
		c.buf = append(c.buf, '\b')
	case 'f':
		c.buf = append(c.buf, '\f')
	case 'n':
		c.buf = append(c.buf, '\n')
	case 'r':
		c.buf = append(c.buf, '\r')
	case 't':
		c.buf = append(c.buf, '\t')
	case 'u':
		r, err := c.hex4()
		if err != nil {
			return err
		}
		if utf16.IsSurrogate(r) {
			if c.i+2 > len(c.b) || c.b[c.i] != '\\' || c.b[c.i+1] != 'u' {
				return c.fail("half a surrogate pair")
			}
			c.i += 2
			low, err := c.hex4()
			if err != nil {
				return err
			}
			if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
				return c.fail("half a surrogate pair")
			}
		}
		c.buf = utf8.AppendRune(c.buf, r)
	default:
		return c.fail("unknown escape")
	}
	return nil
}

func (c *cursor) hex4() (rune, error) {
	if c.i+4 > len(c.b) {
		return 0, c.fail("unterminated escape")
	}
	var r rune
	for _, b := range c.b[c.i : c.i+4] {
		switch {
		case '0' <= b && b <= '9':
			r = r<<4 | rune(b-'0')
		case 'a' <= b|0x20 && b|0x20 <= 'f':
			r = r<<4 | rune(b|0x20-'a'+10)
		default:
			return 0, c.fail("bad \\u escape")
		}
	}
	c.i += 4
	return r, nil
}

// id reads a token id: a plain integer from 0 to maxID.
func (c *cursor) id() (uint32, error) {
	c.peek()
	start, n := c.i, uint32(0)
	for c.i < len(c.b) && c.b[c.i]-'0' <= 9 {
		n = n*10 + uint32(c.b[c.i]-'0')
		c.i++
		if n > maxID {
			return 0, c.fail("token id above " + strconv.Itoa(maxID))
		}
	}
	if c.i == start || c.b[start] == '0' && c.i > start+1 {
		return 0, c.fail("expected a token id")
	}
	if c.i < len(c.b) && (c.b[c.i] == '.' || c.b[c.i]|0x20 == 'e') {
		return 0, c.fail("a token id is an integer")
	}
	return n, nil
}

// more tells whether another element follows in an array or object that close ends; first: none was read yet.
func (c *cursor) more(first bool, end byte) (bool, error) {
	b := c.peek()
	switch {
	case b == end:
		c.i++
		return false, nil
	case first:
		return true, nil
	case b != ',':
		return false, c.fail("expected ',' or " + strconv.QuoteRune(rune(end)))
	}
	c.i++
	return true, nil
}

// array calls f before each element; f reads it.
func (c *cursor) array(f func(i int) error) error {
	if err := c.expect('['); err != nil {
		return err
	}
	for i := 0; ; i++ {
		if ok, err := c.more(i == 0, ']'); !ok {
			return err
		}
		if err := f(i); err != nil {
			return err
		}
	}
}

// object calls f with each key; f reads the value. The key is good until f reads.
func (c *cursor) object(f func(key []byte) error) error {
	if err := c.expect('{'); err != nil {
		return err
	}
	for first := true; ; first = false {
		if ok, err := c.more(first, '}'); !ok {
			return err
		}
		key, err := c.str()
		if err != nil {
			return err
		}
		if err := c.expect(':'); err != nil {
			return err
		}
		if err := f(key); err != nil {
			return err
		}
	}
}

// skip passes over one value and returns its text.
func (c *cursor) skip(depth int) ([]byte, error) {
	if depth > maxDepth {
		return nil, c.fail("nested too deeply")
	}
	b := c.peek()
	start := c.i
	var err error
	switch b {
	case '{':
		err = c.object(func([]byte) error { _, err := c.skip(depth + 1); return err })
	case '[':
		err = c.array(func(int) error { _, err := c.skip(depth + 1); return err })
	case '"':
		_, err = c.str()
	default:
		_, err = c.scalar()
	}
	return c.b[start:c.i], err
}

// A number is kept as it is written: no part of the file that we read needs arithmetic on one.
type number string

// scalar reads null, a boolean or a number.
func (c *cursor) scalar() (any, error) {
	c.peek()
	start := c.i
	for c.i < len(c.b) {
		b := c.b[c.i]
		if b-'0' > 9 && b|0x20-'a' > 'z'-'a' && b != '-' && b != '+' && b != '.' {
			break
		}
		c.i++
	}
	switch word := string(c.b[start:c.i]); {
	case word == "null":
		return nil, nil
	case word == "true" || word == "false":
		return word == "true", nil
	case word != "" && (word[0] == '-' || word[0]-'0' <= 9):
		if _, err := strconv.ParseFloat(word, 64); err == nil {
			return number(word), nil
		}
	}
	c.i = start
	return nil, c.fail("expected a value")
}

// tree reads a small value whole: nil, bool, number, string, []any or *fields.
func (c *cursor) tree(path string, depth int) (any, error) {
	if depth > maxDepth {
		return nil, c.fail("nested too deeply")
	}
	if c.values++; c.values > maxValues {
		return nil, c.fail("too many values")
	}
	switch c.peek() {
	case '{':
		o := &fields{path: path, vals: map[string]any{}}
		return o, c.object(func(key []byte) error {
			k := string(key)
			if _, twice := o.vals[k]; twice {
				return c.fail("a second " + quote(k) + " in " + path)
			}
			v, err := c.tree(join(path, k), depth+1)
			o.keys, o.vals[k] = append(o.keys, k), v
			return err
		})
	case '[':
		list := []any{}
		return list, c.array(func(i int) error {
			v, err := c.tree(path+"["+strconv.Itoa(i)+"]", depth+1)
			list = append(list, v)
			return err
		})
	case '"':
		s, err := c.str()
		return string(s), err
	}
	return c.scalar()
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
