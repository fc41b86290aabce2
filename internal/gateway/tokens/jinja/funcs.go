package jinja

import (
	"strconv"
	"strings"
	"time"
)

// function is what a template calls by a global name.
type function struct {
	name string
	call func(c *context, a args) Value
}

// bound is a method together with its value.
type bound struct {
	of   Value
	name string
}

// maxRange is the sandbox's limit of range().
const maxRange = 100_000

var globals = map[string]*function{
	"range":           {"range", callRange},
	"namespace":       {"namespace", callNamespace},
	"dict":            {"dict", func(c *context, a args) Value { return dictOf(dictFrom(c, a)) }},
	"raise_exception": {"raise_exception", callRaise},
	"strftime_now":    {"strftime_now", callStrftime},
	"joiner":          {"joiner", callJoiner},
	"cycler":          {"cycler", func(*context, args) Value { unsupported("cycler"); return Value{} }},
	"lipsum":          {"lipsum", func(*context, args) Value { unsupported("lipsum"); return Value{} }},
}

func callRange(c *context, a args) Value {
	if len(a.names) > 0 || len(a.list) == 0 || len(a.list) > 3 {
		failed("range takes one to three arguments")
	}
	bounds := [3]int64{0, 0, 1}
	for i, v := range a.list {
		if !v.isInteger() || v.k == kBig {
			failed("'" + v.typeName() + "' object cannot be interpreted as an integer")
		}
		if v.n > 1<<40 || v.n < -1<<40 {
			failed("Range too big")
		}
		bounds[i] = v.n
	}
	if len(a.list) == 1 {
		bounds[0], bounds[1] = 0, bounds[0]
	}
	from, to, step := bounds[0], bounds[1], bounds[2]
	if step == 0 {
		failed("range() arg 3 must not be zero")
	}
	n := int64(0)
	if step > 0 && to > from {
		n = (to - from + step - 1) / step
	} else if step < 0 && to < from {
		n = (from - to - step - 1) / -step
	}
	if n > maxRange {
		failed("Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).")
	}
	c.step(int(n))
	items := make([]Value, n)
	for i := range items {
		items[i] = integer(from + int64(i)*step)
	}
	return Value{k: kIter, o: &iter{items: items, view: true, name: "range"}}
}

// dictFrom is dict(...): of a dict or of pairs, and of the named arguments.
func dictFrom(c *context, a args) *dict {
	d := &dict{}
	if len(a.list) > 1 {
		failed("dict expected at most 1 argument")
	}
	for _, v := range a.list {
		if v.k == kDict {
			for _, e := range v.dict().entries {
				c.search(d, e.key)
				d.set(e.key, e.val)
			}
			continue
		}
		for _, pair := range c.iterate(v) {
			kv := c.iterate(pair)
			if len(kv) != 2 {
				failed("dictionary update sequence element has not length 2")
			}
			c.search(d, kv[0])
			d.set(kv[0], kv[1])
		}
	}
	for i, name := range a.names {
		d.setText(name, a.named[i])
	}
	c.step(d.len())
	return d
}

func callNamespace(c *context, a args) Value {
	return Value{k: kNamespace, o: &namespace{dictFrom(c, a)}}
}

func callRaise(_ *context, a args) Value {
	msg := a.bind("raise_exception", 1, "message")[0]
	panic(&Error{Class: ErrRaised, Msg: str(msg)})
}

func callJoiner(c *context, a args) Value {
	sep, used := a.bind("joiner", 0, "sep")[0], false
	if sep.k == kMissing {
		sep = text(", ")
	}
	return Value{k: kFunc, o: &function{"joiner", func(*context, args) Value {
		if !used {
			used = true
			return text("")
		}
		return sep
	}}}
}

func callStrftime(c *context, a args) Value {
	format := a.bind("strftime_now", 1, "format")[0]
	if !format.isString() {
		failed("strftime() argument 1 must be str")
	}
	return c.made(strftime(c.now, format.s))
}

// strftime formats as C does in the C locale.
func strftime(t time.Time, format string) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			b.WriteByte(format[i])
			continue
		}
		i++
		bare := i < len(format) && format[i] == '-' // without leading zeros
		if bare {
			i++
		}
		if i == len(format) {
			unsupported("a time format that ends in %")
		}
		out, ok := timeField(t, format[i])
		if !ok {
			unsupported("%" + string(format[i]) + " in a time format")
		}
		if bare {
			if out = strings.TrimLeft(out, "0 "); out == "" {
				out = "0"
			}
		}
		b.WriteString(out)
	}
	return b.String()
}

var timeLayouts = map[byte]string{
	'd': "02", 'm': "01", 'y': "06", 'Y': "2006", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM", 'a': "Mon", 'A': "Monday",
	'b': "Jan", 'h': "Jan", 'B': "January", 'e': "_2", 'D': "01/02/06", 'x': "01/02/06", 'F': "2006-01-02", 'T': "15:04:05", 'X': "15:04:05",
	'R': "15:04", 'j': "002", 'c': "Mon Jan _2 15:04:05 2006",
}

func timeField(t time.Time, c byte) (string, bool) {
	if layout, ok := timeLayouts[c]; ok {
		return t.Format(layout), true
	}
	switch c {
	case '%':
		return "%", true
	case 'n':
		return "\n", true
	case 't':
		return "\t", true
	case 'f':
		us := strconv.Itoa(t.Nanosecond() / 1000)
		return strings.Repeat("0", 6-len(us)) + us, true
	case 'w':
		return strconv.Itoa(int(t.Weekday())), true
	case 'u':
		return strconv.Itoa((int(t.Weekday())+6)%7 + 1), true
	case 'z', 'Z':
		return "", true // Hugging Face asks datetime.now(), which knows no zone
	}
	return "", false
}
