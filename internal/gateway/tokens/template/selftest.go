package template

import "errors"

// selfTest renders conversations of each form that requests have. One that leads the template to something that is not
// supported refuses the template; one that it raises or fails on does not, because templates may allow only some.
// A template that renders none of them is refused, too.
func (t *Template) selfTest() error {
	var last error
	rendered := false
	for _, c := range canonical {
		in := Input{Messages: []byte(c.messages), AddGenerationPrompt: true}
		if c.tools {
			in.Tools = []byte(canonicalTools)
		}
		_, err := t.Render(nil, in)
		switch {
		case err == nil:
			rendered = true
		case errors.Is(err, ErrUnsupported):
			e := *err.(*Error)
			e.Msg += ", in a conversation with " + c.name
			return &e
		default:
			last = err
		}
	}
	if !rendered {
		return &Error{Class: ErrUnsupported, Msg: "it renders no conversation of the self-test; the last: " + last.Error()}
	}
	return nil
}

const canonicalTools = `[{"type":"function","function":{"name":"get_weather","description":"Tells the weather.",` +
	`"parameters":{"type":"object","properties":{"city":{"type":"string","description":"The city"},` +
	`"days":{"type":["integer","null"],"default":1},"unit":{"enum":["c","f"]},"tags":{"type":"array","items":{"type":"string"}}},"required":["city"]}}}]`

var canonical = []struct {
	name     string
	messages string
	tools    bool
}{
	{"one user message", `[{"role":"user","content":"Hello"}]`, false},
	{"a system message", `[{"role":"system","content":"Be brief."},{"role":"user","content":"Hello"}]`, false},
	{"several turns", `[{"role":"user","content":"Hello"},{"role":"assistant","content":"Hi."},{"role":"user","content":"Bye"}]`, false},
	{"reasoning", `[{"role":"user","content":"Hello"},{"role":"assistant","content":"Hi.","reasoning_content":"A greeting."},{"role":"user","content":"Bye"}]`, false},
	{"content parts", `[{"role":"user","content":[{"type":"text","text":"Hello"},{"type":"text","text":"again"}]}]`, false},
	{"tools", `[{"role":"system","content":"Be brief."},{"role":"user","content":"Weather?"}]`, true},
	{"tool calls", `[{"role":"user","content":"Weather?"},{"role":"assistant","content":"","tool_calls":[{"id":"call00001","type":"function",` +
		`"function":{"name":"get_weather","arguments":{"city":"Bern","days":2}}}]},` +
		`{"role":"tool","tool_call_id":"call00001","name":"get_weather","content":"{\"sky\": \"clear\"}"}]`, true},
	{"tool calls whose arguments are text", `[{"role":"user","content":"Weather?"},{"role":"assistant","content":null,"tool_calls":[{"id":"call00001","type":"function",` +
		`"function":{"name":"get_weather","arguments":"{\"city\": \"Bern\"}"}}]},` +
		`{"role":"tool","tool_call_id":"call00001","name":"get_weather","content":"clear"},{"role":"assistant","content":"Clear."},{"role":"user","content":"Thanks"}]`, true},
}
