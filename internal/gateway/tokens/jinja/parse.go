package jinja

import (
	"math/big"
	"slices"
	"strconv"
)

// A template's nesting is bounded, so that neither the parser nor the evaluation of macros within macros can use up the
// stack, which ends a process: with both bounds and that of calls reached it stays below Go's 1 GB, as a test shows.
const (
	// maxNesting bounds how deep tags and expressions stand within each other. The deepest template that we know nests 20 levels.
	maxNesting = 100
	// maxChain bounds what follows a value in a row: operators of one rank, subscripts and calls, filters. The longest row
	// that we know has 25.
	maxChain = 64
)

// parser is a recursive-descent parser with the grammar of jinja2's own.
type parser struct {
	toks  []token
	pos   int
	depth int

	ids   map[string]int
	names []string // by id, in order of first sight
	seen  []int    // ids of names read so far, for what a macro's body uses
	made  int      // macros and call blocks so far: what may keep a scope alive
	loops int      // loops around, within this macro
}

func (p *parser) peek() token { return p.toks[p.pos] }

func (p *parser) next() token {
	t := p.toks[p.pos]
	if t.kind != tokEOF {
		p.pos++
	}
	return t
}

func (p *parser) fail(msg string) { panic(&Error{Class: ErrSyntax, Line: p.peek().line, Msg: msg}) }

func (p *parser) refuse(msg string) {
	panic(&Error{Class: ErrUnsupported, Line: p.peek().line, Msg: msg})
}

func (p *parser) enter() {
	if p.depth++; p.depth > maxNesting {
		p.refuse("a template that nests deeper than " + strconv.Itoa(maxNesting) + " levels")
	}
}

// chain refuses the element n of a row that is too long.
func (p *parser) chain(n int) {
	if n > maxChain {
		p.refuse("more than " + strconv.Itoa(maxChain) + " operators, subscripts or filters in a row")
	}
}

func (p *parser) leave() { p.depth-- }

func (p *parser) isOp(text string) bool {
	t := p.peek()
	return t.kind == tokOperator && t.text == text
}

func (p *parser) skipOp(text string) bool {
	if p.isOp(text) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) isName(text string) bool {
	t := p.peek()
	return t.kind == tokName && t.text == text
}

func (p *parser) skipName(text string) bool {
	if p.isName(text) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) wantOp(text string) {
	if !p.skipOp(text) {
		p.fail("expected " + strconv.Quote(text) + ", got " + p.peek().show())
	}
}

func (p *parser) wantName() string {
	if t := p.peek(); t.kind != tokName {
		p.fail("expected a name, got " + t.show())
	}
	return p.next().text
}

func (t token) show() string {
	switch t.kind {
	case tokEOF:
		return "the end of the template"
	case tokEnd, tokTagEnd:
		return "the end of the tag"
	}
	return strconv.Quote(t.text)
}

// id interns a name.
func (p *parser) id(name string) int {
	id, ok := p.ids[name]
	if !ok {
		id = len(p.names)
		p.ids[name] = id
		p.names = append(p.names, name)
	}
	return id
}

// expression is the whole ladder: a condition, or, and, not, comparison, arithmetic, postfix, filters and tests.
func (p *parser) expression() expr {
	p.enter()
	defer p.leave()
	e := p.or()
	for n := 0; p.skipName("if"); n++ {
		p.chain(n)
		c := &condExpr{cond: p.or(), then: e}
		if p.skipName("else") {
			c.other = p.expression()
		}
		e = c
	}
	return e
}

func (p *parser) or() expr {
	e := p.and()
	for n := 0; p.skipName("or"); n++ {
		p.chain(n)
		e = &boolExpr{left: e, right: p.and(), or: true}
	}
	return e
}

func (p *parser) and() expr {
	e := p.not()
	for n := 0; p.skipName("and"); n++ {
		p.chain(n)
		e = &boolExpr{left: e, right: p.not()}
	}
	return e
}

func (p *parser) not() expr {
	if p.skipName("not") {
		p.enter()
		defer p.leave()
		return &notExpr{p.not()}
	}
	return p.compare()
}

func (p *parser) compare() expr {
	first := p.sum()
	var ops []comparison
	for {
		t := p.peek()
		switch {
		case t.kind == tokOperator && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, t.text):
			p.pos++
			ops = append(ops, comparison{t.text, p.sum()})
		case p.skipName("in"):
			ops = append(ops, comparison{"in", p.sum()})
		case p.isName("not") && p.toks[p.pos+1].kind == tokName && p.toks[p.pos+1].text == "in":
			p.pos += 2
			ops = append(ops, comparison{"not in", p.sum()})
		case len(ops) == 0:
			return first
		default:
			return &compareExpr{first, ops}
		}
	}
}

// left parses a row of operands joined by operators of one rank, grouped to the left.
func (p *parser) left(operand func() expr, ops ...string) expr {
	e := operand()
	for n := 0; ; n++ {
		t := p.peek()
		if t.kind != tokOperator || !slices.Contains(ops, t.text) {
			return e
		}
		p.chain(n)
		p.pos++
		e = &binaryExpr{op: t.text, left: e, right: operand()}
	}
}

func (p *parser) sum() expr { return p.left(p.concat, "+", "-") }

func (p *parser) concat() expr {
	e := p.product()
	if !p.isOp("~") {
		return e
	}
	c := &concatExpr{[]expr{e}}
	for p.skipOp("~") {
		c.parts = append(c.parts, p.product())
	}
	return c
}

func (p *parser) product() expr { return p.left(p.power, "*", "/", "//", "%") }

func (p *parser) power() expr {
	return p.left(func() expr { return p.unary(true) }, "**")
}

func (p *parser) unary(filters bool) expr {
	p.enter()
	defer p.leave()
	var e expr
	switch {
	case p.skipOp("-"):
		e = &unaryExpr{'-', p.unary(false)}
	case p.skipOp("+"):
		e = &unaryExpr{'+', p.unary(false)}
	default:
		e = p.primary()
	}
	e = p.postfix(e)
	if filters {
		e = p.filters(e)
	}
	return e
}

func (p *parser) primary() expr {
	t := p.next()
	switch t.kind {
	case tokName:
		switch t.text {
		case "true", "True":
			return constant(boolean(true))
		case "false", "False":
			return constant(boolean(false))
		case "none", "None":
			return constant(none)
		}
		if t.text == "self" || t.text == "super" {
			p.pos--
			p.refuse("the name " + t.text)
		}
		id := p.id(t.text)
		p.seen = append(p.seen, id)
		return &nameExpr{id, t.text}
	case tokString:
		s := t.text
		for p.peek().kind == tokString {
			s += p.next().text
		}
		return constant(text(s))
	case tokInt:
		if len(t.text) > 4300 {
			p.refuse("an integer of more than 4300 digits")
		}
		n, ok := new(big.Int).SetString(t.text, 0)
		if !ok {
			p.fail("not a number: " + t.text)
		}
		return constant(bigInt(n))
	case tokFloat:
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil {
			p.refuse("the number " + t.text)
		}
		return constant(float(f))
	case tokOperator:
		switch t.text {
		case "(":
			e := p.tuple(true, true)
			p.wantOp(")")
			return e
		case "[":
			return &listExpr{items: p.items("]")}
		case "{":
			return p.dict()
		}
	}
	p.pos--
	p.fail("unexpected " + t.show())
	return nil
}

// items parses expressions up to the closing bracket; a comma may end them.
func (p *parser) items(closing string) (items []expr) {
	for !p.isOp(closing) {
		if len(items) > 0 {
			p.wantOp(",")
			if p.isOp(closing) {
				break
			}
		}
		items = append(items, p.expression())
	}
	p.wantOp(closing)
	return items
}

func (p *parser) dict() expr {
	d := &dictExpr{}
	for !p.isOp("}") {
		if len(d.keys) > 0 {
			p.wantOp(",")
			if p.isOp("}") {
				break
			}
		}
		d.keys = append(d.keys, p.expression())
		p.wantOp(":")
		d.vals = append(d.vals, p.expression())
	}
	p.wantOp("}")
	return d
}

// tuple parses one expression, or several with commas, which are a tuple. In parentheses it may be empty. Without
// conditions, "if" ends it: the list of a loop.
func (p *parser) tuple(parens, conditions bool) expr {
	var items []expr
	comma := false
	for !p.tupleEnd() {
		if conditions {
			items = append(items, p.expression())
		} else {
			items = append(items, p.or())
		}
		if !p.skipOp(",") {
			break
		}
		comma = true
	}
	if !comma {
		if len(items) == 1 {
			return items[0]
		}
		if !parens {
			p.fail("expected an expression, got " + p.peek().show())
		}
	}
	return &listExpr{items: items, tuple: true}
}

func (p *parser) tupleEnd() bool {
	t := p.peek()
	return t.kind == tokEnd || t.kind == tokTagEnd || t.kind == tokOperator && t.text == ")" || t.kind == tokName && t.text == "recursive"
}

// postfix parses subscripts and calls. Each wraps the one before, so their number is bounded like nesting.
func (p *parser) postfix(e expr) expr {
	for n := 0; ; n++ {
		p.chain(n)
		switch {
		case p.skipOp("."):
			t := p.next()
			switch t.kind {
			case tokName:
				e = &attrExpr{e, t.text}
			case tokInt:
				n, _ := strconv.ParseInt(t.text, 10, 64)
				e = &itemExpr{e, constant(integer(n))}
			default:
				p.pos--
				p.fail("expected a name or a number, got " + t.show())
			}
		case p.skipOp("["):
			e = p.subscript(e)
		case p.isOp("("):
			e = &callExpr{e, p.arguments()}
		default:
			return e
		}
	}
}

func (p *parser) subscript(of expr) expr {
	var parts [3]expr
	colons := 0
	for !p.isOp("]") {
		if p.skipOp(":") {
			if colons++; colons > 2 {
				p.fail("a slice has three parts at most")
			}
			continue
		}
		if parts[colons] != nil {
			break
		}
		parts[colons] = p.expression()
		if colons == 0 && p.isOp(",") {
			p.refuse("a subscript with commas")
		}
	}
	p.wantOp("]")
	if colons > 0 {
		return &sliceExpr{of, parts}
	}
	if parts[0] == nil {
		p.fail("an empty subscript")
	}
	return &itemExpr{of, parts[0]}
}

func (p *parser) arguments() (a arguments) {
	p.wantOp("(")
	for first := true; !p.isOp(")"); first = false {
		if !first {
			p.wantOp(",")
			if p.isOp(")") {
				break
			}
		}
		t := p.peek()
		switch {
		case p.isOp("*") || p.isOp("**"):
			p.refuse("a call with * or **")
		case t.kind == tokName && p.toks[p.pos+1].kind == tokOperator && p.toks[p.pos+1].text == "=":
			p.pos += 2
			a.names = append(a.names, t.text)
			a.named = append(a.named, p.expression())
		case len(a.names) > 0:
			p.fail("a positional argument behind a named one")
		default:
			a.list = append(a.list, p.expression())
		}
	}
	p.wantOp(")")
	return a
}

// filters parses what follows a value: filters, tests and calls of what they return.
func (p *parser) filters(e expr) expr {
	for n := 0; ; n++ {
		p.chain(n)
		switch {
		case p.skipOp("|"):
			e = p.filter(e)
		case p.skipName("is"):
			e = p.test(e)
		case p.isOp("("):
			e = &callExpr{e, p.arguments()}
		default:
			return e
		}
	}
}

// filter parses a filter's name and arguments behind its bar. of may be nil: the body of a block.
func (p *parser) filter(of expr) expr {
	name := p.wantName()
	for p.skipOp(".") {
		name += "." + p.wantName()
	}
	f, ok := filterTable()[name]
	if !ok {
		p.refuse("the filter " + name)
	}
	var a arguments
	if p.isOp("(") {
		a = p.arguments()
	}
	return &filterExpr{of: of, name: name, fn: f, args: a}
}

func (p *parser) test(of expr) expr {
	negated := p.skipName("not")
	name := p.wantName()
	for p.skipOp(".") {
		name += "." + p.wantName()
	}
	f, ok := testTable()[name]
	if !ok {
		p.refuse("the test " + name)
	}
	var a arguments
	t := p.peek()
	switch {
	case p.isOp("("):
		a = p.arguments()
	case t.kind == tokName && !slices.Contains([]string{"else", "or", "and"}, t.text),
		t.kind == tokString, t.kind == tokInt, t.kind == tokFloat, p.isOp("["), p.isOp("{"):
		if t.text == "is" && t.kind == tokName {
			p.fail("tests cannot be chained")
		}
		p.enter()
		a.list = []expr{p.postfix(p.primary())}
		p.leave()
	}
	var e expr = &testExpr{of: of, name: name, fn: f, args: a}
	if negated {
		e = &notExpr{e}
	}
	return e
}
