package jinja

// jump is how a statement ends: on to the next, or out of the loop's body.
type jump uint8

const (
	goOn jump = iota
	doBreak
	doContinue
)

type stmt interface {
	exec(c *context, s *scope) jump
}

func (c *context) run(body []stmt, s *scope) jump {
	for _, st := range body {
		c.step(0)
		if j := st.exec(c, s); j != goOn {
			return j
		}
	}
	return goOn
}

type textStmt struct{ text string }

func (st *textStmt) exec(c *context, _ *scope) jump {
	c.step(len(st.text) / bytesPerStep)
	c.out = append(c.out, st.text...)
	c.room(len(c.out) - c.base)
	return goOn
}

type outputStmt struct {
	line int
	e    expr
}

func (st *outputStmt) exec(c *context, s *scope) jump {
	c.line = st.line
	c.write(st.e.eval(c, s))
	return goOn
}

type jumpStmt jump

func (st jumpStmt) exec(*context, *scope) jump { return jump(st) }

type branch struct {
	cond expr
	body []stmt
}

type ifStmt struct {
	line     int
	branches []branch
	other    []stmt
}

func (st *ifStmt) exec(c *context, s *scope) jump {
	c.line = st.line
	for i := range st.branches {
		if st.branches[i].cond.eval(c, s).truth() {
			return c.run(st.branches[i].body, s)
		}
	}
	return c.run(st.other, s)
}

type forStmt struct {
	line     int
	loop     int // id of the name loop
	targets  []int
	unpack   bool
	iter     expr
	filter   expr
	body     []stmt
	other    []stmt
	captured bool // a macro of the body keeps the scope
}

// loopState is what the variable loop shows.
type loopState struct {
	items   []Value
	at      int
	changed []Value
}

func (st *forStmt) exec(c *context, s *scope) jump {
	c.line = st.line
	items := c.iterate(st.iter.eval(c, s))
	if st.filter != nil {
		items = st.keep(c, s, items)
	}
	if len(items) == 0 {
		return c.run(st.other, &scope{parent: s})
	}
	loop := &loopState{items: items}
	in := &scope{parent: s}
	for i, item := range items {
		c.step(0)
		loop.at = i
		if st.captured {
			in = &scope{parent: s}
		}
		in.ids, in.vals = in.ids[:0], in.vals[:0]
		in.set(st.loop, Value{k: kLoop, o: loop})
		c.assign(in, st.targets, st.unpack, item)
		if c.run(st.body, in) == doBreak {
			break
		}
	}
	return goOn
}

// keep returns the items for which the condition of the loop holds.
func (st *forStmt) keep(c *context, s *scope, items []Value) (kept []Value) {
	for _, item := range items {
		c.step(0)
		in := &scope{parent: s}
		in.set(st.loop, undefined("loop"))
		c.assign(in, st.targets, st.unpack, item)
		if st.filter.eval(c, in).truth() {
			kept = append(kept, item)
		}
	}
	return kept
}

// assign sets one name, or unpacks the value to several.
func (c *context) assign(s *scope, targets []int, unpack bool, v Value) {
	if !unpack {
		s.set(targets[0], v)
		return
	}
	if v.k == kUndefined || v.k == kMissing {
		failed("cannot unpack an undefined value")
	}
	items := c.iterate(v)
	if len(items) != len(targets) {
		failed("the number of values to unpack is not that of the names")
	}
	for i, id := range targets {
		s.set(id, items[i])
	}
}

type setStmt struct {
	line    int
	ns      int // id of the namespace whose attribute is set, or -1
	attr    string
	targets []int
	unpack  bool
	value   expr

	isBlock bool
	filter  expr
	body    []stmt
}

func (st *setStmt) exec(c *context, s *scope) jump {
	c.line = st.line
	var v Value
	if st.isBlock {
		in := &scope{parent: s}
		v = c.made(c.captured(func() { c.run(st.body, in) }))
		if st.filter != nil {
			v = applyTo(st.filter, c, in, v)
		}
	} else {
		v = st.value.eval(c, s)
	}
	if st.ns < 0 {
		c.assign(s, st.targets, st.unpack, v)
		return goOn
	}
	ns := s.get(st.ns)
	if ns.k != kNamespace {
		failed("cannot assign attribute on non-namespace object")
	}
	ns.o.(*namespace).attrs.setText(st.attr, v)
	return goOn
}

// scopeStmt is a block with variables of its own.
type scopeStmt struct {
	line int
	ids  []int
	vals []expr
	body []stmt
}

func (st *scopeStmt) exec(c *context, s *scope) jump {
	in := &scope{parent: s}
	for i, e := range st.vals {
		in.set(st.ids[i], e.eval(c, s))
	}
	return c.run(st.body, in)
}

type filterStmt struct {
	line   int
	filter expr
	body   []stmt
}

func (st *filterStmt) exec(c *context, s *scope) jump {
	c.line = st.line
	in := &scope{parent: s}
	v := c.made(c.captured(func() { c.run(st.body, in) }))
	c.write(applyTo(st.filter, c, in, v))
	return goOn
}

// applyTo applies the chain of filters, whose innermost has no operand, to the value.
func applyTo(e expr, c *context, s *scope, v Value) Value {
	f, ok := e.(*filterExpr)
	if !ok {
		unsupported("a block whose filter is no filter")
	}
	if f.of != nil {
		v = applyTo(f.of, c, s, v)
	}
	return f.apply(c, s, v)
}

type param struct {
	id    int
	name  string
	value expr // nil: none
}

// macro is what {% macro %} and {% call %} define.
type macro struct {
	name                                string
	params                              []param
	body                                []stmt
	varargs, kwargs, caller             int // ids
	usesVarargs, usesKwargs, usesCaller bool
}

// closure is a macro together with the scope that it was defined in.
type closure struct {
	*macro
	scope *scope
}

func (m *closure) call(c *context, a args) Value {
	if c.calls++; c.calls > c.lim.Calls {
		limited("macros that call each other deeper than " + itoa(c.lim.Calls) + " levels")
	}
	defer func(line int) { c.calls--; c.line = line }(c.line)
	in := &scope{parent: m.scope, ids: make([]int, 0, len(m.params)+2), vals: make([]Value, 0, len(m.params)+2)}
	m.bind(c, in, a)
	return c.made(c.captured(func() { c.run(m.body, in) }))
}

// bind sets the parameters in order, so that a default sees those before it.
func (m *closure) bind(c *context, in *scope, a args) {
	if len(a.list) > len(m.params) && !m.usesVarargs {
		failed("macro " + m.name + " takes not more than " + itoa(len(m.params)) + " arguments")
	}
	used := 0
	for i, p := range m.params {
		named, ok := a.get(p.name)
		switch {
		case i < len(a.list):
			if ok {
				failed("macro " + m.name + " got two values for the argument " + p.name)
			}
			in.set(p.id, a.list[i])
		case ok:
			used++
			in.set(p.id, named)
		case p.value != nil:
			in.set(p.id, p.value.eval(c, in))
		default:
			in.set(p.id, undefined(p.name))
		}
	}
	if m.usesVarargs {
		in.set(m.varargs, tupleOf(a.list[min(len(m.params), len(a.list)):]))
	}
	if caller, ok := a.get("caller"); m.usesCaller {
		if !ok {
			caller = undefined("caller")
		} else {
			used++
		}
		in.set(m.caller, caller)
	}
	if used == len(a.names) && !m.usesKwargs {
		return
	}
	rest := &dict{}
	for i, name := range a.names {
		if !m.takes(name) {
			rest.setText(name, a.named[i])
		}
	}
	if m.usesKwargs {
		in.set(m.kwargs, dictOf(rest))
	} else {
		failed("macro " + m.name + " takes no keyword argument " + str(rest.keys()[0]))
	}
}

// takes tells whether the name is a parameter.
func (m *macro) takes(name string) bool {
	for _, p := range m.params {
		if p.name == name {
			return true
		}
	}
	return name == "caller" && m.usesCaller
}

func str(v Value) string { return string(appendStr(nil, v)) }

type macroStmt struct {
	line int
	id   int
	m    *macro
}

func (st *macroStmt) exec(_ *context, s *scope) jump {
	s.set(st.id, Value{k: kFunc, o: &closure{st.m, s}})
	return goOn
}

type callStmt struct {
	line int
	call *callExpr
	m    *macro
}

func (st *callStmt) exec(c *context, s *scope) jump {
	c.line = st.line
	a := st.call.args.eval(c, s)
	if _, ok := a.get("caller"); ok {
		failed("a call block whose call has an argument named caller")
	}
	a.names = append(a.names[:len(a.names):len(a.names)], "caller")
	a.named = append(a.named[:len(a.named):len(a.named)], Value{k: kFunc, o: &closure{st.m, s}})
	c.write(c.call(st.call.fn.eval(c, s), a))
	return goOn
}
