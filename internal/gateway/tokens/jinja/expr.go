package jinja

type expr interface {
	eval(c *context, s *scope) Value
}

type constExpr struct{ v Value }

func constant(v Value) expr { return &constExpr{v} }

func (e *constExpr) eval(*context, *scope) Value { return e.v }

type nameExpr struct {
	id   int
	name string
}

func (e *nameExpr) eval(_ *context, s *scope) Value {
	v := s.get(e.id)
	if v.k == kMissing {
		return undefined(e.name)
	}
	return v
}

type condExpr struct{ cond, then, other expr }

func (e *condExpr) eval(c *context, s *scope) Value {
	if e.cond.eval(c, s).truth() {
		return e.then.eval(c, s)
	}
	if e.other == nil {
		return undefined("the value of an if without else")
	}
	return e.other.eval(c, s)
}

type boolExpr struct {
	left, right expr
	or          bool
}

func (e *boolExpr) eval(c *context, s *scope) Value {
	if v := e.left.eval(c, s); v.truth() == e.or {
		return v
	}
	return e.right.eval(c, s)
}

type notExpr struct{ e expr }

func (e *notExpr) eval(c *context, s *scope) Value { return boolean(!e.e.eval(c, s).truth()) }

type comparison struct {
	op string
	e  expr
}

type compareExpr struct {
	first expr
	ops   []comparison
}

func (e *compareExpr) eval(c *context, s *scope) Value {
	left := e.first.eval(c, s)
	for _, op := range e.ops {
		right := op.e.eval(c, s)
		if !c.compare(op.op, left, right) {
			return boolean(false)
		}
		left = right
	}
	return boolean(true)
}

type binaryExpr struct {
	op          string
	left, right expr
}

func (e *binaryExpr) eval(c *context, s *scope) Value {
	left := e.left.eval(c, s)
	return c.binary(e.op, left, e.right.eval(c, s))
}

type unaryExpr struct {
	op byte
	e  expr
}

func (e *unaryExpr) eval(c *context, s *scope) Value {
	v := e.e.eval(c, s)
	if !v.isNumber() {
		failed("bad operand type for unary " + string(e.op) + ": '" + v.typeName() + "'")
	}
	if e.op == '-' {
		if v.k == kFloat {
			return float(-v.float())
		}
		return c.arith("-", integer(0), v)
	}
	if v.k == kBool {
		return integer(v.n)
	}
	return v
}

type concatExpr struct{ parts []expr }

func (e *concatExpr) eval(c *context, s *scope) Value {
	vals := make([]Value, len(e.parts), 8)
	n := 0
	for i, p := range e.parts {
		vals[i] = p.eval(c, s)
		n += len(vals[i].s)
	}
	c.room(n)
	b := make([]byte, 0, n+16)
	for _, v := range vals {
		if v.isString() {
			b = append(b, v.s...)
		} else {
			b = append(b, c.str(v)...)
		}
	}
	return c.made(string(b))
}

type listExpr struct {
	items []expr
	tuple bool
}

func (e *listExpr) eval(c *context, s *scope) Value {
	items := make([]Value, len(e.items))
	for i, x := range e.items {
		items[i] = x.eval(c, s)
	}
	c.step(len(items))
	if e.tuple {
		return tupleOf(items)
	}
	return listOf(items)
}

type dictExpr struct{ keys, vals []expr }

func (e *dictExpr) eval(c *context, s *scope) Value {
	d := &dict{}
	for i, k := range e.keys {
		key := k.eval(c, s)
		c.search(d, key)
		d.set(key, e.vals[i].eval(c, s))
	}
	c.step(len(e.keys))
	return dictOf(d)
}

type attrExpr struct {
	of   expr
	name string
}

func (e *attrExpr) eval(c *context, s *scope) Value { return c.attr(e.of.eval(c, s), e.name) }

type itemExpr struct{ of, at expr }

func (e *itemExpr) eval(c *context, s *scope) Value {
	of := e.of.eval(c, s)
	return c.item(of, e.at.eval(c, s))
}

type sliceExpr struct {
	of    expr
	parts [3]expr
}

func (e *sliceExpr) eval(c *context, s *scope) Value {
	of := e.of.eval(c, s)
	var parts [3]Value
	for i, p := range e.parts {
		parts[i] = none
		if p != nil {
			parts[i] = p.eval(c, s)
		}
	}
	return c.slice(of, parts)
}

// arguments are those of a call in the template, args those of one call.
type arguments struct {
	list  []expr
	names []string
	named []expr
}

type args struct {
	list  []Value
	names []string
	named []Value
}

func (a *args) get(name string) (Value, bool) {
	for i, n := range a.names {
		if n == name {
			return a.named[i], true
		}
	}
	return Value{}, false
}

func (a *arguments) eval(c *context, s *scope) (out args) {
	if len(a.list) > 0 {
		out.list = make([]Value, len(a.list))
		for i, e := range a.list {
			out.list[i] = e.eval(c, s)
		}
	}
	if len(a.names) > 0 {
		out.names, out.named = a.names, make([]Value, len(a.named))
		for i, e := range a.named {
			out.named[i] = e.eval(c, s)
		}
	}
	return out
}

// bind gives each parameter its argument, by place or by name; a missing one is kMissing. The first required must be there.
func (a *args) bind(fn string, required int, params ...string) []Value {
	if len(a.list) > len(params) {
		failed(fn + "() takes at most " + itoa(len(params)) + " arguments")
	}
	out := make([]Value, len(params))
	copy(out, a.list)
	for i, name := range a.names {
		at := -1
		for j, p := range params {
			if p == name {
				at = j
			}
		}
		if at < 0 || at < len(a.list) {
			failed(fn + "() got an unexpected keyword argument '" + name + "'")
		}
		out[at] = a.named[i]
	}
	for i := range required {
		if out[i].k == kMissing {
			failed(fn + "() misses the argument '" + params[i] + "'")
		}
	}
	return out
}

type callExpr struct {
	fn   expr
	args arguments
}

func (e *callExpr) eval(c *context, s *scope) Value {
	if a, ok := e.fn.(*attrExpr); ok {
		// A method is called without making a value of it first.
		of := a.of.eval(c, s)
		if hasMethod(of, a.name) {
			c.step(len(of.s) / bytesPerStep)
			return c.method(of, a.name, e.args.eval(c, s))
		}
		return c.call(c.attr(of, a.name), e.args.eval(c, s))
	}
	fn := e.fn.eval(c, s)
	return c.call(fn, e.args.eval(c, s))
}

// call calls whatever can be called.
func (c *context) call(fn Value, a args) Value {
	c.step(1)
	switch f := fn.o.(type) {
	case *closure:
		return f.call(c, a)
	case *function:
		return f.call(c, a)
	case *bound:
		c.step(len(f.of.s) / bytesPerStep)
		return c.method(f.of, f.name, a)
	}
	if fn.isUndef() {
		failed("'" + fn.s + "' is undefined")
	}
	if fn.k == kLoop {
		failed("the loop must have the marker recursive to be called")
	}
	failed("'" + fn.typeName() + "' object is not callable")
	return Value{}
}

type filterExpr struct {
	of   expr
	name string
	fn   *filter
	args arguments
}

func (e *filterExpr) eval(c *context, s *scope) Value { return e.apply(c, s, e.of.eval(c, s)) }

func (e *filterExpr) apply(c *context, s *scope, v Value) Value {
	c.step(len(v.s) / bytesPerStep)
	return e.fn.apply(c, v, e.args.eval(c, s))
}

type testExpr struct {
	of   expr
	name string
	fn   *test
	args arguments
}

func (e *testExpr) eval(c *context, s *scope) Value {
	v := e.of.eval(c, s)
	c.step(len(v.s) / bytesPerStep)
	return boolean(e.fn.holds(c, v, e.args.eval(c, s)))
}
