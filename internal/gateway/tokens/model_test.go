package tokens

import (
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/tokens/bpe"
	"github.com/perigee-llm/perigee/internal/gateway/tokens/template"
)

// tinyFile returns the text of one of the small tokenizers that bpe is tested with.
func tinyFile(t testing.TB, name string) string {
	t.Helper()
	return unzip(t, filepath.Join("bpe", "testdata", "tiny-"+name+".json.gz"))
}

func unzip(t testing.TB, name string) string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// testTemplate shows everything that a template is given.
const testTemplate = `{%- if tools %}T{{ tools | tojson }}{% endif %}{%- if documents %}D{{ documents | tojson }}{% endif %}{%- if mood is defined %}M{{ mood }}{% endif -%}
{%- for m in messages %}
{%- if m.role == "liar" %}{{ raise_exception("no liars") }}{% endif -%}
{{ bos_token }}{{ m.role }}
{{ m.content }}{{ eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ bos_token }}assistant
{% endif %}`

const testConfig = `{"bos_token":"<|begin|>","eos_token":{"content":"<|end|>"},"chat_template":"unused, since there is a file of its own"}`

// folder writes files and returns their folder.
func folder(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func open(t testing.TB, files map[string]string, cache *bpe.Cache) *Model {
	t.Helper()
	m, err := Open(folder(t, files), cache)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// testModel is the small Llama 3 tokenizer with the template above.
func testModel(t testing.TB, cache *bpe.Cache) *Model {
	t.Helper()
	m := open(t, map[string]string{"tokenizer.json": tinyFile(t, "llama3"), "tokenizer_config.json": testConfig, "chat_template.jinja": testTemplate}, cache)
	if err := m.TemplateError(); err != nil {
		t.Fatal(err)
	}
	return m
}

const oneTurn = `[{"role":"user","content":"hello there"}]`

// TestOpen: what is there is used; what is beside the tokenizer and cannot be used is said, and does not stop it.
func TestOpen(t *testing.T) {
	llama := tinyFile(t, "llama3")
	inConfig := `{"bos_token":"<|begin|>","chat_template":"{{ messages[0].content }}"}`
	for _, c := range []struct {
		name     string
		files    map[string]string
		file     string // what is opened, beside the folder itself
		rendered string // of oneTurn; empty: there is no template
		class    error  // of why
	}{
		{"template in the configuration", map[string]string{"tokenizer.json": llama, "tokenizer_config.json": inConfig}, "tokenizer.json", "hello there", nil},
		{"a name of its own", map[string]string{"mine.json": llama, "tokenizer_config.json": inConfig}, "mine.json", "hello there", nil},
		{"template of its own", map[string]string{"tokenizer.json": llama, "chat_template.jinja": "<{{ messages[0].content }}>"}, "", "<hello there>", nil},
		{"both", map[string]string{"tokenizer.json": llama, "tokenizer_config.json": inConfig, "chat_template.jinja": "{{ bos_token }}{{ messages[0].content }}"}, "", "<|begin|>hello there", nil},
		{"the time", map[string]string{"tokenizer.json": llama, "chat_template.jinja": "{{ messages[0].content }}{{ strftime_now('%%') }}"}, "", "hello there%", nil},
		{"nothing beside it", map[string]string{"tokenizer.json": llama}, "tokenizer.json", "", nil},
		{"no template", map[string]string{"tokenizer.json": llama, "tokenizer_config.json": "{}"}, "", "", template.ErrInput},
		{"configuration is no JSON", map[string]string{"tokenizer.json": llama, "tokenizer_config.json": "{"}, "", "", template.ErrInput},
		{"not Jinja", map[string]string{"tokenizer.json": llama, "chat_template.jinja": "{% if %}"}, "", "", template.ErrSyntax},
		{"not supported", map[string]string{"tokenizer.json": llama, "chat_template.jinja": "{% include 'x' %}"}, "", "", template.ErrUnsupported},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := folder(t, c.files)
			paths := []string{}
			if c.files["tokenizer.json"] != "" {
				paths = append(paths, dir)
			}
			if c.file != "" {
				paths = append(paths, filepath.Join(dir, c.file))
			}
			for _, path := range paths {
				m, err := Open(path, nil)
				if err != nil {
					t.Fatal(err)
				}
				f, ok := m.Measure(Request{Messages: []byte(oneTurn)})
				why := m.TemplateError()
				if c.rendered == "" {
					if why == nil || (c.class != nil && !errors.Is(why, c.class)) || f.Source != Bare || f.Exact || !ok || !errors.Is(f.Err, why) {
						t.Errorf("%s: %v; %+v", path, why, f)
					}
					if want := m.Encode("hello there\n", false); !slices.Equal(f.IDs, want) {
						t.Errorf("bare text is %v, want %v", f.IDs, want)
					}
					continue
				}
				if want := m.Encode(c.rendered, false); why != nil || f.Source != Rendered || f.Err != nil || !slices.Equal(f.IDs, want) {
					t.Errorf("%s: %v; %+v, want %v", path, why, f, want)
				}
			}
		})
	}
}

// TestOpenRefuses: a tokenizer that cannot be followed is an error that says where.
func TestOpenRefuses(t *testing.T) {
	llama := tinyFile(t, "llama3")
	big := strings.Repeat(" ", maxTemplateFile+1)
	for _, c := range []struct {
		name  string
		files map[string]string
		path  string
		want  []string
	}{
		{"nothing there", nil, "none", []string{"none: no such file"}},
		{"an empty folder", nil, "", []string{"tokenizer.json: no such file"}},
		{"not JSON", map[string]string{"tokenizer.json": "{"}, "", []string{"tokenizer.json: "}},
		{"another model", map[string]string{"tokenizer.json": strings.Replace(llama, `"type":"BPE"`, `"type":"Unigram"`, 1)}, "", []string{"tokenizer.json: ", "model.type", "Unigram"}},
		{"unknown part", map[string]string{"tokenizer.json": strings.Replace(llama, `"padding":null`, `"padding":null,"vowels":1`, 1)}, "", []string{"vowels"}},
		{"a large configuration", map[string]string{"tokenizer.json": llama, "tokenizer_config.json": big}, "", []string{"tokenizer_config.json: more than 8388608 bytes"}},
		{"a large template", map[string]string{"tokenizer.json": llama, "chat_template.jinja": big}, "", []string{"chat_template.jinja: more than 8388608 bytes"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := folder(t, c.files)
			m, err := Open(filepath.Join(dir, c.path), nil)
			if err == nil || m != nil {
				t.Fatalf("opened, with %v", m)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in %q", want, err)
				}
			}
			if n := strings.Count(err.Error(), dir); n != 1 {
				t.Errorf("the folder is named %d times: %v", n, err)
			}
		})
	}
	var part *bpe.UnsupportedError
	_, err := Open(folder(t, map[string]string{"tokenizer.json": strings.Replace(llama, `"padding":null`, `"padding":{"length":8}`, 1)}), nil)
	if !errors.As(err, &part) || part.Part != "padding" {
		t.Errorf("the error is %v", err)
	}
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} {
		dir := folder(t, map[string]string{"tokenizer.json": llama})
		_ = os.Remove(filepath.Join(dir, name))
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, nil); err == nil || !strings.Contains(err.Error(), name+": not a file") {
			t.Errorf("a folder in place of %s: %v", name, err)
		}
	}
}

// TestOpenLarge: a tokenizer's file over the limit is not read whole.
func TestOpenLarge(t *testing.T) {
	name := filepath.Join(t.TempDir(), "tokenizer.json")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(64<<30), f.Close()); err != nil { // takes no room on the disk
		t.Fatal(err)
	}
	if _, err := Open(name, nil); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("the error is %v", err)
	}
}

// TestDecode: text comes back; special tokens on demand; a text over the limit does not.
func TestDecode(t *testing.T) {
	m := testModel(t, nil)
	const text = "hello there, é 日本"
	ids := m.Encode(text, true)
	if got, ok := m.Decode(ids, false, 1<<20); !ok || got != "<|begin|>"+text {
		t.Errorf("got %q", got)
	}
	if got, ok := m.Decode(ids, true, 1<<20); !ok || got != text {
		t.Errorf("without special tokens %q", got)
	}
	if got, ok := m.Decode(append(ids, 1<<32-1, 1<<31, 1<<20), true, 1<<20); !ok || got != text {
		t.Errorf("with ids of no token %q", got)
	}
	if got, ok := m.Decode(ids, true, len(text)-8); ok {
		t.Errorf("beyond the limit %q", got)
	}
	if got, ok := m.Decode(nil, false, 0); !ok || got != "" {
		t.Errorf("of nothing %q", got)
	}
}
