package template

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

const chatML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

func TestParseConfig(t *testing.T) {
	file := `{"bos_token": null, "eos_token": {"__type": "AddedToken", "content": "<end>"}, "pad_token": "<pad>", "add_bos_token": true,
		"extra_special_tokens": {"image_token": "<img>"}, "additional_special_tokens": ["<a>", {"content": "<b>"}],
		"chat_template": [{"name": "default", "template": "D{{ eos_token }}{{ image_token }}{{ bos_token }}{{ additional_special_tokens }}"}, {"name": "tool_use", "template": "T{{ tools|length }}"}, {"name": "rag", "template": "R"}]}`
	cfg, err := ParseConfig("m", []byte(file), nil)
	if err != nil {
		t.Fatal(err)
	}
	tmpl, err := Compile(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for tools, want := range map[string]string{"": "D<end><img>['<a>', '<b>']", "null": "D<end><img>['<a>', '<b>']", "[1,2]": "T2", "[]": "T0"} {
		got, err := tmpl.Render(nil, Input{Messages: []byte("[]"), Tools: []byte(tools)})
		if err != nil || string(got) != want {
			t.Errorf("tools %s: got %q, %v; want %q", tools, got, err, want)
		}
	}
	if cfg, err := ParseConfig("m", []byte(`{"chat_template": "one"}`), nil); err != nil || cfg.Source != "one" {
		t.Errorf("a text: %q, %v", cfg.Source, err)
	}
	if cfg, err := ParseConfig("m", []byte(`{"chat_template": "one", "bos_token": "<s>"}`), []byte("two")); err != nil || cfg.Source != "two" || cfg.Tokens["bos_token"] != "<s>" {
		t.Errorf("a file of its own: %+v, %v", cfg, err)
	}
	for _, bad := range []string{`{}`, `[]`, `{`, `{"chat_template": 1}`, ``} {
		if _, err := ParseConfig("m", []byte(bad), nil); !errors.Is(err, ErrInput) {
			t.Errorf("%s: %v, want ErrInput", bad, err)
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	for source, want := range map[string]struct {
		class error
		words string
	}{
		"{{ x":                        {ErrSyntax, "chat template of m: a tag has no end"},
		"{% include 'x' %}":           {ErrUnsupported, "the tag include"},
		"{{ x|groupby('a') }}":        {ErrUnsupported, "the filter groupby"},
		"{{ strftime_now('%Y') }}":    {ErrUnsupported, "strftime_now without a clock"},
		"{{ raise_exception('no') }}": {ErrUnsupported, "renders no conversation of the self-test; the last: raised by the template: no"},
		"{% if tools %}{{ messages[0].content.expandtabs() }}{% endif %}":                {ErrUnsupported, "the method expandtabs of text, in a conversation with tools"},
		"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}": {ErrUnsupported, "template limit"},
	} {
		_, err := Compile(Config{Name: "m", Source: source, Limits: Limits{Steps: 10_000}})
		if !errors.Is(err, want.class) || !strings.Contains(err.Error(), want.words) {
			t.Errorf("%s: got %v; want %v with %q", source, err, want.class, want.words)
		}
	}
}

func TestInput(t *testing.T) {
	tmpl, err := Compile(Config{Source: "{{ messages[0].content }}|{{ tools }}|{{ add_generation_prompt }}|{{ bos_token }}|{{ x }}|" +
		"{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments }};{% endfor %}{% endfor %}",
		Tokens: map[string]string{"bos_token": "<s>"}, Limits: Limits{Input: 1000}})
	if err != nil {
		t.Fatal(err)
	}
	user := []byte(`[{"content":"hi"}]`)
	call := func(arguments string) []byte {
		return []byte(`[{"content":"hi","role":"assistant","tool_calls":[{"function":{"name":"f","arguments":` + arguments + `}}]}]`)
	}
	for _, c := range []struct {
		name string
		in   Input
		want string
		err  error
	}{
		{"plain", Input{Messages: user}, "hi|None|False|<s>||", nil},
		{"keyword arguments go first", Input{Messages: user, Tools: []byte("[1]"), Kwargs: []byte(`{"tools":[2],"add_generation_prompt":true,"bos_token":"B","x":1.0}`)}, "hi|[2]|True|B|1.0|", nil},
		{"null keyword arguments", Input{Messages: user, Kwargs: []byte("null")}, "hi|None|False|<s>||", nil},
		{"arguments stay text", Input{Messages: call(`"{\"b\": 1, \"a\": 1.0}"`)}, `hi|None|False|<s>||{"b": 1, "a": 1.0};`, nil},
		{"arguments are read", Input{Messages: call(`"{\"b\": 1, \"a\": 1.0}"`), ParseArguments: true}, "hi|None|False|<s>||{'b': 1, 'a': 1.0};", nil},
		{"no arguments", Input{Messages: call(`""`), ParseArguments: true}, "hi|None|False|<s>||{};", nil},
		{"arguments that are no JSON", Input{Messages: call(`"{"`), ParseArguments: true}, "hi|None|False|<s>||{;", nil},
		{"another template", Input{Messages: user, Kwargs: []byte(`{"chat_template":"x"}`)}, "", ErrInput},
		{"keyword arguments of another kind", Input{Messages: user, Kwargs: []byte(`[1]`)}, "", ErrInput},
		{"no messages", Input{}, "", ErrInput},
		{"messages of another kind", Input{Messages: []byte(`["a"]`)}, "", ErrInput},
		{"not JSON", Input{Messages: []byte(`[`)}, "", ErrInput},
		{"too long", Input{Messages: user, Kwargs: []byte(strings.Repeat(" ", 1000))}, "", ErrLimit},
		{"both prompts", Input{Messages: user, AddGenerationPrompt: true, ContinueFinalMessage: true}, "", ErrInput},
		{"nothing to continue", Input{Messages: []byte(`[{"content":null}]`), ContinueFinalMessage: true}, "", ErrInput},
	} {
		got, err := tmpl.Render([]byte("kept "), c.in)
		if !errors.Is(err, c.err) || string(got) != "kept "+c.want {
			t.Errorf("%s: got %q, %v; want %q, %v", c.name, got, err, c.want, c.err)
		}
	}
}

func TestPrompt(t *testing.T) {
	strict, err := Compile(Config{Source: "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}{{ messages[0].content }}"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		tmpl     *Template
		messages string
		form     Form
		want     string
		err      error
	}{
		{strict, `[{"role":"user","content":"hi"}]`, Rendered, "hi", nil},
		{strict, `[{"role":"system","content":"be"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"image"},{"text":"b"}]}]`, Raw, "be\na\nb\n", ErrRaised},
		{nil, `[{"role":"user","content":"hi"},{"content":null}]`, Raw, "hi\n", nil},
		{strict, `[`, Absent, "", ErrInput},
		{nil, `[]`, Absent, "", nil},
	} {
		got, form, err := Prompt(c.tmpl, []byte("kept "), Input{Messages: []byte(c.messages)})
		if form != c.form || string(got) != "kept "+c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: got %q, %v, %v; want %q, %v, %v", c.messages, got, form, err, c.want, c.form, c.err)
		}
	}
}

// TestHostileConversation: what a client sends spends no more than the limits say, whatever its shape.
func TestHostileConversation(t *testing.T) {
	raw, err := os.ReadFile("testdata/templates/Qwen3-8B-Q8_0.jinja")
	if err != nil {
		t.Fatal(err)
	}
	tmpl, err := Compile(Config{Source: string(raw)})
	if err != nil {
		t.Fatal(err)
	}
	many := func(message string, n int) []byte {
		return []byte("[" + strings.Repeat(message+",", n) + message + "]")
	}
	for name, c := range map[string]struct {
		in   Input
		want error
	}{
		"many messages":    {Input{Messages: many(`{"role":"user","content":"a"}`, 20_000)}, nil},
		"a long message":   {Input{Messages: many(`{"role":"assistant","content":"`+strings.Repeat("</think>", 1<<17)+`"}`, 0)}, nil},
		"deep tools":       {Input{Messages: []byte("[]"), Tools: []byte(strings.Repeat(`[`, 100_000))}, ErrLimit},
		"too long a input": {Input{Messages: make([]byte, 33<<20)}, ErrLimit},
	} {
		start := time.Now()
		_, err := tmpl.Render(nil, c.in)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if d := time.Since(start); d > 20*time.Second {
			t.Errorf("%s: took %v", name, d)
		}
	}
}

// TestModest: what is dear for its size is not rendered where that is to be modest, whether it grows or is walked again and again; how much a
// conversation may be longer by depends on its size.
func TestModest(t *testing.T) {
	nested := strings.Repeat("[", 300) + "1" + strings.Repeat(",1", 1500) + strings.Repeat("]", 300)
	turns := func(n int) string { return "[" + strings.Repeat(`{"role":"user","content":"x"},`, n) + `{}]` }
	for _, c := range []struct {
		name, source string
		in           Input
		modest       bool
	}{
		{"indented", `{{ tools | tojson(indent=4) }}`, Input{Messages: []byte("[]"), Tools: []byte(nested)}, false},
		{"not indented", `{{ tools | tojson }}`, Input{Messages: []byte("[]"), Tools: []byte(nested)}, true},
		{"indented tools", `{{ tools | tojson(indent=4) }}`, Input{Messages: []byte("[]"), Tools: []byte("[" + strings.Repeat(canonicalTools+",", 200) + "1]")}, true},
		{"made on the way", `{% set x = messages | string * 100 %}`, Input{Messages: []byte(turns(100))}, false},
		{"some messages for each one", `{% for m in messages %}{% for n in messages %}{% endfor %}{% endfor %}`, Input{Messages: []byte(turns(200))}, true},
		{"many messages for each one", `{% for m in messages %}{% for n in messages %}{% endfor %}{% endfor %}`, Input{Messages: []byte(turns(1000))}, false},
		{"many messages", `{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}`, Input{Messages: []byte(turns(100_000))}, true},
	} {
		tmpl, err := compileOnly(Config{Source: c.source})
		if err != nil {
			t.Fatal(err)
		}
		want, err := tmpl.Render(nil, c.in)
		if err != nil || len(want) > tmpl.MaxOutput(&c.in) {
			t.Errorf("%s: %d bytes of at most %d, %v", c.name, len(want), tmpl.MaxOutput(&c.in), err)
		}
		c.in.Modest = true
		got, err := tmpl.Render(nil, c.in)
		if c.modest && (err != nil || string(got) != string(want)) || !c.modest && !errors.Is(err, ErrLimit) {
			t.Errorf("%s: %d bytes of %d, %v", c.name, len(got), len(want), err)
		}
	}
}

func FuzzMessages(f *testing.F) {
	for _, c := range load[[]conversation](f, "testdata/conversations.json") {
		f.Add(string(c.Messages), string(c.Tools), c.Continue)
	}
	var templates []*Template
	for _, name := range []string{"Qwen3-8B-Q8_0", "gpt-oss-20b-Q8_0"} {
		raw, err := os.ReadFile("testdata/templates/" + name + ".jinja")
		if err != nil {
			f.Fatal(err)
		}
		tmpl, err := Compile(goldenConfig(name, string(raw)))
		if err != nil {
			f.Fatal(err)
		}
		templates = append(templates, tmpl)
	}
	f.Fuzz(func(t *testing.T, messages, tools string, cont bool) {
		for _, tmpl := range templates {
			in := Input{Messages: []byte(messages), Tools: []byte(tools), ContinueFinalMessage: cont, AddGenerationPrompt: !cont}
			a, err := tmpl.Render(nil, in)
			b, again := tmpl.Render(nil, in)
			if string(a) != string(b) || (err == nil) != (again == nil) {
				t.Fatal("two renders differ")
			}
			if err != nil && strings.Contains(err.Error(), "the engine failed") {
				t.Fatal(err)
			}
			Prompt(tmpl, nil, in)
		}
	})
}

func BenchmarkQwen3Tools(b *testing.B) {
	raw, err := os.ReadFile("testdata/templates/Qwen3-8B-Q8_0.jinja")
	if err != nil {
		b.Fatal(err)
	}
	tmpl, err := Compile(Config{Source: string(raw)})
	if err != nil {
		b.Fatal(err)
	}
	in := Input{Messages: []byte(canonical[6].messages), Tools: []byte(canonicalTools), AddGenerationPrompt: true}
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		if buf, err = tmpl.Render(buf[:0], in); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(len(in.Messages) + len(in.Tools)))
}

// BenchmarkTurns shows that the cost grows with the conversation, not with its square.
func BenchmarkTurns(b *testing.B) {
	tmpl, err := Compile(Config{Source: chatML})
	if err != nil {
		b.Fatal(err)
	}
	for _, n := range []int{10, 100, 1000} {
		turn := `{"role":"user","content":"` + strings.Repeat("What is the weather? ", 20) + `"}`
		in := Input{Messages: []byte("[" + strings.Repeat(turn+",", n-1) + turn + "]")}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var buf []byte
			b.SetBytes(int64(len(in.Messages)))
			for b.Loop() {
				if buf, err = tmpl.Render(buf[:0], in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
