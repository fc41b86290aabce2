package sse

import "github.com/perigee-llm/perigee/internal/gateway/api/body/lex"

// Count is a number of tokens that may be unknown; unknown is not zero.
type Count = lex.Count

// Usage is what an engine said of its work for one request, in tokens. A part that it left out, or said in
// another way than as a whole number, is unknown. The zero value is all unknown.
type Usage struct {
	Prompt     Count // prompt_tokens
	Completion Count // completion_tokens
	Total      Count // total_tokens
	Cached     Count // prompt_tokens_details.cached_tokens: the part of the prompt that was not computed again
}

// findings is what is known of a stream.
type findings struct {
	done   bool
	failed bool
	openAI bool // an event looked like OpenAI's
	usage  Usage

	last template
}

// event reads the data of one event.
func (f *findings) event(data []byte) {
	if isDone(data) {
		f.done = true
		return
	}
	if f.last.fits(data) {
		return
	}
	r := reader{Scanner: lex.Of(data), b: data}
	i := r.Space(0)
	if r.Byte(i) != '{' {
		return
	}
	var c chunk
	if i = r.object(i, &c, chunkMember); i < 0 || r.Space(i) != len(data) {
		return
	}
	f.failed = f.failed || c.hasError || c.isError
	f.openAI = f.openAI || c.openAI
	if c.hasUsage {
		f.usage = c.usage
		return
	}
	f.last.keep(data, c.content) // the other findings, once made, stay
}

// template is an event of this stream that said nothing new but more of the answer's text. Nearly all events of a stream are
// equal but for that text, so the next one is compared instead of read: when it has the same bytes before
// the text and behind it, and the text between is a JSON string, then it has the same structure and says
// nothing either. It takes an eighth of the time.
type template struct {
	b    []byte
	text span // of the string without its quotes; the zero value fits nothing
}

type span struct{ start, end int }

// maxTemplate is room for the chunks of the engines that we know, which have 150 to 350 bytes. A longer one
// is read each time.
const maxTemplate = 512

func (t *template) keep(data []byte, text span) {
	if text.start == 0 || len(data) > maxTemplate {
		return
	}
	if t.b == nil {
		t.b = make([]byte, 0, maxTemplate)
	}
	t.b, t.text = append(t.b[:0], data...), text
}

func (t *template) fits(data []byte) bool {
	head, tail := t.b[:t.text.start], t.b[t.text.end:]
	if len(head) == 0 || len(data) < len(head)+len(tail) || string(data[:len(head)]) != string(head) ||
		string(data[len(data)-len(tail):]) != string(tail) {
		return false
	}
	s := lex.Of(data)
	return s.String(len(head)-1) == len(data)-len(tail)+1 // head ends with the quote that opens, tail begins with the other
}

// chunk is what is known of one event. Of a repeated key the last one counts, as it does for most readers.
type chunk struct {
	openAI   bool
	hasError bool
	isError  bool
	hasUsage bool
	usage    Usage
	content  span // of the last text in a choice, without its quotes; zero without one
}

// reader walks one object. Its methods take and return offsets as the Scanner's do.
type reader struct {
	lex.Scanner
	b []byte
}

// scope says whose members are read. A number and not a function, because a call through a function value
// would move the reader to the heap.
type scope uint8

const (
	chunkMember scope = iota
	choiceMember
	deltaMember
	usageMember
	detailsMember
)

// object reads an object's members.
func (r *reader) object(i int, c *chunk, in scope) int {
	if i = r.Enter(i); i < 0 {
		return -1
	}
	if r.Byte(i) == '}' {
		return r.Leave(i)
	}
	for more := true; more; {
		start, shrink := i, r.Shrink
		end, value := r.Key(i)
		if value < 0 {
			return -1
		}
		name := r.b[start+1 : end-1]
		var buf [longestName]byte
		if r.Shrink != shrink {
			name = decode(buf[:0], name)
		}
		switch in {
		case chunkMember:
			i = r.chunkMember(c, name, value)
		case choiceMember:
			i = r.choiceMember(c, name, value)
		case deltaMember:
			if i = r.Value(value); i >= 0 && string(name) == "content" {
				r.content(c, value, i)
			}
		case usageMember:
			i = r.usageMember(c, name, value)
		case detailsMember:
			if i = r.Value(value); i >= 0 && string(name) == "cached_tokens" {
				c.usage.Cached = lex.CountOf(r.b[value:i])
			}
		}
		if i < 0 {
			return -1
		}
		if i, more = r.Next(i); i < 0 {
			return -1
		}
	}
	return i
}

// longestName is room for the longest name that is compared, written in escapes.
const longestName = 6 * len("prompt_tokens_details")

// decode decodes a name in place of dst; one that does not fit cannot be one of ours and stays as it is.
func decode(dst, raw []byte) []byte {
	if len(raw) > cap(dst) {
		return raw
	}
	return lex.AppendDecoded(dst, raw)
}

func (r *reader) chunkMember(c *chunk, name []byte, i int) int {
	switch string(name) {
	case "usage":
		c.usage, c.hasUsage = Usage{}, r.Byte(i) == '{'
		if c.hasUsage {
			return r.object(i, c, usageMember)
		}
	case "choices":
		c.openAI = true
		if r.Byte(i) == '[' {
			return r.choices(c, i)
		}
	case "error":
		c.hasError = r.Byte(i) != 'n'
	case "object":
		c.openAI = true
		end := r.Value(i)
		c.isError = end >= 0 && string(r.text(i, end)) == "error"
		return end
	}
	return r.Value(i)
}

func (r *reader) choices(c *chunk, i int) int {
	if i = r.Enter(i); i < 0 {
		return -1
	}
	if r.Byte(i) == ']' {
		return r.Leave(i)
	}
	for more := true; more; {
		if r.Byte(i) == '{' {
			i = r.object(i, c, choiceMember)
		} else {
			i = r.Value(i)
		}
		if i < 0 {
			return -1
		}
		if i, more = r.Next(i); i < 0 {
			return -1
		}
	}
	return i
}

func (r *reader) choiceMember(c *chunk, name []byte, i int) int {
	if string(name) == "delta" && r.Byte(i) == '{' {
		return r.object(i, c, deltaMember)
	}
	end := r.Value(i)
	if end < 0 {
		return -1
	}
	if string(name) == "text" {
		r.content(c, i, end)
	}
	return end
}

// content notes where a choice's text is.
func (r *reader) content(c *chunk, i, end int) {
	if r.b[i] == '"' {
		c.content = span{i + 1, end - 1}
	}
}

func (r *reader) usageMember(c *chunk, name []byte, i int) int {
	if string(name) == "prompt_tokens_details" {
		c.usage.Cached = Count{}
		if r.Byte(i) == '{' {
			return r.object(i, c, detailsMember)
		}
	}
	end := r.Value(i)
	if end < 0 {
		return -1
	}
	switch string(name) {
	case "prompt_tokens":
		c.usage.Prompt = lex.CountOf(r.b[i:end])
	case "completion_tokens":
		c.usage.Completion = lex.CountOf(r.b[i:end])
	case "total_tokens":
		c.usage.Total = lex.CountOf(r.b[i:end])
	}
	return end
}

// text returns the string in b[i:end] decoded, nil when it is another value. A string with escapes is decoded
// only when it is short; we compare with short ones.
func (r *reader) text(i, end int) []byte {
	if r.b[i] != '"' {
		return nil
	}
	raw := r.b[i+1 : end-1]
	for _, c := range raw {
		if c == '\\' && len(raw) <= longestName {
			return lex.AppendDecoded(nil, raw)
		}
	}
	return raw
}
