package jinja

import (
	"slices"
	"strings"
)

// fold is jinja2's ignore_case.
func (c *context) fold(v Value) Value {
	if v.isString() {
		c.step(len(v.s) / bytesPerStep)
		return text(lower(v.s))
	}
	return v
}

// keyed is a value with what it is sorted by.
type keyed struct{ key, val Value }

func (c *context) sorted(items []keyed, reverse bool) []Value {
	slices.SortStableFunc(items, func(a, b keyed) int {
		c.step(1)
		if reverse {
			a, b = b, a
		}
		switch {
		case c.less(a.key, b.key, 0):
			return -1
		case c.less(b.key, a.key, 0):
			return 1
		}
		return 0
	})
	out := make([]Value, len(items))
	for i, it := range items {
		out[i] = it.val
	}
	return out
}

// keys pairs the items with the keys that sort, min, max and unique look at.
func (c *context) keys(items []Value, sensitive bool, attribute Value) []keyed {
	out := make([]keyed, len(items))
	for i, x := range items {
		c.step(0)
		k := x
		if attribute.k != kMissing && attribute.k != kNone {
			if attribute.isString() && strings.Contains(attribute.s, ",") {
				unsupported("sorting by several attributes")
			}
			k = c.path(x, attribute, Value{})
		}
		if !sensitive {
			k = c.fold(k)
		}
		if k.k == kFloat && k.float() != k.float() {
			unsupported("sorting NaN")
		}
		out[i] = keyed{k, x}
	}
	return out
}

func filterSort(c *context, v Value, a args) Value {
	p := a.bind("sort", 0, "reverse", "case_sensitive", "attribute")
	return listOf(c.sorted(c.keys(c.iterate(v), p[1].truth(), p[2]), p[0].truth()))
}

func filterDictsort(c *context, v Value, a args) Value {
	p := a.bind("dictsort", 0, "case_sensitive", "by", "reverse")
	if v.k != kDict {
		if v.isUndef() {
			failed("'" + v.s + "' is undefined")
		}
		failed("'" + v.typeName() + "' object has no attribute 'items'")
	}
	at := integer(0)
	if p[1].k != kMissing {
		switch c.str(p[1]) {
		case "key":
		case "value":
			at = integer(1)
		default:
			failed(`You can only sort by either "key" or "value"`)
		}
	}
	return listOf(c.sorted(c.keys(v.dict().pairs(), p[0].truth(), at), p[2].truth()))
}

func filterMin(c *context, v Value, a args) Value { return c.extreme("min", v, a) }
func filterMax(c *context, v Value, a args) Value { return c.extreme("max", v, a) }

func (c *context) extreme(name string, v Value, a args) Value {
	p := a.bind(name, 0, "case_sensitive", "attribute")
	items := c.keys(c.iterate(v), p[0].truth(), p[1])
	if len(items) == 0 {
		return undefined("No aggregated item, sequence was empty.")
	}
	best := items[0]
	for _, it := range items[1:] {
		if name == "min" && c.less(it.key, best.key, 0) || name == "max" && c.less(best.key, it.key, 0) {
			best = it
		}
	}
	return best.val
}

func filterUnique(c *context, v Value, a args) Value {
	p := a.bind("unique", 0, "case_sensitive", "attribute")
	seen, out := &dict{}, []Value(nil)
	for _, it := range c.keys(c.iterate(v), p[0].truth(), p[1]) {
		if !it.key.isString() {
			c.step(seen.len()) // looked up one by one
		}
		if _, ok := seen.lookup(it.key); !ok {
			seen.set(it.key, none)
			out = append(out, it.val)
		}
	}
	return generator("generator", out)
}

func filterSum(c *context, v Value, a args) Value {
	p := a.bind("sum", 0, "attribute", "start")
	sum := p[1]
	if sum.k == kMissing {
		sum = integer(0)
	}
	for _, x := range c.iterate(v) {
		if p[0].k != kMissing && p[0].k != kNone {
			x = c.path(x, p[0], Value{})
		}
		if sum.isString() {
			failed("sum() can't sum strings")
		}
		sum = c.binary("+", sum, x)
	}
	return sum
}

// sortedEntries is a dict's entries in the order of their keys.
func sortedEntries(c *context, entries []entry) []entry {
	out := slices.Clone(entries)
	slices.SortStableFunc(out, func(a, b entry) int {
		c.step(1)
		switch {
		case c.less(a.key, b.key, 0):
			return -1
		case c.less(b.key, a.key, 0):
			return 1
		}
		return 0
	})
	return out
}
