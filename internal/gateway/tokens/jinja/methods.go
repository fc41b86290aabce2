package jinja

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The names that Python's types have, whether done here or not: such a name hides a key of a dict.
var (
	dictMethods = words("clear copy fromkeys get items keys pop popitem setdefault update values")
	listMethods = words("append clear copy count extend index insert pop remove reverse sort")
	rowMethods  = words("count index")
	loopMethods = words("cycle changed")
	textMethods = words("capitalize casefold center count encode endswith expandtabs find format format_map index isalnum isalpha " +
		"isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip " +
		"maketrans partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines " +
		"startswith strip swapcase title translate upper zfill")
)

func words(s string) map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(s) {
		m[w] = true
	}
	return m
}

func hasMethod(v Value, name string) bool {
	switch v.k {
	case kString, kMarkup:
		return textMethods[name]
	case kDict:
		return dictMethods[name]
	case kList:
		return listMethods[name]
	case kTuple:
		return rowMethods[name]
	case kLoop:
		return loopMethods[name]
	}
	return false
}

// method calls v.name(...), which hasMethod knows.
func (c *context) method(v Value, name string, a args) Value {
	c.step(1)
	switch v.k {
	case kDict:
		return c.dictMethod(v.dict(), name, a)
	case kList, kTuple:
		return c.listMethod(v, name, a)
	case kLoop:
		return c.loopMethod(v.o.(*loopState), name, a)
	case kMarkup:
		unsupported("methods of Markup")
	}
	return c.textMethod(v.s, name, a)
}

func (c *context) dictMethod(d *dict, name string, a args) Value {
	view := func(kind string, items []Value) Value {
		a.bind(name, 0)
		c.step(len(items))
		return Value{k: kIter, o: &iter{items: items, view: true, name: "dict_" + kind}}
	}
	switch name {
	case "get":
		if len(a.names) > 0 {
			failed("get() takes no keyword arguments")
		}
		p := a.bind("get", 1, "key", "default")
		if p[0].isUndef() {
			p[0] = undefined(p[0].s)
		} else {
			c.search(d, p[0])
			if x, ok := d.lookup(p[0]); ok {
				return x
			}
		}
		if p[1].k == kMissing {
			return none
		}
		return p[1]
	case "items":
		return view("items", d.pairs())
	case "keys":
		return view("keys", d.keys())
	case "values":
		return view("values", d.values())
	case "copy":
		a.bind(name, 0)
		c.step(d.len())
		out := &dict{entries: slices.Clone(d.entries)}
		if d.index != nil {
			out = &dict{}
			for _, e := range d.entries {
				c.search(out, e.key)
				out.set(e.key, e.val)
			}
		}
		return dictOf(out)
	case "fromkeys":
		unsupported("dict.fromkeys")
	}
	failed("access to attribute '" + name + "' of 'dict' object is unsafe.")
	return Value{}
}

func (c *context) listMethod(v Value, name string, a args) Value {
	items := v.items()
	switch name {
	case "count":
		x, n := a.bind(name, 1, "value")[0], 0
		for _, y := range items {
			c.step(0)
			if equal(c, x, y, 0) {
				n++
			}
		}
		return integer(int64(n))
	case "index":
		x := a.bind(name, 1, "value")[0]
		for i, y := range items {
			c.step(0)
			if equal(c, x, y, 0) {
				return integer(int64(i))
			}
		}
		failed("the value is not in the list")
	case "copy":
		a.bind(name, 0)
		c.step(len(items))
		return listOf(slices.Clone(items))
	}
	failed("access to attribute '" + name + "' of 'list' object is unsafe.")
	return Value{}
}

func (c *context) loopMethod(l *loopState, name string, a args) Value {
	if name == "cycle" {
		if len(a.list) == 0 {
			failed("no items for cycling given")
		}
		return a.list[l.at%len(a.list)]
	}
	if l.changed != nil && len(l.changed) == len(a.list) && slices.EqualFunc(l.changed, a.list, func(x, y Value) bool { return equal(c, x, y, 0) }) {
		return boolean(false)
	}
	l.changed = append(make([]Value, 0, len(a.list)), a.list...)
	return boolean(true)
}

// textMethod is a method of str.
func (c *context) textMethod(s, name string, a args) Value {
	switch name {
	case "strip", "lstrip", "rstrip":
		chars := a.bind(name, 0, "chars")[0]
		return text(strip(s, chars, name != "rstrip", name != "lstrip"))
	case "split", "rsplit":
		return c.split(s, name == "rsplit", a)
	case "splitlines":
		return c.texts(splitLines(s, a.bind(name, 0, "keepends")[0].truth()))
	case "startswith", "endswith":
		return c.affix(s, name, a)
	case "replace":
		p := a.bind(name, 2, "old", "new", "count")
		count := -1
		if p[2].k != kMissing {
			count = c.integer(p[2])
		}
		return c.replace(s, textArg(p[0]), textArg(p[1]), count)
	case "find", "rfind", "index", "rindex":
		return c.find(s, name, a)
	case "count":
		sub := textArg(a.bind(name, 1, "sub")[0])
		return integer(int64(strings.Count(s, sub)))
	case "join":
		return c.join(s, c.iterate(a.bind(name, 1, "iterable")[0]), false)
	case "removeprefix":
		return text(strings.TrimPrefix(s, textArg(a.bind(name, 1, "prefix")[0])))
	case "removesuffix":
		return text(strings.TrimSuffix(s, textArg(a.bind(name, 1, "suffix")[0])))
	case "partition":
		sep := textArg(a.bind(name, 1, "sep")[0])
		if sep == "" {
			failed("empty separator")
		}
		before, after, ok := strings.Cut(s, sep)
		if !ok {
			sep = ""
		}
		return tupleOf([]Value{text(before), text(sep), text(after)})
	case "rpartition":
		sep := textArg(a.bind(name, 1, "sep")[0])
		if sep == "" {
			failed("empty separator")
		}
		if i := strings.LastIndex(s, sep); i >= 0 {
			return tupleOf([]Value{text(s[:i]), text(sep), text(s[i+len(sep):])})
		}
		return tupleOf([]Value{text(""), text(""), text(s)})
	case "ljust", "rjust", "center", "zfill":
		return c.pad(s, name, a)
	case "format":
		return c.formatBraces(s, a)
	}
	a.bind(name, 0)
	return c.plainMethod(s, name)
}

// plainMethod is a method of str without arguments.
func (c *context) plainMethod(s, name string) Value {
	switch name {
	case "lower":
		return c.made(lower(s))
	case "upper":
		return c.made(upper(s))
	case "capitalize":
		return c.made(capitalize(s))
	case "title":
		return c.made(titleMethod(s))
	case "islower":
		return boolean(isCased(s, false))
	case "isupper":
		return boolean(isCased(s, true))
	case "isspace":
		return boolean(s != "" && strings.TrimFunc(s, isSpace) == "")
	case "isascii":
		return boolean(isASCII(s))
	case "isdigit", "isdecimal", "isnumeric", "isalpha", "isalnum":
		if !isASCII(s) && name != "isalpha" {
			unsupported(name + " of text beyond ASCII")
		}
		return boolean(s != "" && strings.IndexFunc(s, func(r rune) bool {
			digit, letter := r >= '0' && r <= '9', unicode.IsLetter(r)
			return !(digit && name != "isalpha" || letter && (name == "isalpha" || name == "isalnum"))
		}) < 0)
	}
	unsupported("the method " + name + " of text")
	return Value{}
}

func textArg(v Value) string {
	if !v.isString() {
		failed("expected str, not " + v.typeName())
	}
	if v.k == kMarkup {
		unsupported("computing with Markup, which escapes what it meets")
	}
	return v.s
}

func (c *context) texts(parts []string) Value {
	c.step(len(parts))
	items := make([]Value, len(parts))
	for i, p := range parts {
		items[i] = text(p)
	}
	return listOf(items)
}

// maxStripped bounds the characters that are stripped: each is looked for in them one by one.
const maxStripped = 1024

// strip is str.strip and its like: white space, or any of the characters.
func strip(s string, chars Value, left, right bool) string {
	cut := isSpace
	if chars.k != kMissing && chars.k != kNone {
		set := textArg(chars)
		if len(set) > maxStripped {
			limited("stripping more than " + itoa(maxStripped) + " characters")
		}
		cut = func(r rune) bool { return strings.ContainsRune(set, r) }
	}
	if left {
		s = strings.TrimLeftFunc(s, cut)
	}
	if right {
		s = strings.TrimRightFunc(s, cut)
	}
	return s
}

func (c *context) split(s string, fromRight bool, a args) Value {
	p := a.bind("split", 0, "sep", "maxsplit")
	limit := -1
	if p[1].k != kMissing {
		limit = c.integer(p[1])
	}
	if p[0].k == kMissing || p[0].k == kNone {
		return c.texts(splitSpace(s, limit, fromRight))
	}
	sep := textArg(p[0])
	if sep == "" {
		failed("empty separator")
	}
	if !fromRight || limit < 0 {
		if limit >= 0 {
			limit++
		}
		return c.texts(strings.SplitN(s, sep, limit))
	}
	var parts []string
	for ; limit > 0; limit-- {
		i := strings.LastIndex(s, sep)
		if i < 0 {
			break
		}
		parts = append(parts, s[i+len(sep):])
		s = s[:i]
	}
	parts = append(parts, s)
	slices.Reverse(parts)
	return c.texts(parts)
}

// splitSpace splits at white space, limit times at most if that is not negative.
func splitSpace(s string, limit int, fromRight bool) (parts []string) {
	if fromRight {
		for s = strings.TrimRightFunc(s, isSpace); s != ""; s = strings.TrimRightFunc(s, isSpace) {
			i := strings.LastIndexFunc(s, isSpace)
			if i < 0 || limit >= 0 && len(parts) == limit {
				parts = append(parts, s)
				break
			}
			_, n := utf8.DecodeRuneInString(s[i:])
			parts = append(parts, s[i+n:])
			s = s[:i]
		}
		if n := len(parts); limit >= 0 && n > limit {
			parts[n-1] = strings.TrimRightFunc(parts[n-1], isSpace)
		}
		slices.Reverse(parts)
		if len(parts) > 0 && limit < 0 {
			parts[0] = strings.TrimLeftFunc(parts[0], isSpace)
		}
		return parts
	}
	for s = strings.TrimLeftFunc(s, isSpace); s != ""; s = strings.TrimLeftFunc(s, isSpace) {
		i := strings.IndexFunc(s, isSpace)
		if i < 0 || limit >= 0 && len(parts) == limit {
			return append(parts, s)
		}
		parts = append(parts, s[:i])
		s = s[i:]
	}
	return parts
}

// splitLines is str.splitlines.
func splitLines(s string, keep bool) (lines []string) {
	for s != "" {
		i := strings.IndexFunc(s, isLineEnd)
		if i < 0 {
			return append(lines, s)
		}
		_, n := utf8.DecodeRuneInString(s[i:])
		if strings.HasPrefix(s[i:], "\r\n") {
			n = 2
		}
		end := i
		if keep {
			end += n
		}
		lines = append(lines, s[:end])
		s = s[i+n:]
	}
	return lines
}

func isLineEnd(r rune) bool {
	return r >= '\n' && r <= '\r' || r >= 0x1c && r <= 0x1e || r == 0x85 || r == 0x2028 || r == 0x2029
}

func (c *context) affix(s, name string, a args) Value {
	p := a.bind(name, 1, "affix", "start", "end")
	if p[1].k != kMissing {
		unsupported(name + " with a start")
	}
	has := strings.HasPrefix
	if name == "endswith" {
		has = strings.HasSuffix
	}
	if p[0].k != kTuple {
		return boolean(has(s, textArg(p[0])))
	}
	return boolean(slices.ContainsFunc(p[0].items(), func(v Value) bool { return has(s, textArg(v)) }))
}

func (c *context) find(s, name string, a args) Value {
	p := a.bind(name, 1, "sub", "start", "end")
	from := 0 // in bytes
	if p[1].k != kMissing {
		if p[2].k != kMissing || strings.HasPrefix(name, "r") {
			unsupported(name + " within bounds")
		}
		n := utf8.RuneCountInString(s)
		start := c.integer(p[1])
		if start < 0 {
			start = max(0, start+n)
		}
		if start > n {
			return integer(-1)
		}
		from = byteOf(s, start, n)
	}
	at := -1
	if strings.HasPrefix(name, "r") {
		at = strings.LastIndex(s, textArg(p[0]))
	} else if at = strings.Index(s[from:], textArg(p[0])); at >= 0 {
		at += from
	}
	if at < 0 {
		if strings.HasSuffix(name, "index") {
			failed("substring not found")
		}
		return integer(-1)
	}
	return integer(int64(utf8.RuneCountInString(s[:at])))
}

func (c *context) pad(s, name string, a args) Value {
	p := a.bind(name, 1, "width", "fillchar")
	fill := " "
	if p[1].k != kMissing {
		fill = textArg(p[1])
	}
	if utf8.RuneCountInString(fill) != 1 {
		failed("The fill character must be exactly one character long")
	}
	missing := c.integer(p[0]) - utf8.RuneCountInString(s)
	if missing <= 0 {
		return text(s)
	}
	c.room(missing * len(fill))
	switch name {
	case "ljust":
		return c.made(s + strings.Repeat(fill, missing))
	case "rjust":
		return c.made(strings.Repeat(fill, missing) + s)
	case "center":
		left := missing/2 + missing&c.integer(p[0])&1
		return c.made(strings.Repeat(fill, left) + s + strings.Repeat(fill, missing-left))
	}
	sign := ""
	if s != "" && (s[0] == '-' || s[0] == '+') {
		sign, s = s[:1], s[1:]
	}
	return c.made(sign + strings.Repeat("0", missing) + s)
}
