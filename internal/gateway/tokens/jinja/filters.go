package jinja

import (
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// filter is one filter of jinja2, by its name there.
type filter struct {
	apply func(c *context, v Value, a args) Value
}

// texts are filters from text to text, without arguments.
func textFilter(f func(s string) string) *filter {
	return &filter{func(c *context, v Value, a args) Value {
		a.bind("filter", 0)
		out := c.made(f(c.str(v)))
		if v.k == kMarkup {
			out.k = kMarkup
		}
		return out
	}}
}

// filterTable is a function because some filters apply others by name.
func filterTable() map[string]*filter { return filters }

var filters map[string]*filter

func init() {
	filters = map[string]*filter{
		"abs": {filterAbs}, "attr": {filterAttr}, "batch": {filterBatch}, "capitalize": textFilter(capitalize),
		"count": {filterLength}, "length": {filterLength}, "d": {filterDefault}, "default": {filterDefault},
		"dictsort": {filterDictsort}, "e": {filterEscape}, "escape": {filterEscape}, "first": {filterFirst}, "last": {filterLast}, "float": {filterFloat}, "format": {filterFormat},
		"from_json": {filterFromJSON}, "fromjson": {filterFromJSON}, "indent": {filterIndent}, "int": {filterInt},
		"items": {filterItems}, "join": {filterJoin}, "list": {filterList}, "lower": textFilter(lower), "upper": textFilter(upper),
		"map": {filterMap}, "max": {filterMax}, "min": {filterMin}, "reject": {filterReject}, "rejectattr": {filterRejectattr},
		"select": {filterSelect}, "selectattr": {filterSelectattr}, "replace": {filterReplace}, "reverse": {filterReverse},
		"round": {filterRound}, "safe": {filterSafe}, "sort": {filterSort}, "string": {filterString}, "sum": {filterSum},
		"title": textFilter(titleFilter), "tojson": {filterTojson}, "trim": {filterTrim}, "unique": {filterUnique},
		"wordcount": {func(c *context, v Value, a args) Value { return integer(int64(wordcount(c.str(v)))) }},
	}
}

func filterSafe(c *context, v Value, a args) Value {
	a.bind("safe", 0)
	return Value{k: kMarkup, s: c.str(v)}
}

func filterEscape(c *context, v Value, a args) Value {
	a.bind("escape", 0)
	if v.k != kMarkup {
		c.room(len(v.s))
		v = Value{k: kMarkup, s: escape(text(c.str(v)))}
		c.step(len(v.s) / bytesPerStep)
		c.room(len(v.s))
	}
	return v
}

func filterString(c *context, v Value, a args) Value {
	a.bind("string", 0)
	if v.isString() {
		return v
	}
	return c.made(c.str(v))
}

func filterDefault(_ *context, v Value, a args) Value {
	p := a.bind("default", 0, "default_value", "boolean")
	if p[0].k == kMissing {
		p[0] = text("")
	}
	if v.isUndef() || p[1].truth() && !v.truth() {
		return p[0]
	}
	return v
}

func filterLength(c *context, v Value, a args) Value {
	a.bind("length", 0)
	switch v.k {
	case kMissing, kUndefined:
		return integer(0)
	case kString, kMarkup:
		return integer(int64(utf8.RuneCountInString(v.s)))
	case kList, kTuple:
		return integer(int64(len(v.items())))
	case kDict:
		return integer(int64(v.dict().len()))
	case kIter:
		if it := v.o.(*iter); it.view {
			return integer(int64(len(it.items)))
		}
	case kLoop:
		return integer(int64(len(v.o.(*loopState).items)))
	}
	failed("object of type '" + v.typeName() + "' has no len()")
	return Value{}
}

func filterTrim(c *context, v Value, a args) Value {
	chars := a.bind("trim", 0, "chars")[0]
	out := Value{k: kString, s: strip(c.str(v), chars, true, true)}
	if v.k == kMarkup {
		out.k = kMarkup
	}
	return out
}

// plain is the text of a value that must not be Markup, which would escape what it is joined with.
func (c *context) plain(v Value) string {
	if v.k == kMarkup {
		unsupported("computing with Markup, which escapes what it meets")
	}
	return c.str(v)
}

func filterReplace(c *context, v Value, a args) Value {
	p := a.bind("replace", 2, "old", "new", "count")
	count := -1
	if p[2].k != kMissing && p[2].k != kNone {
		count = c.integer(p[2])
	}
	return c.replace(c.str(v), c.str(p[0]), c.str(p[1]), count)
}

// replace is str.replace.
func (c *context) replace(s, old, with string, count int) Value {
	n := strings.Count(s, old)
	if count >= 0 {
		n = min(n, count)
	}
	c.step(len(s) / bytesPerStep)
	c.room(len(s) + n*max(0, len(with)-len(old)))
	return c.made(strings.Replace(s, old, with, count))
}

// integer is an argument that must be an integer.
func (c *context) integer(v Value) int {
	if !v.isInteger() {
		failed("'" + v.typeName() + "' object cannot be interpreted as an integer")
	}
	if v.k == kBig || v.n > math.MaxInt32 || v.n < math.MinInt32 {
		unsupported("an integer beyond 32 bits as an argument")
	}
	return int(v.n)
}

func filterJoin(c *context, v Value, a args) Value {
	p := a.bind("join", 0, "d", "attribute")
	items := c.iterate(v)
	if p[1].k != kMissing && p[1].k != kNone {
		items = c.each(items, func(x Value) Value { return c.path(x, p[1], Value{}) })
	}
	sep := ""
	if p[0].k != kMissing {
		sep = c.str(p[0])
	}
	return c.join(sep, items, true)
}

// join joins texts; with convert also other values.
func (c *context) join(sep string, items []Value, convert bool) Value {
	var b []byte
	for i, x := range items {
		if i > 0 {
			b = append(b, sep...)
		}
		c.step((len(x.s) + len(sep)) / bytesPerStep)
		if !x.isString() {
			if !convert {
				failed("sequence item " + itoa(i) + ": expected str instance, " + x.typeName() + " found")
			}
			b = append(b, c.str(x)...)
		} else {
			b = append(b, x.s...)
		}
		c.room(len(b))
	}
	return text(string(b))
}

func (c *context) each(items []Value, f func(Value) Value) []Value {
	out := make([]Value, len(items))
	for i, x := range items {
		c.step(0)
		out[i] = f(x)
	}
	return out
}

// path follows an attribute like "function.name" or 0, each part as an element; otherwise, unless missing, stands for
// one that is not there.
func (c *context) path(v, attribute, otherwise Value) Value {
	follow := func(part Value) {
		v = c.item(v, part)
		if v.isUndef() && otherwise.k != kMissing && otherwise.k != kNone {
			v = otherwise
		}
	}
	if !attribute.isString() {
		follow(attribute)
		return v
	}
	for part := range strings.SplitSeq(attribute.s, ".") {
		if n, err := strconv.Atoi(part); err == nil && n >= 0 && part[0] != '+' {
			follow(integer(int64(n)))
		} else {
			follow(text(part))
		}
	}
	return v
}

func filterAttr(c *context, v Value, a args) Value {
	name := a.bind("attr", 1, "name")[0]
	if !name.isString() || v.k == kDict && !hasMethod(v, name.s) {
		return undefined("an attribute")
	}
	return c.attr(v, name.s)
}

func filterFirst(c *context, v Value, a args) Value {
	a.bind("first", 0)
	if v.isString() && v.s != "" {
		return c.char(v, 0)
	}
	if v.k == kIter && !v.o.(*iter).view {
		it := v.o.(*iter)
		if it.used || len(it.items) == 0 {
			return undefined("No first item, sequence was empty.")
		}
		first := it.items[0]
		v.o = &iter{items: it.items[1:], name: it.name}
		it.items = it.items[1:]
		return first
	}
	if items := c.iterate(v); len(items) > 0 {
		return items[0]
	}
	return undefined("No first item, sequence was empty.")
}

func filterLast(c *context, v Value, a args) Value {
	a.bind("last", 0)
	if v.isString() && v.s != "" {
		return c.char(v, -1)
	}
	if v.k == kIter && !v.o.(*iter).view {
		failed("'" + v.typeName() + "' object is not reversible")
	}
	if items := c.iterate(v); len(items) > 0 {
		return items[len(items)-1]
	}
	return undefined("No last item, sequence was empty.")
}

func filterList(c *context, v Value, a args) Value {
	a.bind("list", 0)
	items := c.iterate(v)
	c.step(len(items))
	return listOf(slices.Clone(items))
}

func filterItems(_ *context, v Value, a args) Value {
	a.bind("items", 0)
	switch {
	case v.isUndef():
		return generator("generator", nil)
	case v.k != kDict:
		failed("Can only get item pairs from a mapping.")
	}
	return generator("generator", v.dict().pairs())
}

func filterReverse(c *context, v Value, a args) Value {
	a.bind("reverse", 0)
	if v.isString() {
		return c.slice(v, [3]Value{none, none, integer(-1)})
	}
	items := slices.Clone(c.iterate(v))
	slices.Reverse(items)
	if v.k == kIter && !v.o.(*iter).view {
		return listOf(items)
	}
	return generator("reversed", items)
}

func filterMap(c *context, v Value, a args) Value {
	items := c.iterate(v)
	if attribute, ok := a.get("attribute"); ok && len(a.list) == 0 {
		otherwise, _ := a.get("default")
		return generator("generator", c.each(items, func(x Value) Value { return c.path(x, attribute, otherwise) }))
	}
	if len(a.list) == 0 || !a.list[0].isString() {
		failed("map requires a filter argument")
	}
	f, ok := filters[a.list[0].s]
	if !ok {
		unsupported("the filter " + a.list[0].s)
	}
	rest := args{a.list[1:], a.names, a.named}
	return generator("generator", c.each(items, func(x Value) Value {
		c.step(len(x.s) / bytesPerStep)
		return f.apply(c, x, rest)
	}))
}

func filterSelect(c *context, v Value, a args) Value     { return c.pick(v, a, true, false) }
func filterReject(c *context, v Value, a args) Value     { return c.pick(v, a, false, false) }
func filterSelectattr(c *context, v Value, a args) Value { return c.pick(v, a, true, true) }
func filterRejectattr(c *context, v Value, a args) Value { return c.pick(v, a, false, true) }

// pick keeps the items for which a test holds, or not.
func (c *context) pick(v Value, a args, want, byAttr bool) Value {
	if !v.truth() && v.k <= kTuple {
		return generator("generator", nil)
	}
	var attribute Value
	if byAttr {
		if len(a.list) == 0 {
			failed("Missing parameter for attribute name")
		}
		attribute, a.list = a.list[0], a.list[1:]
	}
	holds := func(x Value) bool { return x.truth() }
	if len(a.list) > 0 {
		t, ok := testTable()[a.list[0].s]
		if !ok || !a.list[0].isString() {
			unsupported("the test " + c.str(a.list[0]))
		}
		rest := args{a.list[1:], a.names, a.named}
		holds = func(x Value) bool { return t.holds(c, x, rest) }
	}
	var kept []Value
	for _, x := range c.iterate(v) {
		c.step(0)
		y := x
		if byAttr {
			y = c.path(x, attribute, Value{})
		}
		if holds(y) == want {
			kept = append(kept, x)
		}
	}
	return generator("generator", kept)
}

func filterBatch(c *context, v Value, a args) Value {
	p := a.bind("batch", 1, "linecount", "fill_with")
	n := c.integer(p[0])
	if n < 1 {
		unsupported("batches of no items")
	}
	var out []Value
	for chunk := range slices.Chunk(c.iterate(v), n) {
		chunk = slices.Clone(chunk)
		c.step(len(chunk))
		if p[1].k != kMissing && p[1].k != kNone {
			c.step(n)
			for len(chunk) < n {
				chunk = append(chunk, p[1])
			}
		}
		out = append(out, listOf(chunk))
	}
	return generator("generator", out)
}

func filterAbs(c *context, v Value, a args) Value {
	a.bind("abs", 0)
	switch {
	case !v.isNumber():
		failed("bad operand type for abs(): '" + v.typeName() + "'")
	case v.k == kFloat:
		return float(math.Abs(v.float()))
	case v.k == kBig:
		return bigInt(new(big.Int).Abs(v.big()))
	case v.n < 0:
		return c.arith("-", integer(0), v)
	}
	return integer(v.n)
}

func filterInt(c *context, v Value, a args) Value {
	p := a.bind("int", 0, "default", "base")
	if p[0].k == kMissing {
		p[0] = integer(0)
	}
	if p[1].k != kMissing && c.integer(p[1]) != 10 {
		unsupported("int with a base")
	}
	switch v.k {
	case kMissing, kUndefined:
		failed("'" + v.s + "' is undefined")
	case kBool, kInt:
		return integer(v.n)
	case kBig:
		return v
	case kFloat:
		return truncated(v.float(), p[0])
	case kString, kMarkup:
		s := strings.TrimFunc(v.s, isSpace)
		if n, ok := parseInt(s); ok {
			return bigInt(n)
		}
		if f, ok := parseFloat(s); ok {
			return truncated(f, p[0])
		}
	}
	return p[0]
}

func truncated(f float64, otherwise Value) Value {
	if math.IsInf(f, 0) || math.IsNaN(f) {
		return otherwise
	}
	n, _ := big.NewFloat(f).Int(nil)
	return bigInt(n)
}

// parseInt reads what Python's int() reads of ASCII text.
func parseInt(s string) (*big.Int, bool) {
	digits := strings.TrimLeft(s, "+-")
	if len(s)-len(digits) > 1 || !plainDigits(digits) || len(digits) > 4300 {
		return nil, false
	}
	return new(big.Int).SetString(strings.ReplaceAll(s, "_", ""), 10)
}

func plainDigits(s string) bool {
	for i, r := range s {
		if r >= utf8.RuneSelf {
			unsupported("a number in digits beyond ASCII")
		}
		if (r < '0' || r > '9') && (r != '_' || i == 0 || i == len(s)-1 || s[i-1] == '_') {
			return false
		}
	}
	return s != ""
}

// parseFloat reads what Python's float() reads of ASCII text.
func parseFloat(s string) (float64, bool) {
	if s == "" || strings.ContainsAny(s, "xXpP") {
		return 0, false
	}
	if strings.Contains(s, "_") {
		unsupported("a float with underscores")
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && !math.IsInf(f, 0) {
		return 0, false
	}
	return f, true
}

func filterFloat(_ *context, v Value, a args) Value {
	otherwise := a.bind("float", 0, "default")[0]
	if otherwise.k == kMissing {
		otherwise = float(0)
	}
	switch {
	case v.isUndef():
		failed("'" + v.s + "' is undefined")
	case v.isNumber():
		return float(v.asFloat())
	case v.isString():
		if f, ok := parseFloat(strings.TrimFunc(v.s, isSpace)); ok {
			return float(f)
		}
	}
	return otherwise
}

func filterRound(c *context, v Value, a args) Value {
	p := a.bind("round", 0, "precision", "method")
	precision, method := 0, "common"
	if p[0].k != kMissing {
		precision = c.integer(p[0])
	}
	if p[1].k != kMissing {
		method = c.str(p[1])
	}
	if !v.isNumber() {
		failed("type " + v.typeName() + " doesn't define __round__ method")
	}
	if method == "common" && v.isInteger() && precision >= 0 {
		return c.arith("+", v, integer(0))
	}
	if precision < 0 || precision > 15 {
		unsupported("rounding to that precision")
	}
	f := v.asFloat()
	switch scale := math.Pow10(precision); method {
	case "common":
		// Python rounds the decimal value correctly, as strconv does.
		r, err := strconv.ParseFloat(strconv.FormatFloat(f, 'f', precision, 64), 64)
		if err != nil {
			unsupported("rounding that number")
		}
		return float(r)
	case "ceil":
		return float(math.Ceil(f*scale) / scale)
	case "floor":
		return float(math.Floor(f*scale) / scale)
	}
	failed("method must be common, ceil or floor")
	return Value{}
}

func filterIndent(c *context, v Value, a args) Value {
	p := a.bind("indent", 0, "width", "first", "blank")
	by := "    "
	if p[0].isString() {
		by = p[0].s
	} else if p[0].k != kMissing {
		n := max(0, c.integer(p[0]))
		c.room(n)
		by = strings.Repeat(" ", n)
	}
	if !v.isString() {
		failed("indent takes text, not " + v.typeName())
	}
	lines := splitLines(c.plain(v)+"\n", false)
	c.room(len(v.s) + len(lines)*len(by))
	var b strings.Builder
	for i, line := range lines {
		if i > 0 {
			b.WriteByte('\n')
		}
		if i == 0 && p[1].truth() || i > 0 && (line != "" || p[2].truth()) {
			b.WriteString(by)
		}
		b.WriteString(line)
	}
	return c.made(b.String())
}

func filterFormat(c *context, v Value, a args) Value {
	if len(a.names) > 0 {
		unsupported("format with named arguments")
	}
	return c.format(c.plain(v), tupleOf(a.list))
}

func filterFromJSON(_ *context, v Value, a args) Value {
	a.bind("from_json", 0)
	if !v.isString() {
		failed("the JSON object must be str, bytes or bytearray, not " + v.typeName())
	}
	out, err := ParseJSON([]byte(v.s))
	if err != nil {
		failed(err.Error())
	}
	return out
}

func filterTojson(c *context, v Value, a args) Value {
	p := a.bind("tojson", 0, "ensure_ascii", "indent", "separators", "sort_keys")
	w := &dumper{ascii: p[0].truth(), sorted: p[3].truth(), itemSep: ", ", keySep: ": "}
	switch q := p[1]; {
	case q.k == kMissing || q.k == kNone:
	case q.isString():
		w.indented, w.indent, w.itemSep = true, q.s, ","
	default:
		n := max(0, c.integer(q))
		c.room(n)
		w.indented, w.indent, w.itemSep = true, strings.Repeat(" ", n), ","
	}
	if q := p[2]; q.k != kMissing && q.k != kNone {
		seps := c.iterate(q)
		if len(seps) != 2 || !seps[0].isString() || !seps[1].isString() {
			failed("separators must be two texts")
		}
		w.itemSep, w.keySep = seps[0].s, seps[1].s
	}
	w.value(c, v, 0)
	return text(string(w.dst))
}
