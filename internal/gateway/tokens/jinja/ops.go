package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

func itoa(n int) string { return strconv.Itoa(n) }

// iterate is Python's iter(), all at once.
func (c *context) iterate(v Value) []Value {
	var items []Value
	switch v.k {
	case kMissing, kUndefined:
		return nil
	case kList, kTuple:
		items = v.items()
	case kDict:
		items = v.dict().keys()
	case kIter:
		items = v.o.(*iter).take()
	case kString:
		c.step(len(v.s))
		for i, r := range v.s {
			items = append(items, text(v.s[i:i+utf8.RuneLen(r)]))
		}
	case kMarkup:
		unsupported("iterating over Markup")
	case kLoop:
		unsupported("iterating over the loop variable")
	default:
		failed("'" + v.typeName() + "' object is not iterable")
	}
	c.step(len(items) / 8)
	return items
}

// equal is Python's ==. c pays for it; it may be nil where the values are keys.
func equal(c *context, a, b Value, depth int) bool {
	tooDeep(depth)
	if c != nil {
		c.step(min(len(a.s), len(b.s)) / bytesPerStep)
	}
	switch {
	case a.isUndef() || b.isUndef():
		return a.isUndef() && b.isUndef()
	case a.isString() && b.isString():
		return a.s == b.s
	case a.isNumber() && b.isNumber():
		less, ok := order(a, b)
		return ok && less == 0
	case a.k != b.k:
		return false
	}
	switch a.k {
	case kNone:
		return true
	case kList, kTuple:
		x, y := a.items(), b.items()
		if len(x) != len(y) {
			return false
		}
		for i := range x {
			if !equal(c, x[i], y[i], depth+1) {
				return false
			}
		}
		return true
	case kDict:
		x, y := a.dict(), b.dict()
		if x.len() != y.len() {
			return false
		}
		for _, e := range x.entries {
			if c != nil {
				c.search(y, e.key)
			}
			if v, ok := y.lookup(e.key); !ok || !equal(c, e.val, v, depth+1) {
				return false
			}
		}
		return true
	case kIter:
		if it := a.o.(*iter); it.view {
			unsupported("comparing views of a dict")
		}
	}
	return a.o == b.o
}

// order compares two numbers exactly: -1, 0, 1; not ok if one is not a number.
func order(a, b Value) (int, bool) {
	if a.k != kFloat && b.k != kFloat {
		if a.k != kBig && b.k != kBig {
			return cmpInt(a.n, b.n), true
		}
		return a.big().Cmp(b.big()), true
	}
	if a.k == kFloat && b.k == kFloat {
		x, y := a.float(), b.float()
		switch {
		case math.IsNaN(x) || math.IsNaN(y):
			return 0, false
		case x < y:
			return -1, true
		case x > y:
			return 1, true
		}
		return 0, true
	}
	if a.k == kFloat {
		n, ok := order(b, a)
		return -n, ok
	}
	y := b.float()
	switch {
	case math.IsNaN(y):
		return 0, false
	case math.IsInf(y, 0):
		return cmpInt(0, int64(math.Copysign(1, y))), true
	}
	return new(big.Float).SetInt(a.big()).Cmp(big.NewFloat(y)), true
}

func cmpInt(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// less is the order of <, for numbers, text and rows of them.
func (c *context) less(a, b Value, depth int) bool {
	tooDeep(depth)
	c.step(min(len(a.s), len(b.s)) / bytesPerStep)
	switch {
	case a.isNumber() && b.isNumber():
		n, ok := order(a, b)
		return ok && n < 0
	case a.isString() && b.isString():
		return a.s < b.s // the order of UTF-8 is that of the code points
	case a.isSeq() && a.k == b.k:
		x, y := a.items(), b.items()
		for i := range min(len(x), len(y)) {
			if !equal(c, x[i], y[i], depth+1) {
				return c.less(x[i], y[i], depth+1)
			}
		}
		return len(x) < len(y)
	case a.isUndef():
		failed("'" + a.s + "' is undefined")
	case b.isUndef():
		failed("'" + b.s + "' is undefined")
	}
	failed("'<' not supported between instances of '" + a.typeName() + "' and '" + b.typeName() + "'")
	return false
}

func (c *context) compare(op string, a, b Value) bool {
	switch op {
	case "==":
		return equal(c, a, b, 0)
	case "!=":
		return !equal(c, a, b, 0)
	case "in":
		return c.contains(b, a)
	case "not in":
		return !c.contains(b, a)
	case "<":
		return c.less(a, b, 0)
	case ">":
		return c.less(b, a, 0)
	}
	// <= and >= are not the opposite of > and < for NaN.
	if a.isNumber() && b.isNumber() {
		n, ok := order(a, b)
		return ok && (n == 0 || (n < 0) == (op == "<="))
	}
	if op == "<=" {
		return !c.less(b, a, 0)
	}
	return !c.less(a, b, 0)
}

// contains is Python's "x in v".
func (c *context) contains(v, x Value) bool {
	switch v.k {
	case kString, kMarkup:
		if x.isUndef() {
			failed("'" + x.s + "' is undefined")
		}
		if !x.isString() {
			failed("'in <string>' requires string as left operand, not " + x.typeName())
		}
		c.step(len(v.s) / bytesPerStep)
		return strings.Contains(v.s, x.s)
	case kDict:
		if x.isUndef() {
			return false
		}
		c.search(v.dict(), x)
		_, ok := v.dict().lookup(x)
		return ok
	case kMissing, kUndefined, kList, kTuple, kIter:
		for _, item := range c.iterate(v) {
			c.step(0)
			if equal(c, item, x, 0) {
				return true
			}
		}
		return false
	}
	failed("argument of type '" + v.typeName() + "' is not iterable")
	return false
}

func (c *context) binary(op string, a, b Value) Value {
	c.step(0)
	switch {
	case a.isNumber() && b.isNumber():
		return c.arith(op, a, b)
	case a.isUndef():
		failed("'" + a.s + "' is undefined")
	case b.isUndef() && (op != "%" || !a.isString()):
		failed("'" + b.s + "' is undefined")
	case op == "+" && (a.k == kMarkup || b.k == kMarkup) && a.isString() && b.isString():
		return c.addMarkup(a, b)
	case a.k == kMarkup || b.k == kMarkup:
		unsupported("computing with Markup, which escapes what it meets")
	case op == "+" && a.k == kString && b.k == kString:
		c.room(len(a.s) + len(b.s))
		return c.made(a.s + b.s)
	case op == "+" && a.isSeq() && a.k == b.k:
		x, y := a.items(), b.items()
		c.step(len(x) + len(y))
		return Value{k: a.k, o: &list{append(append(make([]Value, 0, len(x)+len(y)), x...), y...)}}
	case op == "*" && b.isInteger():
		return c.repeat(op, a, b)
	case op == "*" && a.isInteger():
		return c.repeat(op, b, a)
	case op == "%" && a.k == kString:
		return c.format(a.s, b)
	}
	failed("unsupported operand type(s) for " + op + ": '" + a.typeName() + "' and '" + b.typeName() + "'")
	return Value{}
}

// addMarkup joins two texts of which one is Markup: the other is escaped.
func (c *context) addMarkup(a, b Value) Value {
	c.room(len(a.s) + len(b.s))
	out := c.made(escape(a) + escape(b))
	out.k = kMarkup
	return out
}

var escaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;")

// escape is markupsafe's: Markup stays as it is.
func escape(v Value) string {
	if v.k == kMarkup {
		return v.s
	}
	return escaper.Replace(v.s)
}

// repeat is text or a row times a number.
func (c *context) repeat(op string, a, times Value) Value {
	n := c.size(times)
	switch {
	case a.k == kString:
		if len(a.s) > 0 {
			c.room(n)
			c.room(n * len(a.s))
		}
		return c.made(strings.Repeat(a.s, n))
	case a.isSeq():
		if len(a.items()) > 0 {
			c.step(n)
			c.step(n * len(a.items()))
		}
		var items []Value
		for range n {
			items = append(items, a.items()...)
			if len(items) == 0 {
				break
			}
		}
		return Value{k: a.k, o: &list{items}}
	}
	failed("unsupported operand type(s) for " + op + ": '" + a.typeName() + "' and '" + times.typeName() + "'")
	return Value{}
}

// size is a count, not below zero, and small enough to count with.
func (c *context) size(v Value) int {
	if v.k == kBig {
		if v.big().Sign() < 0 {
			return 0
		}
		limited("a count of more than " + itoa(math.MaxInt32))
	}
	if v.n > math.MaxInt32 {
		limited("a count of more than " + itoa(math.MaxInt32))
	}
	return max(int(v.n), 0)
}

// arith computes with two numbers.
func (c *context) arith(op string, a, b Value) Value {
	if op == "/" || a.k == kFloat || b.k == kFloat {
		if op == "/" && (a.k == kBig || b.k == kBig) && a.isInteger() && b.isInteger() {
			unsupported("dividing integers beyond 64 bits")
		}
		if op == "**" {
			unsupported("powers of floats")
		}
		return floatArith(op, a.asFloat(), b.asFloat())
	}
	x, y := a.n, b.n
	if a.k != kBig && b.k != kBig {
		switch op {
		case "+":
			if s := x + y; (s > x) == (y > 0) {
				return integer(s)
			}
		case "-":
			if s := x - y; (s < x) == (y > 0) {
				return integer(s)
			}
		case "*":
			if small(x) && small(y) {
				return integer(x * y)
			}
		case "//", "%":
			if y != 0 && x != math.MinInt64 {
				q, r := x/y, x%y
				if r != 0 && (r < 0) != (y < 0) {
					q, r = q-1, r+y
				}
				if op == "//" {
					return integer(q)
				}
				return integer(r)
			}
		}
	}
	return c.bigArith(op, a.big(), b.big())
}

func small(n int64) bool { return n > -1<<31 && n < 1<<31 }

func floatArith(op string, x, y float64) Value {
	switch op {
	case "+":
		return float(x + y)
	case "-":
		return float(x - y)
	case "*":
		return float(x * y)
	}
	if y == 0 {
		failed("division by zero")
	}
	if op == "/" {
		return float(x / y)
	}
	// Python's divmod of floats.
	mod := math.Mod(x, y)
	div := (x - mod) / y
	if mod != 0 {
		if (y < 0) != (mod < 0) {
			mod += y
			div--
		}
	} else {
		mod = math.Copysign(0, y)
	}
	if op == "%" {
		return float(mod)
	}
	if div == 0 {
		return float(math.Copysign(0, x/y))
	}
	floor := math.Floor(div)
	if div-floor > 0.5 {
		floor++
	}
	return float(floor)
}

func (c *context) bigArith(op string, x, y *big.Int) Value {
	n := new(big.Int)
	switch op {
	case "+":
		n.Add(x, y)
	case "-":
		n.Sub(x, y)
	case "*":
		n.Mul(x, y)
	case "**":
		if y.Sign() < 0 {
			unsupported("negative powers")
		}
		if x.BitLen() > 1 && (!y.IsInt64() || y.Int64()*int64(x.BitLen()) > maxBits || y.Int64() > maxBits) {
			limited("an integer of more than " + itoa(maxBits) + " bits")
		}
		n.Exp(x, y, nil)
	default:
		if y.Sign() == 0 {
			failed("integer division or modulo by zero")
		}
		m := new(big.Int)
		n.QuoRem(x, y, m)
		if m.Sign() != 0 && (m.Sign() < 0) != (y.Sign() < 0) {
			n.Sub(n, big.NewInt(1))
			m.Add(m, y)
		}
		if op == "%" {
			n = m
		}
	}
	if n.BitLen() > maxBits {
		limited("an integer of more than " + itoa(maxBits) + " bits")
	}
	c.step(n.BitLen() / 64)
	return bigInt(n)
}

// attr is v.name.
func (c *context) attr(v Value, name string) Value {
	c.step(0)
	switch v.k {
	case kMissing, kUndefined:
		failed("'" + v.s + "' is undefined")
	case kNamespace:
		if x, ok := v.o.(*namespace).attrs.get(name); ok {
			return x
		}
		return undefined("Namespace object has no attribute '" + name + "'")
	case kLoop:
		return c.loopAttr(v.o.(*loopState), name)
	case kFunc:
		if cl, ok := v.o.(*closure); ok && name == "name" {
			return text(cl.name)
		}
		unsupported("attributes of functions")
	}
	if hasMethod(v, name) {
		return Value{k: kFunc, o: &bound{v, name}}
	}
	if v.k == kDict {
		if x, ok := v.dict().get(name); ok {
			return x
		}
	}
	refuseAttr(v, name)
	return undefined(v.typeName() + " object has no attribute '" + name + "'")
}

// refuseAttr refuses attributes that Python's values have and ours do not.
func refuseAttr(v Value, name string) {
	if strings.HasPrefix(name, "__") {
		unsupported("the attribute " + name)
	}
	switch {
	case v.isNumber():
		switch name {
		case "real", "imag", "numerator", "denominator", "conjugate", "bit_length", "bit_count", "to_bytes", "from_bytes",
			"as_integer_ratio", "is_integer", "hex", "fromhex":
			unsupported("the attribute " + name + " of a number")
		}
	case v.k == kIter:
		switch name {
		case "send", "throw", "close", "gi_frame", "gi_code", "gi_running", "gi_yieldfrom", "isdisjoint", "mapping", "start", "stop", "step",
			"count", "index":
			unsupported("the attribute " + name + " of a " + v.typeName())
		}
	}
}

// item is v[at].
func (c *context) item(v, at Value) Value {
	c.step(0)
	switch v.k {
	case kMissing, kUndefined:
		failed("'" + v.s + "' is undefined")
	case kDict:
		if at.isUndef() {
			return undefined(at.s)
		}
		if at.k == kList || at.k == kDict {
			return undefined("an element")
		}
		c.search(v.dict(), at)
		if x, ok := v.dict().lookup(at); ok {
			return x
		}
	case kList, kTuple:
		if at.isInteger() && at.k != kBig {
			items := v.items()
			if i := index(at.n, len(items)); i >= 0 {
				return items[i]
			}
			return undefined("an element beyond the end")
		}
	case kString, kMarkup:
		if at.isInteger() && at.k != kBig {
			return c.char(v, at.n)
		}
	case kIter:
		if v.o.(*iter).name == "range" && at.isInteger() && at.k != kBig {
			items := v.o.(*iter).items
			if i := index(at.n, len(items)); i >= 0 {
				return items[i]
			}
			return undefined("an element beyond the end")
		}
	}
	if at.isString() {
		if v.k == kDict { // the key is not there, but an attribute of that name may be
			if hasMethod(v, at.s) {
				return Value{k: kFunc, o: &bound{v, at.s}}
			}
			refuseAttr(v, at.s)
			return undefined(at.s)
		}
		return c.attr(v, at.s)
	}
	return undefined("an element of a " + v.typeName())
}

// index is the place that Python's index means, or -1.
func index(i int64, n int) int {
	if i < 0 {
		i += int64(n)
	}
	if i < 0 || i >= int64(n) {
		return -1
	}
	return int(i)
}

// char is one character of a text, counted in characters.
func (c *context) char(v Value, at int64) Value {
	s := v.s
	if at == 0 && s != "" {
		_, n := utf8.DecodeRuneInString(s)
		return Value{k: v.k, s: s[:n]}
	}
	if at == -1 && s != "" {
		_, n := utf8.DecodeLastRuneInString(s)
		return Value{k: v.k, s: s[len(s)-n:]}
	}
	c.step(len(s) / bytesPerStep)
	n := utf8.RuneCountInString(s)
	i := index(at, n)
	if i < 0 {
		return undefined("a character beyond the end")
	}
	from := byteOf(s, i, n)
	_, size := utf8.DecodeRuneInString(s[from:])
	return Value{k: v.k, s: s[from : from+size]}
}

// byteOf is where the character i of the n characters begins.
func byteOf(s string, i, n int) int {
	if n == len(s) {
		return i
	}
	for at := range s {
		if i == 0 {
			return at
		}
		i--
	}
	return len(s)
}

// slice is v[from:to:step].
func (c *context) slice(v Value, parts [3]Value) Value {
	switch v.k {
	case kMissing, kUndefined:
		failed("'" + v.s + "' is undefined")
	case kString, kMarkup, kList, kTuple:
	case kIter:
		if v.o.(*iter).name == "range" {
			unsupported("slices of a range")
		}
		return undefined("a slice of a " + v.typeName())
	default:
		return undefined("a slice of a " + v.typeName())
	}
	n := 0
	if v.isString() {
		c.step(len(v.s) / bytesPerStep)
		n = utf8.RuneCountInString(v.s)
	} else {
		n = len(v.items())
	}
	step := int64(1)
	bounds := [3]int64{}
	for i, p := range parts {
		switch {
		case p.k == kNone:
		case p.isInteger() && p.k != kBig:
			bounds[i] = p.n
		default:
			// jinja2 takes the TypeError of Python for an element that is not there.
			return undefined("a slice")
		}
	}
	if parts[2].k != kNone {
		step = bounds[2]
	}
	if step == 0 {
		failed("slice step cannot be zero")
	}
	from, to := sliceBounds(parts, bounds, step, n)
	if v.isString() {
		return c.sliceText(v, from, to, step, n)
	}
	items := v.items()
	if step == 1 {
		return Value{k: v.k, o: &list{items[from:max(from, to):max(from, to)]}}
	}
	var out []Value
	for i := int64(from); step > 0 && i < int64(to) || step < 0 && i > int64(to); i += step {
		out = append(out, items[i])
	}
	c.step(len(out))
	return Value{k: v.k, o: &list{out}}
}

// sliceBounds is slice.indices of Python.
func sliceBounds(parts [3]Value, bounds [3]int64, step int64, n int) (from, to int) {
	low, high := int64(0), int64(n)
	if step < 0 {
		low, high = -1, int64(n)-1
	}
	place := func(i int, otherwise int64) int64 {
		if parts[i].k == kNone {
			return otherwise
		}
		b := bounds[i]
		if b < 0 {
			b = max(b+int64(n), low)
		}
		return min(b, high)
	}
	if step < 0 {
		return int(place(0, high)), int(place(1, low))
	}
	return int(place(0, low)), int(place(1, high))
}

func (c *context) sliceText(v Value, from, to int, step int64, n int) Value {
	s := v.s
	if step == 1 {
		if from >= to {
			return Value{k: v.k}
		}
		tail := s[byteOf(s, from, n):]
		return Value{k: v.k, s: tail[:byteOf(tail, to-from, n-from)]}
	}
	runes := []rune(s)
	c.step(len(runes))
	var out []rune
	for i := int64(from); step > 0 && i < int64(to) || step < 0 && i > int64(to); i += step {
		out = append(out, runes[i])
	}
	return Value{k: v.k, s: string(out)}
}

func (c *context) loopAttr(l *loopState, name string) Value {
	i, n := int64(l.at), int64(len(l.items))
	switch name {
	case "index":
		return integer(i + 1)
	case "index0":
		return integer(i)
	case "revindex":
		return integer(n - i)
	case "revindex0":
		return integer(n - i - 1)
	case "first":
		return boolean(i == 0)
	case "last":
		return boolean(i == n-1)
	case "length":
		return integer(n)
	case "depth":
		return integer(1)
	case "depth0":
		return integer(0)
	case "previtem":
		if i > 0 {
			return l.items[i-1]
		}
		return undefined("there is no previous item")
	case "nextitem":
		if i < n-1 {
			return l.items[i+1]
		}
		return undefined("there is no next item")
	case "cycle", "changed":
		return Value{k: kFunc, o: &bound{Value{k: kLoop, o: l}, name}}
	}
	unsupported("loop." + name)
	return Value{}
}
