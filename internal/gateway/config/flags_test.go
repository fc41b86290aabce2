package config_test

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"

	"github.com/perigee-llm/perigee/internal/gateway/config"
)

// parseFlags runs the words through kong as the serve command does.
func parseFlags(t *testing.T, words ...string) *config.Flags {
	t.Helper()
	f, err := tryFlags(words...)
	if err != nil {
		t.Fatalf("%q: %v", words, err)
	}
	return f
}

func tryFlags(words ...string) (*config.Flags, error) {
	var cli struct {
		Serve struct {
			config.Flags `embed:""`
		} `cmd:""`
	}
	k, err := kong.New(&cli, kong.Writers(io.Discard, io.Discard), kong.Exit(func(int) {}))
	if err != nil {
		return nil, err
	}
	_, err = k.Parse(append([]string{"serve"}, words...))
	return &cli.Serve.Flags, err
}

// TestFlagsScript runs testdata/flags.txt: each block is a command line, "----", and the faults it gets ("ok" when none).
func TestFlagsScript(t *testing.T) {
	const name = "testdata/flags.txt"
	script, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for i, block := range strings.Split(strings.TrimSpace(string(script)), "\n\n") {
		head, _, _ := strings.Cut(block, "\n----")
		var words []string
		for _, line := range strings.Split(head, "\n") {
			if !strings.HasPrefix(line, "#") {
				words = append(words, splitWords(line)...)
			}
		}
		if i > 0 {
			out.WriteString("\n")
		}
		out.WriteString(head + "\n----\n")
		f, err := tryFlags(words...)
		if err != nil {
			out.WriteString("usage: " + err.Error() + "\n")
			continue
		}
		cfg, faults := f.Config()
		if (cfg == nil) != (len(faults.Errors()) > 0) {
			t.Errorf("%q: config %v with faults %v", words, cfg, faults)
		}
		for _, fault := range faults {
			out.WriteString(fault.String() + "\n")
		}
		if len(faults) == 0 {
			out.WriteString("ok\n")
		}
	}
	golden(t, name, out.String())
}

// splitWords splits at spaces; a word in single quotes may hold spaces and may be empty.
func splitWords(line string) []string {
	var out []string
	for _, w := range regexp.MustCompile(`'[^']*'|\S+`).FindAllString(line, -1) {
		out = append(out, strings.Trim(w, "'"))
	}
	return out
}

// TestFlagsGiveWhatTheFileGives holds the promise that a command line and a file that say the same give the same Config.
func TestFlagsGiveWhatTheFileGives(t *testing.T) {
	const urls, found = "--worker-urls http://a:1 http://b:2", "discovery: {static: {workers: [http://a:1, http://b:2]}}\n"
	for _, tt := range []struct{ name, flags, file string }{
		{"defaults", "--model-id m " + urls, "models: [{id: m}]\n" + found},
		{"list with commas", "--worker-urls http://a:1,http://b:2 --model-id m", "models: [{id: m}]\n" + found},
		{"list repeated", "--worker-urls http://a:1 --model-id m --worker-urls=http://b:2", "models: [{id: m}]\n" + found},
		{"trailing slash", "--model-id m --worker-urls http://a:1/", "models: [{id: m}]\ndiscovery: {static: {workers: [http://a:1/]}}"},
		{"numbers as names", "--model-id 007 " + urls, "models: [{id: '007'}]\n" + found},
		{"server", "--model-id m " + urls + " --host 0.0.0.0 --port 0 --shutdown-drain-secs 0 --termination-grace-secs 60 --request-timeout-secs 7 --stream-idle-timeout-secs 8 --stale-request-timeout-secs 90 --max-body-bytes 1MiB --max-attempts 1 --admin-host 127.0.0.2 --admin-port 9 --public-metrics --public-flush-cache --client-fields strip --allow-client-fields rid,cache_salt",
			"models: [{id: m}]\nserver: {host: 0.0.0.0, port: 0, shutdown_drain: 0s, termination_grace: 1m, request_timeout: 7s, stream_idle_timeout: 8s, stale_request_timeout: 90s, max_body_bytes: 1048576, max_attempts: 1, admin: {host: 127.0.0.2, port: 9}, public_metrics: true, public_flush_cache: true}\nclient_fields: {default: strip, allow: [rid, cache_salt]}\n" + found},
		{"logging and breaker", "--model-id m " + urls + " --log-level debug --log-format json --cb-threshold 5 --cb-cool-down-secs 6",
			"models: [{id: m}]\nlog: {level: debug, format: json}\nbreaker: {threshold: 5, cool_down: 6s}\n" + found},
		{"policies", "--model-id m " + urls + " --policy load_based --decode-policy random",
			"models: [{id: m, policy: load_based, decode_policy: random}]\n" + found},
		{"budget", "--model-id m " + urls + " --filter overloaded --max-in-flight 12 --policy power_of_two",
			"models: [{id: m, policy: {name: power_of_two}, admission: {max_inflight_requests: 12}}]\n" + found},
		{"sampling", "--model-id m " + urls + ` --disable-input-ids-forwarding --override-sampling-params '{"top_k":-1,"temperature":{"min":0.5,"max":1}}' --sampling-param-conflict reject`,
			"models: [{id: m, input_ids_forwarding: false, sampling: {override: {temperature: {min: 0.5, max: 1.0}, top_k: -1}, conflict: reject}}]\n" + found},
		{"sampling allowed", "--model-id m " + urls + ` --override-sampling-params '{"n":2,"min_p":5e-1}' --sampling-param-conflict allow`,
			"models: [{id: m, sampling: {override: {n: 2, min_p: 0.5}, conflict: allow}}]\n" + found},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fromFlags, faults := parseFlags(t, splitWords(tt.flags)...).Config()
			if len(faults) > 0 {
				t.Fatalf("flags: %v", faults)
			}
			fromFile, faults := config.Parse("f.yaml", []byte(tt.file))
			if len(faults) > 0 {
				t.Fatalf("file: %v", faults)
			}
			if diff := cmp.Diff(fromFile, fromFlags); diff != "" {
				t.Errorf("file (-) and flags (+) differ:\n%s", diff)
			}
		})
	}
}

// TestBudgetReachesEveryGroup follows --max-in-flight to where it is checked.
func TestBudgetReachesEveryGroup(t *testing.T) {
	cfg, faults := parseFlags(t, splitWords("--model-id m --worker-urls http://a:1 --filter overloaded --max-in-flight 12")...).Config()
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	b := cfg.Models[0].Buckets
	for name, g := range map[string]config.Group{"plain": *b[0].Plain, "prefill": b[1].PD.Prefill, "decode": b[1].PD.Decode} {
		if n := g.Admission.MaxInflightRequests; n == nil || *n != 12 {
			t.Errorf("%s: max in-flight %v, want 12", name, n)
		}
	}
	if got := b[1].PD.Decode.Policy.Name; got != config.PowerOfTwo {
		t.Errorf("decode policy %s, want power_of_two", got)
	}
}

// TestFlagsOverFile: server flags win over the file and keep the rest of it; the file's faults keep their lines.
func TestFlagsOverFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "p.yaml")
	write := func(text string) {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("models: [{id: m}]\nserver: {port: 1, host: localhost}\ndiscovery: {static: {workers: [http://a:1]}}\n")
	cfg, faults := parseFlags(t, "--config", name, "--port", "2", "--log-level", "warn", "--admin-port", "3").Config()
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	if cfg.Server.Port != 2 || cfg.Server.Host != "localhost" || cfg.Log.Level != config.LogWarn || *cfg.Server.Admin.Port != 3 {
		t.Errorf("got %+v %+v", cfg.Server, cfg.Log)
	}
	write("models: [{id: m}]\nserver: {port: 1}\ndiscovery: {}\n")
	_, faults = parseFlags(t, "--config", name, "--port", "70000", "--policy", "random").Config()
	var got []string
	for _, f := range faults {
		got = append(got, strings.ReplaceAll(f.String(), name, "FILE"))
	}
	want := []string{
		"--port: 70000 is out of range; choose 0 to 65535",
		"--policy: cannot be joined with --config; write it in the file",
		"FILE:3:12: discovery: has no source of engines; add static: {workers: [URL, ...]}",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, faults := parseFlags(t, "--config", name+".none").Config(); len(faults.Errors()) != 1 || faults[0].Flag != "config" {
		t.Errorf("a file that is missing: %v", faults)
	}
}
