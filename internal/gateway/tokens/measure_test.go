package tokens

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/tokens/bpe"
	"github.com/perigee-llm/perigee/internal/gateway/tokens/template"
)

// TestSourceNames: dashboards know them.
func TestSourceNames(t *testing.T) {
	var got []string
	for s := Estimated; s <= Asked; s++ {
		got = append(got, s.String())
	}
	if want := "estimated bare_text rendered encoded given engine"; strings.Join(got, " ") != want {
		t.Errorf("got %v", got)
	}
}

// TestMeasurePrompt: each text by itself, with the special tokens that the engine would add.
func TestMeasurePrompt(t *testing.T) {
	m := testModel(t, nil)
	n := func(text string) int { return len(m.Encode(text, true)) }
	for _, c := range []struct {
		name, prompt   string
		noSpecial      bool
		ok             bool
		longest, total int
		ids            []uint32
	}{
		{"text", `"hello there"`, false, true, n("hello there"), n("hello there"), m.Encode("hello there", true)},
		{"escapes", `"h\u00e9\n<|end|>"`, false, true, n("hé\n<|end|>"), n("hé\n<|end|>"), m.Encode("hé\n<|end|>", true)},
		{"bare", `"hello there"`, true, true, n("hello there") - 1, n("hello there") - 1, m.Encode("hello there", false)},
		{"empty text", `""`, false, true, 1, 1, m.Encode("", true)},
		{"empty and bare", `""`, true, true, 0, 0, nil},
		{"list of one", `["hello"]`, false, true, n("hello"), n("hello"), m.Encode("hello", true)},
		{"list", `["hello","hello there",""]`, false, true, n("hello there"), n("hello") + n("hello there") + 1, nil},
		{"list, bare", `["hello","hello there",""]`, true, true, n("hello there") - 1, n("hello") + n("hello there") - 2, nil},
		{"empty list", `[]`, false, false, 0, 0, nil},
		{"ids", `[1,2]`, false, false, 0, 0, nil},
		{"object", `{}`, false, false, 0, 0, nil},
		{"mixed", `["a",1]`, false, false, 0, 0, nil},
	} {
		f, ok := m.Measure(Request{Prompt: []byte(c.prompt), NoSpecial: c.noSpecial})
		if ok != c.ok || f.Longest != c.longest || f.Total != c.total || !slices.Equal(f.IDs, c.ids) {
			t.Errorf("%s: %+v %v", c.name, f, ok)
		}
		if ok && (f.Source != Encoded || !f.Exact) {
			t.Errorf("%s: %s, exact %v", c.name, f.Source, f.Exact)
		}
		if got := Forwardable(Request{Prompt: []byte(c.prompt)}, f); got != NoMessages {
			t.Errorf("%s: %s", c.name, got)
		}
	}
}

// TestMeasureChat: what is rendered of a conversation, and when that is what every engine renders.
func TestMeasureChat(t *testing.T) {
	m := testModel(t, nil)
	const hello = "<|begin|>user\nhello there<|end|>"
	const ask = "<|begin|>assistant\n"
	turns := func(s string) []byte { return []byte("[" + s + "]") }
	for _, c := range []struct {
		name  string
		r     Request
		text  string // what is counted; empty: nothing
		from  Source
		exact bool
		class error
	}{
		{"plain", Request{Messages: []byte(oneTurn)}, hello + ask, Rendered, true, nil},
		{"white space", Request{Messages: []byte("\n " + oneTurn)}, hello + ask, Rendered, true, nil},
		{"two turns", Request{Messages: turns(`{"role":"system","content":"s"},{"role":"user","content":""}`)}, "<|begin|>system\ns<|end|><|begin|>user\n<|end|>" + ask, Rendered, true, nil},
		{"no special of a chat", Request{Messages: []byte(oneTurn), NoSpecial: true}, hello + ask, Rendered, true, nil},
		{"variables", Request{Messages: []byte(oneTurn), Kwargs: []byte(`{"mood":"fine"}`)}, "Mfine" + hello + ask, Rendered, true, nil},
		{"null variables", Request{Messages: []byte(oneTurn), Kwargs: []byte(`null`), Tools: []byte(`null`), Documents: []byte(`null`)}, hello + ask, Rendered, true, nil},
		{"without a generation prompt", Request{Messages: []byte(oneTurn), NoGenerationPrompt: true}, hello, Rendered, false, nil},
		{"continued", Request{Messages: []byte(oneTurn), NoGenerationPrompt: true, ContinueFinal: true}, "<|begin|>user\nhello there", Rendered, false, nil},
		{"continued and begun", Request{Messages: []byte(oneTurn), ContinueFinal: true}, "hello there\n", Bare, false, template.ErrInput},
		{"tools", Request{Messages: []byte(oneTurn), Tools: []byte(`[{"a":1}]`)}, `T[{"a": 1}]` + hello + ask, Rendered, false, nil},
		{"functions", Request{Messages: []byte(oneTurn), Functions: true}, hello + ask, Rendered, false, nil},
		{"documents", Request{Messages: []byte(oneTurn), Documents: []byte(`["d"]`)}, `D["d"]` + hello + ask, Rendered, false, nil},
		{"steered", Request{Messages: []byte(oneTurn), Steered: true}, hello + ask, Rendered, false, nil},
		{"parts", Request{Messages: turns(`{"role":"user","content":[{"type":"text","text":"hi"}]}`)}, "<|begin|>user\n[{'type': 'text', 'text': 'hi'}]<|end|>" + ask, Rendered, false, nil},
		{"no content", Request{Messages: turns(`{"role":"user","content":null}`)}, "<|begin|>user\nNone<|end|>" + ask, Rendered, false, nil},
		{"reasoning", Request{Messages: turns(`{"role":"assistant","content":"a","reasoning":"r"}`)}, "<|begin|>assistant\na<|end|>" + ask, Rendered, false, nil},
		{"tool turn", Request{Messages: turns(`{"role":"tool","content":"a"}`)}, "<|begin|>tool\na<|end|>" + ask, Rendered, false, nil},
		{"developer", Request{Messages: turns(`{"role":"developer","content":"d"},{"role":"user","content":"u"}`)}, "<|begin|>developer\nd<|end|><|begin|>user\nu<|end|>" + ask, Rendered, false, nil},
		{"another key hides the parts", Request{Messages: turns(`{"role":"user","content":["p"],"Content":"a"}`)}, "<|begin|>user\n['p']<|end|>" + ask, Rendered, false, nil},
		{"the last key counts", Request{Messages: turns(`{"role":"user","content":["p"],"content":"a"}`)}, "<|begin|>user\na<|end|>" + ask, Rendered, true, nil},
		{"refused by the template", Request{Messages: turns(`{"role":"liar","content":"I lie"},{"role":"user","content":[{"text":"and"},{"text":"I"}]}`)}, "I lie\nand\nI\n", Bare, false, template.ErrRaised},
		{"refused, with nothing in it", Request{Messages: turns(`{"role":"liar"}`)}, "", Estimated, false, template.ErrRaised},
		{"not objects", Request{Messages: []byte(`["a"]`)}, "", Estimated, false, template.ErrInput},
		{"a text", Request{Messages: []byte(`"a"`)}, "", Estimated, false, template.ErrInput},
		{"null", Request{Messages: []byte(`null`)}, "", Estimated, false, template.ErrInput},
		{"nothing", Request{}, "", Estimated, false, template.ErrInput},
		{"no turns", Request{Messages: []byte(`[]`)}, ask, Rendered, false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, ok := m.Measure(c.r)
			want := m.Encode(c.text, false)
			if ok != (c.text != "") || f.Source != c.from || f.Exact != c.exact || !slices.Equal(f.IDs, want) || f.Longest != len(want) || f.Total != len(want) {
				text, _ := m.Decode(f.IDs, false, 1<<20)
				t.Errorf("got %+v %v of %q", f, ok, text)
			}
			if (f.Err != nil) != (c.class != nil) || (c.class != nil && !errors.Is(f.Err, c.class)) {
				t.Errorf("the error is %v", f.Err)
			}
		})
	}
}

// TestForwardable has the rules in their order: each request breaks one of them and all after it, so that the first is named.
func TestForwardable(t *testing.T) {
	m := testModel(t, nil)
	system, user, assistant := `{"role":"system","content":"s"}`, `{"role":"user","content":"u"}`, `{"role":"assistant","content":"a"}`
	all := Request{ // breaks whatever a request can break besides its messages
		Kwargs: []byte(`{"mood":1}`), Steered: true, ContinueFinal: true, NoGenerationPrompt: true,
	}
	with := func(r Request, messages ...string) Request {
		r.Messages = []byte("[" + strings.Join(messages, ",") + "]")
		return r
	}
	tools := all
	tools.Tools = []byte(`[{}]`)
	liar := `{"role":"liar","content":"x"}`
	for _, c := range []struct {
		name string
		r    Request
		want Outcome
	}{
		{"a prompt", Request{Prompt: []byte(`"x"`)}, NoMessages},
		{"nothing", tools, NoMessages},
		{"null", Request{Messages: []byte("null"), Tools: tools.Tools}, NoMessages},
		{"a text", Request{Messages: []byte(`"x"`), Steered: true}, NoMessages},
		{"an empty list", with(tools), NoMessages},
		{"not objects", with(tools, `1`), UnreadableTurns},
		{"null turn", with(tools, user, `null`), UnreadableTurns},
		{"a turn without a role", with(tools, user, `{"content":"x"}`), UnreadableTurns},
		{"a role that is no text", with(tools, user, `{"role":1,"content":"x"}`), UnreadableTurns},
		{"tools", with(tools, user, `{"role":"system","content":[],"reasoning_content":"r"}`), HasTools},
		{"no tools in the list", with(Request{Tools: []byte("[]")}, user), HasTools},
		{"functions", with(Request{Functions: true}, user), HasTools},
		{"a tool's turn", with(all, user, `{"role":"tool","content":"r"}`), HasTools},
		{"a function's turn", with(all, user, `{"role":"function","content":"r"}`), HasTools},
		{"a call", with(all, `{"role":"assistant","content":null,"tool_calls":[]}`, user), HasTools},
		{"an old call", with(all, `{"role":"assistant","content":"","function_call":{}}`, user), HasTools},
		{"no call", with(Request{}, `{"role":"assistant","content":"","function_call":null,"tool_calls":null}`, user), Forwarded},
		{"parts", with(all, `{"role":"user","content":[{"type":"text","text":"x"}],"reasoning_content":"r"}`, user), NonTextContent},
		{"null content", with(all, `{"role":"user","content":null}`, user), NonTextContent},
		{"no content", with(all, `{"role":"user"}`, user), NonTextContent},
		{"parts behind another name", with(Request{}, `{"role":"user","content":["x"],"CONTENT":"x"}`), NonTextContent},
		{"reasoning", with(all, user, user, `{"role":"assistant","content":"a","reasoning_content":"r"}`), HasReasoning},
		{"reasoning, vLLM's name", with(all, user, user, `{"role":"assistant","content":"a","reasoning":""}`), HasReasoning},
		{"no reasoning", with(Request{}, user, `{"role":"assistant","content":"a","reasoning_content":null}`, user), Forwarded},
		{"a late system turn", with(all, user, system, assistant), UnusualTurns},
		{"a late developer turn", with(all, user, `{"role":"developer","content":"s"}`), UnusualTurns},
		{"two user turns", with(all, user, user, assistant), UnusualTurns},
		{"two systems", with(all, system, system, user), UnusualTurns},
		{"kwargs", with(Request{Kwargs: []byte("{}"), ContinueFinal: true}, user, assistant), IsSteered},
		{"steered", with(Request{Steered: true, NoGenerationPrompt: true}, user, assistant), IsSteered},
		{"documents", with(Request{Documents: []byte("[]"), ContinueFinal: true}, user, assistant), IsSteered},
		{"continued", with(Request{ContinueFinal: true}, liar), IsContinuation},
		{"no generation prompt", with(Request{NoGenerationPrompt: true}, liar), IsContinuation},
		{"an assistant's last turn", with(Request{}, liar, assistant), IsContinuation},
		{"refused by the template", with(Request{}, liar), NotRendered},
		{"one turn", with(Request{}, user), Forwarded},
		{"many turns", with(Request{}, system, user, assistant, user), Forwarded},
		{"a first developer turn: SGLang hands it to the template as it is", with(Request{}, `{"role":"developer","content":"s"}`, user), Forwarded},
		{"a name", with(Request{Kwargs: []byte("null"), Tools: []byte("null"), Documents: []byte("null")}, `{"role":"user","content":"x","name":"n"}`), Forwarded},
	} {
		f, _ := m.Measure(c.r)
		if got := Forwardable(c.r, f); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	bare := New(m.tok, nil, errors.New("none"), nil)
	r := with(Request{}, user)
	if f, _ := bare.Measure(r); Forwardable(r, f) != NotRendered || f.Err == nil {
		t.Errorf("without a template: %s, %v", Forwardable(r, f), f.Err)
	}
}

// TestMeasureDear: a conversation that is dear for its size is rendered if that may be spent, and then as if nobody had asked.
func TestMeasureDear(t *testing.T) {
	tmpl, err := template.Compile(template.Config{Source: `{% for m in messages %}{{ m.content | tojson(indent=4) }}{% endfor %}`})
	if err != nil {
		t.Fatal(err)
	}
	m := New(testModel(t, nil).tok, tmpl, nil, nil)
	nested := strings.Repeat("[", 200) + "1" + strings.Repeat(",1", 200) + strings.Repeat("]", 200)
	cheap, dear := Request{Messages: []byte(oneTurn)}, Request{Messages: []byte(`[{"role":"user","content":` + nested + `}]`)}
	for _, c := range []struct {
		r     Request
		asked int
	}{{cheap, 0}, {dear, 1}} {
		want, _ := m.Measure(c.r)
		for _, may := range []bool{true, false} {
			asked, bound := 0, 0
			c.r.Dearer = func(n int) bool { asked, bound = asked+1, n; return may }
			f, ok := m.Measure(c.r)
			refused := asked == 1 && !may
			if asked != c.asked || ok == refused || errors.Is(f.Err, ErrDear) != refused || !refused && (f.Source != Rendered || !slices.Equal(f.IDs, want.IDs)) {
				t.Errorf("%.40s: asked %d times, %v: %s, %d tokens, %v", c.r.Messages, asked, may, f.Source, len(f.IDs), f.Err)
			}
			if asked == 1 && bound < 4<<20 {
				t.Errorf("at most %d bytes?", bound)
			}
			if got := Forwardable(c.r, f); refused && got != NonTextContent {
				t.Errorf("%s", got)
			}
		}
	}
}

func TestTextOnly(t *testing.T) {
	for messages, want := range map[string]bool{
		oneTurn: true, `[]`: false, `null`: false, `[1]`: false, `"x"`: false, ``: false, `[{"role":"user"}]`: false,
		`[{"role":"tool","content":"x"}]`: true, `[{"role":"user","content":[{"type":"text","text":"x"}]}]`: false,
	} {
		if got := TextOnly([]byte(messages)); got != want {
			t.Errorf("%s: %v", messages, got)
		}
	}
}

// FuzzMeasure: whatever comes, it is counted or not, and what is called exact is what rendering and encoding give that know no
// cache and no rules.
func FuzzMeasure(f *testing.F) {
	for _, s := range []struct{ messages, more string }{
		{oneTurn, `{"kwargs":{"mood":1}}`}, {`"hello"`, `{"nospecial":true}`}, {`["a","b"]`, ``}, {`[{"role":"user","content":["x"],"Content":"y"}]`, `{"tools":[{}]}`},
		{`[{"role":"liar","content":"<|end|>"},{"role":"assistant","content":"\ud800"}]`, `{"continue":true,"nogen":true}`}, {`[]`, `{"docs":[null]}`}, {`[null]`, `{"steered":true}`},
	} {
		f.Add(s.messages, s.more)
	}
	cache := bpe.NewCache(1 << 20)
	m := testModel(f, cache)
	tmpl, err := template.Compile(template.Config{Source: testTemplate, Tokens: map[string]string{"bos_token": "<|begin|>", "eos_token": "<|end|>"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, input, more string) {
		var o struct {
			Kwargs, Tools, Docs                            json.RawMessage
			NoSpecial, NoGen, Continue, Steered, Functions bool
		}
		_ = json.Unmarshal([]byte(more), &o)
		m.Measure(Request{Messages: []byte(input), Tools: []byte(more), Kwargs: []byte(more), Documents: []byte(more)}) // need not be JSON
		r := Request{
			Messages: []byte(input), Kwargs: o.Kwargs, Tools: o.Tools, Documents: o.Docs, NoGenerationPrompt: o.NoGen, ContinueFinal: o.Continue,
			Steered: o.Steered, Functions: o.Functions,
		}
		facts, ok := m.Measure(r)
		if facts.Exact || Forwardable(r, facts) == Forwarded {
			text, err := tmpl.Render(nil, template.Input{Messages: r.Messages, Kwargs: r.Kwargs, AddGenerationPrompt: true})
			if want := m.tok.Encode(nil, string(text), bpe.Options{}); !ok || err != nil || !slices.Equal(facts.IDs, want) {
				t.Errorf("exact: %v %v, want %v: %v", ok, facts.IDs, want, err)
			}
			var turns []map[string]any
			if err := json.Unmarshal(r.Messages, &turns); err != nil {
				t.Error(err)
			}
			for _, turn := range turns {
				if _, text := turn["content"].(string); !text || turn["role"] == "tool" {
					t.Errorf("exact, with %v", turn)
				}
			}
		}
		if facts.Longest > facts.Total || (len(facts.IDs) > 0 && len(facts.IDs) != facts.Total) || (!ok && facts.Total != 0) {
			t.Errorf("%+v %v", facts, ok)
		}
		p, ok := m.Measure(Request{Prompt: []byte(input), NoSpecial: o.NoSpecial})
		if !ok {
			return
		}
		var texts []string
		if json.Unmarshal([]byte(input), &texts) != nil {
			texts = make([]string, 1)
			if err := json.Unmarshal([]byte(input), &texts[0]); err != nil {
				t.Fatal(err)
			}
		}
		total := 0
		for _, text := range texts {
			total += len(m.tok.Encode(nil, text, bpe.Options{AddSpecial: !o.NoSpecial}))
		}
		if p.Total != total || !p.Exact {
			t.Errorf("%d of prompts, want %d", p.Total, total)
		}
	})
}
