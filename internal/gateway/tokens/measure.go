package tokens

import (
	"encoding/json"
	"errors"

	"github.com/perigee-llm/perigee/internal/gateway/tokens/template"
)

// Source says how a length was come by, from the most to the least that is known.
type Source uint8

// The sources.
const (
	// Estimated: from the number of bytes.
	Estimated Source = iota
	// Bare: the tokens of the messages' bare text, without the template's own.
	Bare
	// Rendered: the tokens of the rendered conversation.
	Rendered
	// Encoded: the tokens of the prompt's text.
	Encoded
	// Given: the client sent token ids.
	Given
	// Asked: an engine counted them.
	Asked
)

// String returns the source's name as it stands in the decision log and in metrics.
func (s Source) String() string {
	return [...]string{"estimated", "bare_text", "rendered", "encoded", "given", "engine"}[s]
}

// Request is what a length depends on. Every field is raw JSON as the client sent it; nil is absent.
type Request struct {
	// Prompt is a text or a list of texts; nil: it is a conversation.
	Prompt []byte
	// Messages, Tools, Documents and Kwargs are a conversation and what its template gets besides.
	Messages, Tools, Documents, Kwargs []byte
	// NoSpecial is add_special_tokens: false of a prompt. A conversation has the special tokens of its template and no others.
	NoSpecial bool
	// NoGenerationPrompt is add_generation_prompt: false; ContinueFinal is continue_final_message: true.
	NoGenerationPrompt, ContinueFinal bool
	// Functions says that the request has the field of that name, which tools replaced.
	Functions bool
	// Steered says that the request changes its rendering in a way that we do not follow: a template of its own, a
	// reasoning effort, a task.
	Steered bool
	// Dearer is asked before a conversation is rendered that turns out to cost much more than its size says: whether what a text of at most so many bytes costs
	// may be spent on it. Nil: it may.
	Dearer func(bytes int) bool
}

// ErrDear is why a conversation was not measured of which [Request.Dearer] said no.
var ErrDear = errors.New("rendering it costs more than may be spent")

// Facts are a request's input in tokens.
type Facts struct {
	// IDs are the ids of a single prompt or of a conversation; nil for several prompts.
	IDs []uint32
	// Longest and Total are the tokens of the longest prompt and of all.
	Longest, Total int
	Source         Source
	// Exact says that the engine sees these very tokens, whichever engine it is.
	Exact bool
	// Err says why a conversation was not rendered, or an input not encoded.
	Err error

	shape shape
}

// Measure counts a request's input. It returns false where there is nothing to count: a prompt that is neither a text nor a
// list of texts, messages without any text, a text that is not encoded for its longest word. The facts have no length then, and [Forwardable] can still say why.
func (m *Model) Measure(r Request) (Facts, bool) {
	if r.Prompt != nil {
		return m.measurePrompt(r)
	}
	return m.measureChat(r)
}

func (m *Model) measurePrompt(r Request) (Facts, bool) {
	var texts []string
	var one string
	if json.Unmarshal(r.Prompt, &one) == nil {
		texts = []string{one}
	} else if json.Unmarshal(r.Prompt, &texts) != nil || len(texts) == 0 {
		return Facts{}, false
	}
	f := Facts{Source: Encoded, Exact: true}
	for _, text := range texts {
		ids := m.Encode(text, !r.NoSpecial)
		if ids == nil {
			return Facts{Err: ErrLongWord}, false
		}
		f.Longest, f.Total = max(f.Longest, len(ids)), f.Total+len(ids)
		if len(texts) == 1 {
			f.IDs = ids
		}
	}
	return f, true
}

func (m *Model) measureChat(r Request) (Facts, bool) {
	text, form, err := m.prompt(&r)
	if errors.Is(err, ErrDear) {
		return Facts{Err: err, shape: shapeOf(r.Messages)}, false
	}
	if m.tmpl == nil {
		err = m.why
	}
	f := Facts{Err: err}
	if form == template.Rendered {
		f.shape = shapeOfValid(r.Messages)
	} else {
		f.shape = shapeOf(r.Messages)
	}
	switch form {
	case template.Absent:
		return f, false
	case template.Raw:
		f.Source = Bare
	default:
		f.Source = Rendered
		// vLLM 0.32 makes a developer turn a system turn where the template does not name the role, and merges it with others.
		f.Exact = f.shape.plain() && !f.shape.developer && !r.asksMore()
	}
	// A rendered conversation has its special tokens already.
	if f.IDs = m.Encode(string(text), false); f.IDs == nil {
		f.Source, f.Exact, f.Err = Estimated, false, ErrLongWord
		return f, false
	}
	f.Longest, f.Total = len(f.IDs), len(f.IDs)
	return f, true
}

// prompt renders the conversation, or returns the bare text of its messages.
func (m *Model) prompt(r *Request) (text []byte, form template.Form, err error) {
	in := template.Input{
		Messages: r.Messages, Tools: r.Tools, Documents: r.Documents, Kwargs: r.Kwargs,
		AddGenerationPrompt: !r.NoGenerationPrompt, ContinueFinalMessage: r.ContinueFinal, ParseArguments: true,
	}
	room := make([]byte, 0, len(r.Messages)+len(r.Tools)+512)
	if m.tmpl != nil && r.Dearer != nil {
		in.Modest = true
		text, err = m.tmpl.Render(room, in)
		switch {
		case err == nil:
			return text, template.Rendered, nil
		case !errors.Is(err, template.ErrLimit):
			text, form, _ = template.Prompt(nil, room, in)
			return text, form, err
		case !r.Dearer(m.tmpl.MaxOutput(&in)):
			return nil, template.Absent, ErrDear
		}
		in.Modest = false
	}
	return template.Prompt(m.tmpl, room, in)
}

// asksMore tells of fields that one engine follows and another does not, or not in the same way.
func (r *Request) asksMore() bool {
	return r.Steered || r.Functions || r.ContinueFinal || r.NoGenerationPrompt || given(r.Tools) || given(r.Documents)
}
