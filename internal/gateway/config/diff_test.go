package config_test

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/config"
)

// TestDiffScript runs testdata/diff.txt: each block is edits of one configuration, "text => text" a line, "----", and what Diff tells of
// the result, "!" before what needs a restart.
func TestDiffScript(t *testing.T) {
	const name = "testdata/diff.txt"
	script, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(strings.TrimSpace(string(script)), "\n\n")
	base := blocks[0] + "\n"
	old, faults := config.Parse("base", []byte(base))
	if old == nil {
		t.Fatal(faults)
	}
	var out strings.Builder
	out.WriteString(base)
	for _, block := range blocks[1:] {
		head, _, _ := strings.Cut(block, "\n----")
		text := base
		for line := range strings.SplitSeq(head, "\n") {
			from, to, ok := strings.Cut(line, " => ")
			if to = strings.ReplaceAll(to, `\n`, "\n"); !ok || !strings.Contains(text, from) {
				t.Fatalf("edit %q finds nothing", line)
			}
			text = strings.Replace(text, from, to, 1)
		}
		next, faults := config.Parse("edited", []byte(text))
		if next == nil {
			t.Fatalf("%s\n%v", head, faults)
		}
		out.WriteString("\n" + head + "\n----\n")
		for _, c := range config.Diff(old, next) {
			if c.NeedsRestart {
				out.WriteString("! ")
			}
			out.WriteString(c.String() + "\n")
		}
		if n, m := len(config.Diff(old, next)), len(config.Diff(next, old)); n != m {
			t.Errorf("%s: %d changes there, %d back", head, n, m)
		}
	}
	golden(t, name, out.String())
}

func TestDiffOfTheSame(t *testing.T) {
	for _, file := range []string{"buckets", "minimal", "pd", "secure"} {
		a, _ := config.ParseFile("../../../examples/" + file + ".yaml")
		b, _ := config.ParseFile("../../../examples/" + file + ".yaml")
		if changes := config.Diff(a, b); len(changes) > 0 {
			t.Errorf("%s: %v", file, changes)
		}
	}
}

// TestDiffSeesEverything changes each value of a configuration in turn: none may change without being told, since a reload takes what
// Diff tells for all there is.
func TestDiffSeesEverything(t *testing.T) {
	const text = `
models:
  - id: a
    aliases: [x]
    policy: random
    sampling: {override: {temperature: 0.7}}
    admission: {max_running_requests: 1, max_waiting_requests: 2, max_kv_tokens: 3, max_pending_prefill_tokens: 4, max_inflight_requests: 5}
    buckets:
      - {id: short, rank: 1, min_input_tokens: 1, max_input_tokens: 2, max_context_tokens: 3, plain: {workers: [w]}}
      - {id: pair, pd: {prefill: {}, decode: {}}}
discovery: {static: {api_key_file: k, workers: [{id: w, url: "http://h:1", role: plain}]}}
server: {termination_grace: 60s, tls: {cert_file: c, key_file: k}, api_keys: {file: f}, admin: {port: 1, tls: {cert_file: c, key_file: k}, api_keys: {file: f}}}
client_fields: {allow: [rid]}
`
	parse := func() *config.Config {
		c, faults := config.Parse("f", []byte(text))
		if c == nil {
			t.Fatal(faults)
		}
		return c
	}
	old := parse()
	for i := 0; ; i++ {
		next := parse()
		at, done := changeLeaf(reflect.ValueOf(next).Elem(), i)
		if !done {
			if i < 70 {
				t.Fatalf("only %d values were changed", i)
			}
			return
		}
		switch at {
		case ".Server.Admin.APIKeys.ForwardAuthorization", // means nothing there
			".Models[].Sampling.Override[].Min", ".Models[].Sampling.Override[].Max": // are Exact once more
			continue
		}
		if len(config.Diff(old, next)) == 0 {
			t.Errorf("%s changes and is not told", at)
		}
	}
}

// changeLeaf changes the n-th value below v, and tells which it was.
func changeLeaf(v reflect.Value, n int) (string, bool) {
	left := n
	var walk func(v reflect.Value, at string) (string, bool)
	walk = func(v reflect.Value, at string) (string, bool) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				if where, ok := walk(v.Field(i), at+"."+v.Type().Field(i).Name); ok {
					return where, ok
				}
			}
			return "", false
		case reflect.Pointer:
			if v.IsNil() {
				return "", false
			}
			return walk(v.Elem(), at)
		case reflect.Slice:
			for i := range v.Len() {
				if where, ok := walk(v.Index(i), at+"[]"); ok {
					return where, ok
				}
			}
			return "", false
		}
		if left--; left >= 0 {
			return "", false
		}
		switch v.Kind() {
		case reflect.String:
			v.SetString(v.String() + "'")
		case reflect.Bool:
			v.SetBool(!v.Bool())
		case reflect.Float64:
			v.SetFloat(v.Float() + 1)
		default:
			v.SetInt(v.Int() + 1)
		}
		return at, true
	}
	return walk(v, "")
}
