package jinja

import "math"

// test is one test of jinja2, by its name there.
type test struct {
	holds func(c *context, v Value, a args) bool
}

// testTable is a function because filters apply tests by name.
func testTable() map[string]*test { return tests }

var tests map[string]*test

// simple is a test without arguments.
func simple(f func(v Value) bool) *test {
	return &test{func(_ *context, v Value, a args) bool {
		a.bind("test", 0)
		return f(v)
	}}
}

// against is a test that compares with its one argument.
func against(op string) *test {
	return &test{func(c *context, v Value, a args) bool {
		return c.compare(op, v, a.bind("test", 1, "other")[0])
	}}
}

func init() {
	tests = map[string]*test{
		"defined":   simple(func(v Value) bool { return !v.isUndef() }),
		"undefined": simple(Value.isUndef),
		"none":      simple(func(v Value) bool { return v.k == kNone }),
		"boolean":   simple(func(v Value) bool { return v.k == kBool }),
		"true":      simple(func(v Value) bool { return v.k == kBool && v.n != 0 }),
		"false":     simple(func(v Value) bool { return v.k == kBool && v.n == 0 }),
		"integer":   simple(func(v Value) bool { return v.k == kInt || v.k == kBig }),
		"float":     simple(func(v Value) bool { return v.k == kFloat }),
		"number":    simple(Value.isNumber),
		"string":    simple(Value.isString),
		"mapping":   simple(func(v Value) bool { return v.k == kDict }),
		"callable":  simple(func(v Value) bool { return v.k == kFunc || v.k == kLoop }),
		"escaped":   simple(func(v Value) bool { return v.k == kMarkup }),
		"sequence": simple(func(v Value) bool {
			switch v.k {
			case kMissing, kUndefined, kString, kMarkup, kList, kTuple, kDict:
				return true
			case kIter:
				return v.o.(*iter).name == "range"
			}
			return false
		}),
		"iterable": simple(func(v Value) bool {
			switch v.k {
			case kMissing, kUndefined, kString, kMarkup, kList, kTuple, kDict, kIter, kLoop:
				return true
			}
			return false
		}),
		"lower": {func(c *context, v Value, _ args) bool { return isCased(c.str(v), false) }},
		"upper": {func(c *context, v Value, _ args) bool { return isCased(c.str(v), true) }},
		"odd":   {func(c *context, v Value, _ args) bool { return equal(c, c.binary("%", v, integer(2)), integer(1), 0) }},
		"even":  {func(c *context, v Value, _ args) bool { return equal(c, c.binary("%", v, integer(2)), integer(0), 0) }},
		"divisibleby": {func(c *context, v Value, a args) bool {
			return equal(c, c.binary("%", v, a.bind("divisibleby", 1, "num")[0]), integer(0), 0)
		}},
		"sameas": {testSameas},
		"filter": {func(c *context, v Value, _ args) bool { _, ok := filters[c.str(v)]; return ok }},
		"test":   {func(c *context, v Value, _ args) bool { _, ok := tests[c.str(v)]; return ok }},
		"in":     {func(c *context, v Value, a args) bool { return c.contains(a.bind("in", 1, "seq")[0], v) }},
		"==":     against("=="), "eq": against("=="), "equalto": against("=="),
		"!=": against("!="), "ne": against("!="),
		"<": against("<"), "lt": against("<"), "lessthan": against("<"), "<=": against("<="), "le": against("<="),
		">": against(">"), "gt": against(">"), "greaterthan": against(">"), ">=": against(">="), "ge": against(">="),
	}
}

// testSameas is Python's "is". For numbers and text it depends on what the interpreter keeps, so only the others are told.
func testSameas(_ *context, v Value, a args) bool {
	w := a.bind("sameas", 1, "other")[0]
	switch {
	case v.k != w.k:
		return false
	case v.k == kNone:
		return true
	case v.k == kBool:
		return v.n == w.n
	case v.k == kInt && v.n == w.n && math.Abs(float64(v.n)) < 5: // small integers are kept
		return true
	case v.isNumber() || v.isString() || v.isUndef():
		if v.isNumber() && !equal(nil, v, w, 0) || v.isString() && v.s != w.s {
			return false
		}
		unsupported("sameas of equal " + v.typeName() + " values")
	}
	return v.o == w.o
}
