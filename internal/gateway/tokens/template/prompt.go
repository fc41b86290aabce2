package template

import "github.com/perigee-llm/perigee/internal/gateway/tokens/jinja"

// Form says what a prompt is.
type Form uint8

const (
	// Absent: there is nothing to route on; estimate the length by the bytes of the body.
	Absent Form = iota
	// Raw: the bare text of the messages. It is good for routing only: its tokens are not those that the engine sees, so its ids
	// must not be forwarded, and it shares prefixes only with other raw prompts.
	Raw
	// Rendered: what the engine makes of the conversation.
	Rendered
)

// Prompt renders the conversation, and falls back to the bare text of its messages where it cannot, as the routers of
// engines do. t may be nil: there is no template. err says why the prompt is not Rendered; it is nil if t is. The request itself is not
// judged: the engine tells a client that its conversation is not allowed.
func Prompt(t *Template, dst []byte, in Input) (out []byte, form Form, err error) {
	if t != nil {
		if out, err = t.Render(dst, in); err == nil {
			return out, Rendered, nil
		}
	}
	out, ok := rawText(dst, in.Messages)
	if !ok {
		return dst, Absent, err
	}
	return out, Raw, err
}

// rawText appends the text of each message, with the text of its parts, each followed by a newline: a conversation that
// grows keeps its beginning.
func rawText(dst, messages []byte) ([]byte, bool) {
	v, err := jinja.ParseJSON(messages)
	if err != nil || !v.IsList() {
		return dst, false
	}
	out := dst
	add := func(v jinja.Value) {
		if s, ok := v.Text(); ok {
			out = append(append(out, s...), '\n')
		}
	}
	for _, m := range v.List() {
		content, _ := m.Get("content")
		add(content)
		for _, part := range content.List() {
			text, _ := part.Get("text")
			add(text)
		}
	}
	return out, len(out) > len(dst)
}
