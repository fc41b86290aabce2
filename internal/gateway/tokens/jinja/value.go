package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// kind is the Python type that a value has.
type kind uint8

const (
	kMissing kind = iota // no value: a variable that nobody set
	kUndefined
	kNone
	kBool
	kInt
	kBig // an integer beyond 64 bits
	kFloat
	kString
	kMarkup // a string that |safe or |escape marked
	kList
	kTuple
	kDict
	kIter // a generator, an iterator or a view of a dict
	kFunc
	kNamespace
	kLoop
)

// Value is a value of a template: what Python holds it in is its kind. The zero value is no value; use the functions
// of this package to make one. Values that a render made or was given belong to that render.
type Value struct {
	k kind
	n int64  // kBool, kInt; the bits of kFloat
	s string // kString, kMarkup; for kUndefined how to name it
	o any    // *big.Int, *list, *dict, *iter, callable, *namespace, *loopState
}

type list struct{ items []Value }

// iter is what Python yields from lazily. It is made with all its items, which differs only where making one fails.
type iter struct {
	items []Value
	view  bool   // of a dict: it has a length, and can be read again
	name  string // of the Python type
	used  bool   // a generator is empty after its first reading
}

func (it *iter) take() []Value {
	if it.used {
		return nil
	}
	it.used = !it.view
	return it.items
}

type namespace struct{ attrs *dict }

var none = Value{k: kNone}

func boolean(b bool) Value {
	if b {
		return Value{k: kBool, n: 1}
	}
	return Value{k: kBool}
}

func integer(n int64) Value       { return Value{k: kInt, n: n} }
func float(f float64) Value       { return Value{k: kFloat, n: int64(math.Float64bits(f))} }
func text(s string) Value         { return Value{k: kString, s: s} }
func listOf(items []Value) Value  { return Value{k: kList, o: &list{items}} }
func tupleOf(items []Value) Value { return Value{k: kTuple, o: &list{items}} }
func dictOf(d *dict) Value        { return Value{k: kDict, o: d} }
func generator(name string, items []Value) Value {
	return Value{k: kIter, o: &iter{items: items, name: name}}
}
func undefined(name string) Value { return Value{k: kUndefined, s: name} }

func bigInt(n *big.Int) Value {
	if n.IsInt64() {
		return integer(n.Int64())
	}
	return Value{k: kBig, o: n}
}

// String makes a value of text. It must be valid UTF-8.
func String(s string) Value { return text(s) }

// Bool makes a boolean value.
func Bool(b bool) Value { return boolean(b) }

// None is Python's None.
func None() Value { return none }

func (v Value) float() float64  { return math.Float64frombits(uint64(v.n)) }
func (v Value) items() []Value  { return v.o.(*list).items }
func (v Value) dict() *dict     { return v.o.(*dict) }
func (v Value) isUndef() bool   { return v.k <= kUndefined }
func (v Value) isString() bool  { return v.k == kString || v.k == kMarkup }
func (v Value) isSeq() bool     { return v.k == kList || v.k == kTuple }
func (v Value) isNumber() bool  { return v.k >= kBool && v.k <= kFloat }
func (v Value) isInteger() bool { return v.k >= kBool && v.k <= kBig }

// big returns an integer as a big one.
func (v Value) big() *big.Int {
	if v.k == kBig {
		return v.o.(*big.Int)
	}
	return big.NewInt(v.n)
}

// asFloat converts any number.
func (v Value) asFloat() float64 {
	switch v.k {
	case kFloat:
		return v.float()
	case kBig:
		f, _ := new(big.Float).SetInt(v.big()).Float64()
		if math.IsInf(f, 0) {
			failed("int too large to convert to float")
		}
		return f
	}
	return float64(v.n)
}

// truth is Python's bool().
func (v Value) truth() bool {
	switch v.k {
	case kMissing, kUndefined, kNone:
		return false
	case kBool, kInt:
		return v.n != 0
	case kFloat:
		return v.float() != 0
	case kString, kMarkup:
		return v.s != ""
	case kList, kTuple:
		return len(v.items()) > 0
	case kDict:
		return v.dict().len() > 0
	case kIter:
		it := v.o.(*iter)
		return !it.view || len(it.items) > 0
	}
	return true
}

// typeName is Python's name for the type, as error texts show it.
func (v Value) typeName() string {
	switch v.k {
	case kMissing, kUndefined:
		return "Undefined"
	case kNone:
		return "NoneType"
	case kBool:
		return "bool"
	case kInt, kBig:
		return "int"
	case kFloat:
		return "float"
	case kString:
		return "str"
	case kMarkup:
		return "Markup"
	case kList:
		return "list"
	case kTuple:
		return "tuple"
	case kDict:
		return "dict"
	case kIter:
		return v.o.(*iter).name
	case kNamespace:
		return "Namespace"
	case kLoop:
		return "LoopContext"
	}
	return "function"
}

// entry is one pair of a dict.
type entry struct{ key, val Value }

// dict keeps the order of insertion, as Python's does.
type dict struct {
	entries []entry
	index   map[string]int // of the text keys, once there are more than a few
}

// fewKeys is how many keys are looked up one by one: below it that is faster than a map.
const fewKeys = 8

func (d *dict) len() int { return len(d.entries) }

func (d *dict) find(key string) int {
	if d.index != nil {
		if i, ok := d.index[key]; ok {
			return i
		}
		return -1
	}
	for i := range d.entries {
		if e := &d.entries[i]; e.key.s == key && e.key.isString() {
			return i
		}
	}
	return -1
}

// get looks up a text key.
func (d *dict) get(key string) (Value, bool) {
	if i := d.find(key); i >= 0 {
		return d.entries[i].val, true
	}
	return Value{}, false
}

// lookup looks up any key.
func (d *dict) lookup(key Value) (Value, bool) {
	if key.isString() {
		return d.get(key.s)
	}
	hashable(key)
	for i := range d.entries {
		if equal(nil, d.entries[i].key, key, 0) {
			return d.entries[i].val, true
		}
	}
	return Value{}, false
}

// setText sets a text key. A key that is there keeps its place.
func (d *dict) setText(key string, val Value) {
	if i := d.find(key); i >= 0 {
		d.entries[i].val = val
		return
	}
	d.entries = append(d.entries, entry{text(key), val})
	switch {
	case d.index != nil:
		d.index[key] = len(d.entries) - 1
	case len(d.entries) > fewKeys:
		d.index = make(map[string]int, 2*fewKeys)
		for i, e := range d.entries {
			if e.key.isString() {
				d.index[e.key.s] = i
			}
		}
	}
}

// set sets any key.
func (d *dict) set(key, val Value) {
	if key.isString() {
		d.setText(key.s, val)
		return
	}
	hashable(key)
	for i := range d.entries {
		if equal(nil, d.entries[i].key, key, 0) {
			d.entries[i].val = val
			return
		}
	}
	d.entries = append(d.entries, entry{key, val})
}

func (d *dict) keys() []Value {
	out := make([]Value, len(d.entries))
	for i, e := range d.entries {
		out[i] = e.key
	}
	return out
}

func (d *dict) values() []Value {
	out := make([]Value, len(d.entries))
	for i, e := range d.entries {
		out[i] = e.val
	}
	return out
}

func (d *dict) pairs() []Value {
	out := make([]Value, len(d.entries))
	for i, e := range d.entries {
		out[i] = tupleOf([]Value{e.key, e.val})
	}
	return out
}

// hashable fails for a key that Python cannot hash.
func hashable(v Value) {
	switch v.k {
	case kList, kDict:
		failed("unhashable type: '" + v.typeName() + "'")
	case kTuple:
		for _, x := range v.items() {
			if x.k == kTuple {
				unsupported("a key that is a tuple of tuples")
			}
			hashable(x)
		}
	}
}

// maxDepth bounds how deep values may lie within values. Python's own limit of recursion is near 1,000 calls, which
// json spends about one of on each level.
const maxDepth = 400

func tooDeep(depth int) {
	if depth > maxDepth {
		limited("values nest deeper than " + strconv.Itoa(maxDepth) + " levels")
	}
}

// appendFloat writes a float as Python's repr does.
func appendFloat(dst []byte, f float64) []byte {
	switch {
	case math.IsInf(f, 1):
		return append(dst, "inf"...)
	case math.IsInf(f, -1):
		return append(dst, "-inf"...)
	case math.IsNaN(f):
		return append(dst, "nan"...)
	}
	if a := math.Abs(f); f != 0 && (a < 1e-4 || a >= 1e16) {
		// Go writes two digits of exponent at least, as Python does.
		return strconv.AppendFloat(dst, f, 'e', -1, 64)
	}
	from := len(dst)
	dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
	if !strings.Contains(string(dst[from:]), ".") {
		dst = append(dst, ".0"...)
	}
	return dst
}

// appendBig writes an integer as Python does, which refuses more than 4,300 digits.
func appendBig(dst []byte, n *big.Int) []byte {
	if n.BitLen() > maxBits {
		failed("Exceeds the limit (4300 digits) for integer string conversion")
	}
	return n.Append(dst, 10)
}

// maxBits is 4,300 decimal digits: Python's limit for reading and writing integers.
const maxBits = 14284

// appendStr writes str(v): what {{ v }} prints.
func appendStr(dst []byte, v Value) []byte {
	switch v.k {
	case kString, kMarkup:
		return append(dst, v.s...)
	case kMissing, kUndefined:
		return dst
	}
	return appendRepr(dst, v, 0)
}

// appendRepr writes repr(v).
func appendRepr(dst []byte, v Value, depth int) []byte {
	tooDeep(depth)
	switch v.k {
	case kMissing, kUndefined:
		return append(dst, "Undefined"...)
	case kNone:
		return append(dst, "None"...)
	case kBool:
		if v.n != 0 {
			return append(dst, "True"...)
		}
		return append(dst, "False"...)
	case kInt:
		return strconv.AppendInt(dst, v.n, 10)
	case kBig:
		return appendBig(dst, v.big())
	case kFloat:
		return appendFloat(dst, v.float())
	case kString:
		return appendQuoted(dst, v.s)
	case kList:
		return append(appendItems(append(dst, '['), v.items(), depth), ']')
	case kTuple:
		dst = appendItems(append(dst, '('), v.items(), depth)
		if len(v.items()) == 1 {
			dst = append(dst, ',')
		}
		return append(dst, ')')
	case kDict:
		dst = append(dst, '{')
		for i, e := range v.dict().entries {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = append(appendRepr(dst, e.key, depth+1), ": "...)
			dst = appendRepr(dst, e.val, depth+1)
		}
		return append(dst, '}')
	case kIter:
		if it := v.o.(*iter); it.view {
			dst = append(append(dst, it.name...), "(["...)
			return append(appendItems(dst, it.items, depth), "])"...)
		}
	}
	// Python prints an address here, or words of its own.
	unsupported("printing a value of type " + v.typeName())
	return dst
}

func appendItems(dst []byte, items []Value, depth int) []byte {
	for i, x := range items {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		dst = appendRepr(dst, x, depth+1)
	}
	return dst
}

// appendQuoted writes repr of a string.
func appendQuoted(dst []byte, s string) []byte {
	quote := byte('\'')
	if strings.IndexByte(s, '\'') >= 0 && strings.IndexByte(s, '"') < 0 {
		quote = '"'
	}
	dst = append(dst, quote)
	for _, r := range s {
		switch {
		case r == rune(quote) || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r == '\n':
			dst = append(dst, `\n`...)
		case r == '\r':
			dst = append(dst, `\r`...)
		case r == '\t':
			dst = append(dst, `\t`...)
		case unicode.IsPrint(r):
			dst = utf8.AppendRune(dst, r)
		case r < 0x100:
			dst = appendHex(append(dst, `\x`...), r, 2)
		case r < 0x10000:
			dst = appendHex(append(dst, `\u`...), r, 4)
		default:
			dst = appendHex(append(dst, `\U`...), r, 8)
		}
	}
	return append(dst, quote)
}

func appendHex(dst []byte, r rune, digits int) []byte {
	for i := digits - 1; i >= 0; i-- {
		dst = append(dst, "0123456789abcdef"[r>>(4*i)&15])
	}
	return dst
}
