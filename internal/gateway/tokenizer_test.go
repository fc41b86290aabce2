package gateway_test

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
	"github.com/perigee-llm/perigee/internal/gateway"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/explain"
)

// smallTokenizer returns the text of one of the small tokenizers that tokens/bpe is tested with.
func smallTokenizer(t testing.TB, name string) string {
	t.Helper()
	f, err := os.Open(filepath.Join("tokens", "bpe", "testdata", "tiny-"+name+".json.gz"))
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

const tokenized = `
models:
- {id: m, tokenizer: $DIR/%s, buckets: [{id: short, max_input_tokens: 12, plain: {}}, {id: long, min_input_tokens: 13, plain: {}}]}
server: {port: 0, admin: {port: 0}}
discovery: {static: {workers: [{id: a, url: "%s"}]}}
`

// last tells how the last request's length was come by, and where the request went.
func (l *live) last() string {
	rec := l.Explain().Records(explain.Query{Limit: 1})[0]
	return fmt.Sprintf("%d %s %v %s", rec.InputTokens, rec.InputSource, rec.InputExact, rec.Attempts[0].Bucket)
}

// TestTokenizerReload: a tokenizer that is replaced is read again, one that stays is not, and a broken one changes nothing.
func TestTokenizerReload(t *testing.T) {
	engines := startEngines(t, 1, enginehttp.SGLang)
	text := fmt.Sprintf(tokenized, "tokenizer.json", engines[0].URL())
	l := startLive(t, time.Hour, map[string]string{
		configFile: text, "tokenizer.json": smallTokenizer(t, "llama3"), "chat_template.jinja": "{% for m in messages %}<|begin|>{{ m.content }}{% endfor %}",
	})
	c := newClient(t)
	want := func(body, facts string) {
		t.Helper()
		path := "/v1/completions"
		if strings.Contains(body, "messages") {
			path = "/v1/chat/completions"
		}
		if status, answer, err := send(t, c, "POST", l.URL()+path, body); status != 200 || err != nil {
			t.Fatal(status, answer, err)
		}
		if got := l.last(); got != facts {
			t.Errorf("%s: %s, want %s", body, got, facts)
		}
	}
	tokenize := func(body, answer string) {
		t.Helper()
		if status, got, err := send(t, c, "POST", l.URL()+"/v1/tokenize", body); status != 200 || strings.TrimSpace(got) != answer || err != nil {
			t.Errorf("%s: %d %s %v, want %s", body, status, got, err, answer)
		}
	}
	const chat, dense = `{"model":"m","max_tokens":2,"messages":[{"role":"user","content":" conversation"}]}`, `{"model":"m","max_tokens":2,"prompt":"9!9!9!9!9!9!9!"}`
	want(chat, "2 rendered true short")
	want(dense, "15 encoded true long")
	want(`{"model":"m","max_tokens":2,"prompt":[1,2,3]}`, "3 given true short")
	tokenize(`{"model":"m","prompt":"<|end|>"}`, `{"model":"m","tokens":[958,959],"count":2}`)
	if status, got, err := send(t, c, "POST", l.URL()+"/detokenize", `{"model":"m","tokens":[958,959]}`); status != 200 || !strings.Contains(got, "begin") || err != nil {
		t.Errorf("%d %s %v", status, got, err)
	}
	if status, page, err := send(t, c, "GET", l.AdminURL()+"/metrics", ""); status != 200 || !strings.Contains(page, `perigee_input_ids_forwarding_total{model="m",outcome="forwarded"} 1`) || err != nil {
		t.Errorf("the ids were not forwarded: %v", err)
	}

	l.mustReload("nothing is different")
	// The same size and time: it is not looked into, so what it has now shows that it was not read.
	info, err := os.Stat(l.path("chat_template.jinja"))
	if err != nil {
		t.Fatal(err)
	}
	l.write("chat_template.jinja", "{% for m in messages %}<|begin|>{{ m.kontent }}{% endfor %}")
	if err := os.Chtimes(l.path("chat_template.jinja"), time.Time{}, info.ModTime()); err != nil {
		t.Fatal(err)
	}
	l.write(configFile, strings.Replace(text, "id: m,", "id: m, aliases: [n],", 1))
	l.mustReload("models[0].aliases")
	want(chat, "2 rendered true short")

	l.write("chat_template.jinja", "{% for m in messages %}<|begin|>{{ m.content }}<|end|>{% endfor %}")
	l.mustReload("tokenizer.json: as it was read → another file", "changes=")
	want(chat, "3 rendered true short")

	l.write("tokenizer.json", strings.Replace(smallTokenizer(t, "llama3"), `"type":"BPE"`, `"type":"Unigram"`, 1))
	said, err := l.reload()
	if !errors.Is(err, gateway.ErrRefused) || !strings.Contains(said, "cannot be used as a tokenizer") || !strings.Contains(said, "model.type") {
		t.Errorf("%v\n%s", err, said)
	}
	want(chat, "3 rendered true short")
	tokenize(`{"model":"m","prompt":"<|end|>"}`, `{"model":"m","tokens":[958,959],"count":2}`)

	l.write("tokenizer.json", smallTokenizer(t, "qwen3")) // puts nothing before a text
	l.write("chat_template.jinja", "{% include 'x' %}")
	l.mustReload("its chat template is not used", "include", "another file")
	tokenize(`{"model":"m","prompt":"<|end|>"}`, `{"model":"m","tokens":[959],"count":1}`)
	want(chat, "2 bare_text false short")

	l.write(configFile, strings.Replace(text, "tokenizer: $DIR/tokenizer.json, ", "", 1))
	l.mustReload("models[0].tokenizer")
	want(chat, "20 estimated false long")
	if status, got, err := send(t, c, "POST", l.URL()+"/tokenize", `{"model":"m","prompt":"x"}`); status != http.StatusNotImplemented || err != nil {
		t.Errorf("%d %s %v", status, got, err)
	}
	l.write(configFile, text)
	l.mustReload("models[0].tokenizer")
	want(dense, "14 encoded true long")
}

// TestTokenizerWatched: a model's files are looked at as keys are, those that are not there yet too.
func TestTokenizerWatched(t *testing.T) {
	engines := startEngines(t, 1, enginehttp.VLLM)
	l := startLive(t, 2*time.Millisecond, map[string]string{configFile: fmt.Sprintf(tokenized, "", engines[0].URL()), "tokenizer.json": smallTokenizer(t, "llama3")})
	l.write("chat_template.jinja", "{{ messages[0].content }}")
	l.log.await("the configuration was reloaded")
	l.write("tokenizer.json", "{")
	l.log.await("nothing has changed")
	l.write("tokenizer.json", smallTokenizer(t, "qwen3"))
	l.log.await("the configuration was reloaded")
}

// TestTokenizerAtStart: a tokenizer that is not there or not supported stops the start, and CheckFiles tells of it.
func TestTokenizerAtStart(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		name, file, template string
		want                 string
		fatal                bool
	}{
		{"nothing there", "", "", "tokenizer.json: no such file or directory", true},
		{"not supported", `{"version":"2.0"}`, "", "version", true},
		{"no template", smallTokenizer(t, "llama3"), "", "its chat template is not used: ", false},
		{"all well", smallTokenizer(t, "llama3"), "{{ messages[0].content }}", "", false},
	} {
		for name, text := range map[string]string{"tokenizer.json": c.file, "chat_template.jinja": c.template} {
			if text == "" {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cfg, faults := config.Parse("test.yaml", fmt.Appendf(nil, "models: [{id: m, tokenizer: %s}, {id: n, tokenizer: %s}]\nserver: {port: 0}\ndiscovery: {static: {workers: [{url: \"http://127.0.0.1:1\"}]}}\n", dir, dir))
		if cfg == nil {
			t.Fatal(faults)
		}
		faults = gateway.CheckFiles(cfg)
		if c.want == "" {
			if len(faults) != 0 {
				t.Errorf("%s: %v", c.name, faults)
			}
			continue
		}
		if len(faults) != 1 || (len(faults.Errors()) == 1) != c.fatal || !strings.Contains(faults[0].String(), c.want) || faults[0].File != dir {
			t.Errorf("%s: %v", c.name, faults)
		}
		var broken *gateway.FilesError
		if c.fatal {
			if _, err := gateway.Start(t.Context(), gateway.Options{Config: cfg, Log: newTestLog(t)}); !errors.As(err, &broken) {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	}
}
