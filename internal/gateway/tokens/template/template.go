package template

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/tokens/jinja"
)

// The classes of errors of this package; each error unwraps to one of them.
var (
	// ErrSyntax: the template is not valid Jinja. From Compile only.
	ErrSyntax = jinja.ErrSyntax
	// ErrUnsupported: the template does something that is not rendered exactly as jinja2 does. From Compile, and in rare cases
	// from Render, where only a certain conversation leads the template there.
	ErrUnsupported = jinja.ErrUnsupported
	// ErrRaised: the template refuses the conversation by raise_exception; the *Error's Msg are its words. An engine answers 400.
	ErrRaised = jinja.ErrRaised
	// ErrFailed: the template fails on the conversation as it fails in Python, for example because a message has no content.
	// An engine answers 400 or 500.
	ErrFailed = jinja.ErrFailed
	// ErrLimit: the render would cost more than Limits allow.
	ErrLimit = jinja.ErrLimit
	// ErrInput: the messages, tools or keyword arguments are not JSON of the form that they must have.
	ErrInput = jinja.ErrInput
)

// Error is the error of all functions of this package. Its Class is one of the values above.
type Error = jinja.Error

// Limits bound one render, by the size of its input: the bytes of messages, tools, documents and keyword arguments. A zero
// field stands for its default.
type Limits struct {
	Input        int // bytes of input. Default 32 MiB, as large as a request may be.
	Steps        int // steps (see jinja.Limits) for any input. Default 4,000,000: below a second.
	StepsPerByte int // and for each byte of it. Default 8: the shortest message has 30 bytes and takes 24 to 60 steps in most templates.
	Output       int // bytes of output for any input. Default 4 MiB.
	OutputFactor int // and for each byte of input. Default 8: JSON that the template indents grows by less.
}

// What a modest render may cost: no more than about as many bytes of plain text. Conversations of some hundred short messages stay within it even where a template
// looks through all of them at each one, and so do tools that a template indents.
const (
	modestSteps        = 100_000 // besides StepsPerByte
	modestOutput       = 16 << 10
	modestOutputFactor = 4 // tools without white space that are indented by four grow by nearly as much
)

func (l Limits) defaults() Limits {
	set := func(p *int, n int) {
		if *p == 0 {
			*p = n
		}
	}
	set(&l.Input, 32<<20)
	set(&l.Steps, 4_000_000)
	set(&l.StepsPerByte, 8)
	set(&l.Output, 4<<20)
	set(&l.OutputFactor, 8)
	return l
}

// Config is what a Template is compiled from. ParseConfig reads it from a model's files.
type Config struct {
	// Name is what errors call the template; usually the model's name.
	Name string
	// Source is the text of the template. ToolSource, if not empty, is used instead for requests with tools.
	Source, ToolSource string
	// Tokens are the special tokens by their names in templates, for example bos_token.
	Tokens map[string]string
	// Extra are the model's additional_special_tokens.
	Extra []string
	// Now tells the time for strftime_now, in the zone of the engines. Nil refuses a template that asks for it.
	Now func() time.Time
	// Limits of each render.
	Limits Limits
}

// Template is a compiled chat template.
type Template struct {
	name        string
	plain, tool *jinja.Program // tool is nil if there is one template only
	vars        []jinja.Var    // the special tokens
	now         func() time.Time
	lim         Limits
}

// Input is one conversation. All raw fields are JSON as the client sent it, in whose order of keys dicts are rendered; nil
// and null are None.
type Input struct {
	Messages  []byte // an array of messages
	Tools     []byte
	Documents []byte
	// Kwargs is the request's chat_template_kwargs, an object: more variables for the template. As in vLLM they go before the
	// fields here where they have the same name, and before the special tokens.
	Kwargs []byte

	AddGenerationPrompt bool
	// ContinueFinalMessage ends the prompt where the text of the last message ends.
	ContinueFinalMessage bool
	// ParseArguments hands the arguments of tool calls to the template as values where the client sent them as text of JSON.
	// vLLM and SGLang do so; apply_chat_template itself does not.
	ParseArguments bool
	// Modest refuses a render, with ErrLimit, that costs much more than its input's size says: 4 KB of nested lists that a template indents are 3 MB of text.
	Modest bool
}

func (in *Input) size() int {
	return len(in.Messages) + len(in.Tools) + len(in.Documents) + len(in.Kwargs)
}

// Compile compiles a template and renders a few conversations with it, so that what is not supported shows now. The error
// is an *Error of ErrSyntax or ErrUnsupported and names the template.
func Compile(cfg Config) (*Template, error) {
	t, err := compileOnly(cfg)
	if err != nil {
		return nil, err
	}
	if err := t.selfTest(); err != nil {
		return nil, t.named(err)
	}
	return t, nil
}

// compileOnly is Compile without the self-test.
func compileOnly(cfg Config) (*Template, error) {
	t := &Template{name: cfg.Name, now: cfg.Now, lim: cfg.Limits.defaults()}
	var err error
	if t.plain, err = jinja.Compile(cfg.Source); err != nil {
		return nil, t.named(err)
	}
	if cfg.ToolSource != "" {
		if t.tool, err = jinja.Compile(cfg.ToolSource); err != nil {
			return nil, t.named(err)
		}
	}
	for name, token := range cfg.Tokens {
		t.vars = append(t.vars, jinja.Var{Name: name, Val: jinja.String(token)})
	}
	if len(cfg.Extra) > 0 {
		t.vars = append(t.vars, jinja.Var{Name: "additional_special_tokens", Val: jinja.Strings(cfg.Extra...)})
	}
	if t.now == nil {
		if t.plain.Uses("strftime_now") || t.tool != nil && t.tool.Uses("strftime_now") {
			return nil, t.named(&Error{Class: ErrUnsupported, Msg: "strftime_now without a clock"})
		}
		t.now = func() time.Time { return time.Time{} }
	}
	return t, nil
}

// named puts the template's name before the words of an error from compiling.
func (t *Template) named(err error) error {
	e := *err.(*Error)
	if t.name != "" {
		e.Msg = "chat template of " + t.name + ": " + e.Msg
	}
	return &e
}

// Name is the name that the template was compiled with.
func (t *Template) Name() string { return t.name }

// MaxOutput returns how long the prompt of an input can be, in bytes, if it is not Modest.
func (t *Template) MaxOutput(in *Input) int { return t.lim.Output + in.size()*t.lim.OutputFactor }

// Render appends the prompt to dst. On an error, which is an *Error, dst comes back as it was.
func (t *Template) Render(dst []byte, in Input) ([]byte, error) {
	size := in.size()
	if size > t.lim.Input {
		return dst, &Error{Class: ErrLimit, Msg: "an input of more than " + strconv.Itoa(t.lim.Input) + " bytes"}
	}
	v, err := read(in)
	if err != nil {
		return dst, err
	}
	lim := jinja.Limits{Steps: t.lim.Steps + size*t.lim.StepsPerByte, Output: t.MaxOutput(&in)}
	if in.Modest {
		lim.Steps = min(lim.Steps, modestSteps+size*t.lim.StepsPerByte)
		lim.Output = min(lim.Output, modestOutput+size*modestOutputFactor)
	}
	last := ""
	if v.cont {
		if v.prompt {
			return dst, &Error{Class: ErrInput, Msg: "continue_final_message and add_generation_prompt exclude each other"}
		}
		if last, err = mark(v.messages); err != nil {
			return dst, err
		}
	}
	program := t.plain
	if t.tool != nil && v.hasTools {
		program = t.tool
	}
	vars := make([]jinja.Var, 0, len(t.vars)+len(v.vars))
	vars = append(append(vars, t.vars...), v.vars...)
	out, err := program.Render(dst, t.now(), lim, vars...)
	if err != nil || !v.cont {
		return out, err
	}
	n, err := cut(string(out[len(dst):]), last)
	return out[:len(dst)+n], err
}

// values is an Input as values.
type values struct {
	vars         []jinja.Var
	messages     jinja.Value
	hasTools     bool
	prompt, cont bool
}

// reserved are names that keyword arguments may not have: the engines refuse them, or would render another template.
var reserved = []string{"messages", "conversation", "chat_template", "tokenize", "return_dict", "tokenizer"}

func read(in Input) (v values, err error) {
	parse := func(raw []byte) (jinja.Value, error) {
		if len(raw) == 0 {
			return jinja.None(), nil
		}
		return jinja.ParseJSON(raw)
	}
	tools, err := parse(in.Tools)
	if err != nil {
		return v, err
	}
	docs, err := parse(in.Documents)
	if err != nil {
		return v, err
	}
	kwargs, err := parse(in.Kwargs)
	if err != nil {
		return v, err
	}
	if v.messages, err = parse(in.Messages); err != nil {
		return v, err
	}
	if err := check(v.messages); err != nil {
		return v, err
	}
	if in.ParseArguments {
		parseArguments(v.messages)
	}
	if kwargs.True() && !kwargs.IsDict() {
		return v, &Error{Class: ErrInput, Msg: "chat_template_kwargs is not an object"}
	}
	v.prompt, v.cont = in.AddGenerationPrompt, in.ContinueFinalMessage
	v.vars = make([]jinja.Var, 0, 8)
	v.vars = append(v.vars, jinja.Var{Name: "messages", Val: v.messages})
	for _, key := range kwargs.Keys() {
		val, _ := kwargs.Get(key)
		switch {
		case slices.Contains(reserved, key):
			return v, &Error{Class: ErrInput, Msg: "chat_template_kwargs has " + strconv.Quote(key)}
		case key == "tools":
			tools = val
		case key == "documents":
			docs = val
		case key == "add_generation_prompt":
			v.prompt = val.True()
		case key == "continue_final_message":
			v.cont = val.True()
		default:
			v.vars = append(v.vars, jinja.Var{Name: key, Val: val})
		}
	}
	v.hasTools = !tools.IsNone()
	v.vars = append(v.vars, jinja.Var{Name: "tools", Val: tools}, jinja.Var{Name: "documents", Val: docs},
		jinja.Var{Name: "add_generation_prompt", Val: jinja.Bool(v.prompt)})
	return v, nil
}

// check wants what every engine wants: a list of objects.
func check(messages jinja.Value) error {
	if !messages.IsList() {
		return &Error{Class: ErrInput, Msg: "messages is not an array"}
	}
	for i, m := range messages.List() {
		if !m.IsDict() {
			return &Error{Class: ErrInput, Msg: "message " + strconv.Itoa(i) + " is not an object"}
		}
	}
	return nil
}

// parseArguments replaces the text of tool-call arguments by the value that it is the JSON of; text that is no JSON stays.
func parseArguments(messages jinja.Value) {
	for _, m := range messages.List() {
		if role, _ := m.Get("role"); !role.Is("assistant") {
			continue
		}
		calls, _ := m.Get("tool_calls")
		for _, call := range calls.List() {
			fn, _ := call.Get("function")
			arguments, ok := fn.Get("arguments")
			if !ok || !arguments.True() {
				fn.Set("arguments", jinja.Dict())
				continue
			}
			if s, ok := arguments.Text(); ok {
				if v, err := jinja.ParseJSON([]byte(s)); err == nil {
					fn.Set("arguments", v)
				}
			}
		}
	}
}

// continueTag marks the end of the message that is to be continued, as Hugging Face does since 4.52: the prompt ends before it.
const continueTag = "CONTINUE_FINAL_MESSAGE_TAG "

// mark appends the tag to the text of the last message, and returns that text.
func mark(messages jinja.Value) (text string, err error) {
	list := messages.List()
	if len(list) == 0 {
		return "", &Error{Class: ErrInput, Msg: "continue_final_message without messages"}
	}
	last := list[len(list)-1]
	content, _ := last.Get("content")
	if s, ok := content.Text(); ok {
		last.Set("content", jinja.String(s+continueTag))
		return s, nil
	}
	parts := content.List()
	for i := len(parts) - 1; i >= 0; i-- {
		part, ok := parts[i].Get("text")
		if !ok {
			continue
		}
		s, ok := part.Text()
		if !ok {
			break
		}
		parts[i].Set("text", jinja.String(s+continueTag))
		return s, nil
	}
	return "", &Error{Class: ErrInput, Msg: "continue_final_message without text in the last message"}
}

// cut returns how many bytes of the text are the prompt up to the end of the message.
func cut(text, last string) (int, error) {
	bare := strings.TrimSpace(continueTag)
	at := strings.LastIndex(text, bare)
	if at < 0 || !strings.Contains(text, jinja.TrimSpace(last)) {
		return 0, &Error{Class: ErrFailed, Msg: "continue_final_message: the template does not show the last message"}
	}
	if strings.HasPrefix(text[at:], continueTag) {
		return at, nil
	}
	return len(jinja.TrimRight(text[:at])), nil
}
