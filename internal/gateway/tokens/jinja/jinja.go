// Package jinja renders chat templates as jinja2 3.1 renders them in the configuration of Hugging Face: trim_blocks,
// lstrip_blocks, loop controls, the immutable sandbox, raise_exception, strftime_now, its tojson, and the generation tag
// as text that passes.
//
// It promises three things. What it renders is byte for byte what jinja2 renders; whatever it does not do exactly so is
// an error that unwraps to ErrUnsupported, from Compile where it can be seen there. A render is bounded in work, output
// and depth by Limits, so that neither a template nor a conversation can hold or end the process. It has no I/O, clock,
// goroutine or global state; a Program may be rendered by any number of callers at once.
package jinja

import (
	"slices"
	"strconv"
	"time"
)

// Limits bound one render. The zero value of a field means its default.
type Limits struct {
	// Steps bounds the work: one for each statement, call, filter and item of a loop, and one for each 16 bytes of text that
	// is made, searched or written. Default 4,000,000, below a second on one core. Templates spend
	// 24 to 60 for each short message; two that we know, which look through all messages at each one, reach it near 1,300 messages.
	Steps int
	// Output bounds the text of a render, and each text made on the way, in bytes. Default 64 MiB.
	Output int
	// Calls bounds how deep macros call each other. Default 100; jinja2 ends near 140, by Python's limit of recursion.
	Calls int
}

const (
	defaultSteps  = 4_000_000
	defaultOutput = 64 << 20
	defaultCalls  = 100

	// bytesPerStep: copying 16 bytes costs less than the cheapest statement, changing their case about as much.
	bytesPerStep = 16

	// maxNames bounds the different names of variables: each scope is searched one by one. The most that we know are 112.
	maxNames = 512

	// MaxSource bounds the text of a template, in bytes. The largest that we know has 25 KB.
	MaxSource = 1 << 20
)

// Program is a compiled template. It does not change.
type Program struct {
	body  []stmt
	names []string
	ids   map[string]int
	root  []Value // what each name is at first: the globals
}

// Compile parses a template. Its errors unwrap to ErrSyntax or ErrUnsupported.
func Compile(source string) (p *Program, err error) {
	if len(source) > MaxSource {
		return nil, &Error{Class: ErrUnsupported, Msg: "a template of more than " + strconv.Itoa(MaxSource) + " bytes"}
	}
	ps := &parser{ids: map[string]int{}}
	defer caught(&err, func() int {
		if ps.pos < len(ps.toks) {
			return ps.toks[ps.pos].line
		}
		return 0
	})
	ps.toks = lex(source)
	body, _ := ps.statements()
	if len(ps.names) > maxNames {
		ps.refuse("a template of more than " + strconv.Itoa(maxNames) + " names")
	}
	p = &Program{body: body, names: ps.names, ids: ps.ids}
	p.root = make([]Value, len(p.names))
	for name, fn := range globals {
		if id, ok := p.ids[name]; ok {
			p.root[id] = Value{k: kFunc, o: fn}
		}
	}
	return p, nil
}

// Uses tells whether the template names the variable anywhere.
func (p *Program) Uses(name string) bool {
	_, ok := p.ids[name]
	return ok
}

// Var is a variable that a render begins with.
type Var struct {
	Name string
	Val  Value
}

// Render appends the text to dst. Of two variables with one name the later is taken. now is the time that strftime_now
// tells, in its own zone. On an error it returns dst as it was, and the error is an *Error.
func (p *Program) Render(dst []byte, now time.Time, lim Limits, vars ...Var) (out []byte, err error) {
	c := &context{now: now, lim: lim.defaults(), base: len(dst), out: dst}
	c.left = c.lim.Steps
	defer func() {
		if err != nil {
			out = dst
		}
	}()
	defer caught(&err, func() int { return c.line })
	root := &scope{root: slices.Clone(p.root)}
	for _, v := range vars {
		if id, ok := p.ids[v.Name]; ok {
			root.root[id] = v.Val
		}
	}
	c.names = p.names
	c.run(p.body, root)
	return c.out, nil
}

func (l Limits) defaults() Limits {
	if l.Steps == 0 {
		l.Steps = defaultSteps
	}
	if l.Output == 0 {
		l.Output = defaultOutput
	}
	if l.Calls == 0 {
		l.Calls = defaultCalls
	}
	return l
}

// context is the state of one render.
type context struct {
	now   time.Time
	lim   Limits
	left  int // steps
	calls int // macros around
	line  int // of the statement that runs
	base  int // where out began
	out   []byte
	names []string
}

// step spends n steps.
func (c *context) step(n int) {
	if c.left -= n + 1; c.left < 0 {
		limited("more than " + strconv.Itoa(c.lim.Steps) + " steps")
	}
}

// room fails for a text of n bytes that is too long.
func (c *context) room(n int) {
	if n > c.lim.Output {
		limited("a text of more than " + strconv.Itoa(c.lim.Output) + " bytes")
	}
}

// made is a new text, whose making is paid for.
func (c *context) made(s string) Value {
	c.room(len(s))
	c.step(len(s) / bytesPerStep)
	return text(s)
}

// write appends what {{ v }} prints.
func (c *context) write(v Value) {
	before := len(c.out)
	c.out = c.appendStr(c.out, v)
	c.step((len(c.out) - before) / bytesPerStep)
	c.room(len(c.out) - c.base)
}

// appendStr is str(v), of which a text is not written before there is room for it.
func (c *context) appendStr(dst []byte, v Value) []byte {
	switch v.k {
	case kString, kMarkup:
		c.room(len(dst) - c.base + len(v.s))
	case kList, kTuple, kDict, kIter, kBig:
		c.weigh(v, 0)
	}
	return appendStr(dst, v)
}

// weigh pays for writing a value with all that lies in it, before it is written: a list can hold itself many times.
func (c *context) weigh(v Value, depth int) {
	tooDeep(depth)
	c.step(len(v.s) / bytesPerStep)
	switch v.k {
	case kBig:
		c.step(v.big().BitLen() / bytesPerStep)
	case kList, kTuple:
		for _, x := range v.items() {
			c.weigh(x, depth+1)
		}
	case kDict:
		for _, e := range v.dict().entries {
			c.weigh(e.key, depth+1)
			c.weigh(e.val, depth+1)
		}
	case kIter:
		for _, x := range v.o.(*iter).items {
			c.weigh(x, depth+1)
		}
	}
}

// search pays for finding a key that is no text: such keys are looked at one by one.
func (c *context) search(d *dict, key Value) {
	if !key.isString() {
		c.step(d.len() / 4)
	}
}

// str is str(v).
func (c *context) str(v Value) string {
	if v.isString() {
		return v.s
	}
	return string(c.appendStr(nil, v))
}

// captured runs f and returns what it wrote, which does not become output.
func (c *context) captured(f func()) string {
	from := len(c.out)
	f()
	s := string(c.out[from:])
	c.out = c.out[:from]
	return s
}

// scope holds variables. The outermost has a place for each name of the template, the others only for those set in them.
type scope struct {
	root   []Value
	ids    []int
	vals   []Value
	parent *scope
}

func (s *scope) get(id int) Value {
	for ; s.parent != nil; s = s.parent {
		for i, have := range s.ids {
			if have == id {
				return s.vals[i]
			}
		}
	}
	return s.root[id]
}

func (s *scope) set(id int, v Value) {
	if s.parent == nil {
		s.root[id] = v
		return
	}
	for i, have := range s.ids {
		if have == id {
			s.vals[i] = v
			return
		}
	}
	s.ids = append(s.ids, id)
	s.vals = append(s.vals, v)
}
