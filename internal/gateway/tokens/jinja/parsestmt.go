package jinja

import (
	"slices"
	"strconv"
	"strings"
)

// statements parses up to one of the tags that end the block, whose name it returns; the rest of that tag is still to be
// read. Without ends it reads the whole template.
func (p *parser) statements(ends ...string) (body []stmt, end string) {
	p.enter()
	defer p.leave()
	for {
		t := p.next()
		switch t.kind {
		case tokEOF:
			if len(ends) > 0 {
				p.fail("the template ends; expected " + strings.Join(ends, " or "))
			}
			return body, ""
		case tokText:
			body = append(body, &textStmt{t.text})
		case tokBegin:
			body = append(body, &outputStmt{t.line, p.tuple(false, true)})
			if p.peek().kind != tokEnd {
				p.fail("expected the end of the output, got " + p.peek().show())
			}
			p.pos++
		case tokTag:
			name := p.wantName()
			if slices.Contains(ends, name) {
				return body, name
			}
			if s := p.statement(name, t); s != nil {
				body = append(body, s)
			}
		}
	}
}

// block parses the rest of an opening tag, the body and the closing tag.
func (p *parser) block(end string) []stmt {
	p.endTag()
	body, _ := p.statements(end)
	p.endTag()
	return body
}

func (p *parser) endTag() {
	if p.peek().kind != tokTagEnd {
		p.fail("expected the end of the tag, got " + p.peek().show())
	}
	p.pos++
}

func (p *parser) statement(name string, t token) stmt {
	switch name {
	case "if":
		return p.ifStmt(t)
	case "for":
		return p.forStmt(t)
	case "set":
		return p.setStmt(t)
	case "macro":
		return p.macroStmt(t)
	case "call":
		return p.callStmt(t)
	case "filter":
		f := p.filters(p.filter(nil))
		return &filterStmt{t.line, f, p.block("endfilter")}
	case "with":
		return p.withStmt(t)
	case "generation":
		// Hugging Face marks with it what a model writes, for training. The text passes.
		return &scopeStmt{body: p.block("endgeneration")}
	case "print":
		s := &outputStmt{t.line, p.tuple(false, true)}
		p.endTag()
		return s
	case "break", "continue":
		if p.loops == 0 {
			p.fail(name + " outside of a loop")
		}
		p.endTag()
		if name == "break" {
			return jumpStmt(doBreak)
		}
		return jumpStmt(doContinue)
	case "do", "trans", "debug":
		p.fail("unknown tag " + strconv.Quote(name)) // extensions that Hugging Face does not load
	}
	switch name {
	case "include", "import", "from", "extends", "block", "autoescape":
		p.refuse("the tag " + name)
	}
	p.fail("unknown tag " + strconv.Quote(name))
	return nil
}

func (p *parser) ifStmt(t token) stmt {
	s := &ifStmt{line: t.line}
	cond := p.tuple(false, false)
	for {
		// jinja2 reads the condition without "x if y else z", so that a stray "if" is an error.
		p.endTag()
		body, end := p.statements("elif", "else", "endif")
		s.branches = append(s.branches, branch{cond, body})
		switch end {
		case "elif":
			cond = p.tuple(false, false)
		case "else":
			p.endTag()
			s.other, _ = p.statements("endif")
			p.endTag()
			return s
		default:
			p.endTag()
			return s
		}
	}
}

// target parses what is assigned to: a name, or several.
func (p *parser) target() (ids []int, tuple bool) {
	parens := p.skipOp("(")
	for {
		name := p.wantName()
		switch name {
		case "true", "false", "none", "True", "False", "None":
			p.fail("cannot assign to " + name)
		}
		ids = append(ids, p.id(name))
		if !p.skipOp(",") {
			break
		}
		tuple = true
		if p.isName("in") || p.isOp("=") || p.isOp(")") {
			break
		}
	}
	if parens {
		p.wantOp(")")
	}
	if p.isOp(",") || p.isOp("(") {
		p.refuse("nested targets of an assignment")
	}
	return ids, tuple
}

func (p *parser) forStmt(t token) stmt {
	s := &forStmt{line: t.line, loop: p.id("loop")}
	s.targets, s.unpack = p.target()
	if slices.Contains(s.targets, s.loop) {
		p.fail("cannot assign to the loop variable")
	}
	if !p.skipName("in") {
		p.fail("expected in, got " + p.peek().show())
	}
	s.iter = p.tuple(false, false)
	if p.skipName("if") {
		s.filter = p.expression()
	}
	if p.isName("recursive") {
		p.refuse("a recursive loop")
	}
	p.endTag()
	before := p.made
	p.loops++
	body, end := p.statements("endfor", "else")
	p.loops--
	s.body, s.captured = body, p.made > before
	if end == "else" {
		p.endTag()
		s.other, _ = p.statements("endfor")
	}
	p.endTag()
	return s
}

func (p *parser) setStmt(t token) stmt {
	s := &setStmt{line: t.line, ns: -1}
	if n := p.toks[p.pos+1]; p.peek().kind == tokName && n.kind == tokOperator && n.text == "." {
		s.ns = p.id(p.wantName())
		p.pos++
		s.attr = p.wantName()
		if p.isOp(",") {
			p.refuse("nested targets of an assignment")
		}
	} else {
		s.targets, s.unpack = p.target()
	}
	if p.skipOp("=") {
		s.value = p.tuple(false, true)
		p.endTag()
		return s
	}
	if p.isOp("|") {
		s.filter = p.filters(nil)
	}
	s.body = p.block("endset")
	s.isBlock = true
	return s
}

// signature parses the parameters of a macro or of a call block.
func (p *parser) signature(m *macro) {
	p.wantOp("(")
	for !p.isOp(")") {
		if len(m.params) > 0 {
			p.wantOp(",")
			if p.isOp(")") {
				break
			}
		}
		name := p.wantName()
		q := param{id: p.id(name), name: name}
		if p.skipOp("=") {
			q.value = p.expression()
		} else if n := len(m.params); n > 0 && m.params[n-1].value != nil {
			p.fail("a parameter without a default behind one with")
		}
		m.params = append(m.params, q)
	}
	p.wantOp(")")
}

// macroBody parses the body, and notes which of the names that a macro gets by itself the body uses.
func (p *parser) macroBody(m *macro, end string) {
	from, loops := len(p.seen), p.loops
	p.loops = 0
	m.body = p.block(end)
	p.loops = loops
	p.made++
	m.varargs, m.kwargs, m.caller = p.id("varargs"), p.id("kwargs"), p.id("caller")
	for _, id := range p.seen[from:] {
		switch id {
		case m.varargs:
			m.usesVarargs = true
		case m.kwargs:
			m.usesKwargs = true
		case m.caller:
			m.usesCaller = true
		}
	}
	for _, q := range m.params {
		switch q.id {
		case m.varargs, m.kwargs, m.caller:
			p.refuse("a parameter named " + q.name)
		}
	}
}

func (p *parser) macroStmt(t token) stmt {
	name := p.wantName()
	m := &macro{name: name}
	p.signature(m)
	p.macroBody(m, "endmacro")
	return &macroStmt{t.line, p.id(name), m}
}

func (p *parser) callStmt(t token) stmt {
	m := &macro{name: "caller"}
	if p.isOp("(") {
		p.signature(m)
	}
	call, ok := p.expression().(*callExpr)
	if !ok {
		p.fail("expected a call")
	}
	p.macroBody(m, "endcall")
	return &callStmt{t.line, call, m}
}

func (p *parser) withStmt(t token) stmt {
	s := &scopeStmt{line: t.line}
	for p.peek().kind != tokTagEnd {
		if len(s.ids) > 0 {
			p.wantOp(",")
		}
		s.ids = append(s.ids, p.id(p.wantName()))
		p.wantOp("=")
		s.vals = append(s.vals, p.expression())
	}
	s.body = p.block("endwith")
	return s
}
