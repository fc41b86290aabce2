package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// command runs the program, and returns its exit code and what it wrote.
func command(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(context.Background(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// writeFile puts text into a file of its own.
func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const (
	replayLog = `{"time":"2026-01-01T00:00:00Z","input_tokens":600,"output_tokens":3,"blocks":["a","b"],"block_size":512}
{"time":"2026-01-01T00:00:01Z","input_tokens":600,"output_tokens":3,"blocks":["a","b"],"block_size":512,"model":"other"}
`
	replayConfig = `
models:
  - id: m
    buckets:
      - {id: short, max_input_tokens: 100, plain: {policy: round_robin, workers: ["http://127.0.0.1:1"]}}
      - {id: long, plain: {policy: load_based, workers: ["http://127.0.0.1:2"]}}
discovery:
  static: {workers: ["http://127.0.0.1:1", "http://127.0.0.1:2"]}
load: {poll_interval: 2s}
`
)

func TestReplayCommand(t *testing.T) {
	log, conf, svg := writeFile(t, "log.jsonl", replayLog), writeFile(t, "short-first.yaml", replayConfig), filepath.Join(t.TempDir(), "plot.svg")
	code, out, stderr := command("replay", "--trace", log, "--policy", "round_robin,oracle", "--config", conf, "--json", "--svg", svg, "--fail", "engine=1,at=1h,for=1s")
	if code != exitDone {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	var report struct {
		Conditions struct{ Requests int }
		Runs       []struct {
			Name      string
			Completed int
			Hit       float64 `json:"hit_rate_blocks"`
			Every     float64 `json:"report_every_seconds"`
			PerEngine []struct {
				ID       string
				Requests int
			} `json:"per_engine"`
		}
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if len(report.Runs) != 3 || report.Conditions.Requests != 2 {
		t.Fatalf("%+v", report)
	}
	oracle, own := report.Runs[1], report.Runs[2]
	if oracle.Name != "oracle" || oracle.Completed != 2 || oracle.Hit != 0.25 || oracle.Every != 1 {
		t.Errorf("%+v", oracle)
	}
	if own.Name != "short-first" || own.Every != 2 || len(own.PerEngine) != 2 || own.PerEngine[1].Requests != 2 {
		t.Errorf("the configuration's long bucket should have both: %+v", own)
	}
	if plot, err := os.ReadFile(svg); err != nil || !bytes.HasPrefix(plot, []byte("<svg")) {
		t.Errorf("plot %.40q, error %v", plot, err)
	}
	if !strings.Contains(stderr, "oracle: 2 requests") {
		t.Errorf("no progress in %q", stderr)
	}
	if _, again, quiet := command("replay", "--trace", log, "--policy", "round_robin,oracle", "--config", conf, "--json", "--quiet", "--fail", "engine=1,at=1h,for=1s"); again != out || quiet != "" {
		t.Errorf("other bytes the second time, or %q on stderr", quiet)
	}
}

func TestReplayTable(t *testing.T) {
	log := writeFile(t, "log.jsonl", replayLog)
	code, out, _ := command("replay", "--trace", log, "--model", "m", "--policy", "random", "--reports", "none", "--step", "0s", "--prefill-rate", "1000", "--quiet", "--prefill-only")
	if code != exitDone || !strings.Contains(out, ": 1 request, ") || !strings.Contains(out, "random       0.60") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}

func TestReplayRefuses(t *testing.T) {
	log, broken := writeFile(t, "log.jsonl", replayLog), writeFile(t, "broken.jsonl", replayLog+"{}\n")
	pd := writeFile(t, "pd.yaml", `
models: [{id: m, policy: round_robin}]
discovery: {static: {workers: [{url: "http://127.0.0.1:1", role: prefill}, {url: "http://127.0.0.1:2", role: decode}]}}
`)
	for _, c := range []struct {
		want string
		args []string
	}{
		{`there is no policy "best"`, []string{"--policy", "best"}},
		{"there is no engine 8", []string{"--fail", "engine=8,at=1s"}},
		{"engine and at are needed", []string{"--fail", "engine=8"}},
		{"write engine=3", []string{"--fail", "engine=x,at=1s"}},
		{"not above 0", []string{"--fail", "engine=1,at=1s,for=0s"}},
		{"unknown", []string{"--fail", "engine=1,at=1s,four=1s"}},
		{"engines: choose", []string{"--engines", "0"}},
		{"kv-blocks: choose", []string{"--kv-blocks=-4"}},
		{"prefill-rate", []string{"--prefill-rate", "0"}},
		{"rate, report-every", []string{"--rate", "0"}},
		{"event loss", []string{"--event-loss", "2"}},
		{"do not divide", []string{"--block-size", "100"}},
		{"trace line 3: ", []string{"--trace", broken}},
		{"no such file", []string{"--trace", broken + "x"}},
		{"is no regular file", []string{"--trace", os.DevNull}},
		{"no request", []string{"--trace", writeFile(t, "empty.jsonl", "")}},
		{"no such file", []string{"--config", broken + "x"}},
		{"no model", []string{"--config", writeFile(t, "a.yaml", replayConfig), "--model", "x"}},
		{"plain engines only", []string{"--config", pd}},
	} {
		args := append([]string{"replay", "--trace", log, "--quiet"}, c.args...)
		if code, out, stderr := command(args...); code != exitUsage || out != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: exit code %d, output %q, %q on stderr; want %q there", c.args, code, out, stderr, c.want)
		}
	}
	if code, _, stderr := command("replay", "--trace", log, "--quiet", "--svg", filepath.Join(log, "no-folder")); code != exitRun || stderr == "" {
		t.Errorf("a plot that cannot be written: exit code %d, %q", code, stderr)
	}
}

func TestReplayHelp(t *testing.T) {
	code, out, _ := command("replay", "--help")
	if code != exitDone || !strings.Contains(out, "perigee replay --policy round_robin,load_based,oracle") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}
