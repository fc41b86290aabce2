package main

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/config"
)

func TestIndexCommand(t *testing.T) {
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	c := indexCmd{Listen: "127.0.0.1:0", Admin: "127.0.0.1:0"}
	c.WorkerURLs.Given = []string{"http://127.0.0.1:1"}
	ended := make(chan error, 1)
	go func() {
		ended <- c.Run(&runContext{ctx: ctx, stdout: w, stderr: io.Discard, log: slog.New(slog.DiscardHandler)})
		w.Close()
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	if want := regexp.MustCompile(`^perigee indexes on 127\.0\.0\.1:\d+, admin on http://127\.0\.0\.1:\d+\n$`); err != nil || !want.MatchString(line) {
		t.Errorf("%q, %v", line, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestIndexFollowsManagers: of a gateway's configuration the engines and the Cache Managers count, whatever its policies are.
func TestIndexFollowsManagers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	text := `
models: [{id: m, policy: {name: cost, prefix_provider: perigee_index, kv_indexer: {endpoint: "http://127.0.0.1:50051"}}}]
discovery: {static: {workers: ["http://127.0.0.1:1"]}}
managers: [{id: host-1, events: "tcp://127.0.0.1:2", replay: "tcp://127.0.0.1:3", snapshot: "tcp://127.0.0.1:4"}]
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	c := indexCmd{ConfigFile: given(file)}
	o, err := c.options(&runContext{ctx: t.Context(), stdout: io.Discard, stderr: &stderr, log: slog.New(slog.DiscardHandler)})
	want := []config.Manager{{ID: "host-1", Events: "tcp://127.0.0.1:2", Replay: "tcp://127.0.0.1:3", Snapshot: "tcp://127.0.0.1:4"}}
	if err != nil || !slices.Equal(o.Managers, want) || len(o.Workers) != 1 || stderr.Len() > 0 {
		t.Errorf("%+v, %v, %q", o, err, &stderr)
	}
}

func TestIndexCommandRefuses(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const engine = "--worker-urls=http://127.0.0.1:1"
	for args, want := range map[string]string{
		"":                                   "--worker-urls: is missing",
		engine + " --listen 0.0.0.0:0":       "--open",
		engine + " --max-claims=-1":          "below zero",
		engine + " --token-file " + empty:    "no usable secret",
		engine + " --tls-cert-file " + empty: "belong together",
		engine + " --tls-cert-file " + empty + " --tls-key-file " + empty:                                       "failed to find any PEM data",
		engine + " --engine-api-key-file " + empty:                                                              "no usable secret",
		engine + " --snapshot-ca-file " + empty:                                                                 "no effect without --snapshot-from",
		engine + " --snapshot-from https://a:1 --snapshot-ca-file " + empty:                                     "has no certificate",
		engine + " --snapshot-from https://a:1 --snapshot-key-file " + empty:                                    "belong together",
		engine + " --snapshot-from https://a:1 --snapshot-key-file " + empty + " --snapshot-cert-file " + empty: "failed to find any PEM data",
		"--config " + filepath.Join(dir, "none"):                                                                "cannot be read",
	} {
		var stderr strings.Builder
		if code := run(t.Context(), append([]string{"index"}, strings.Fields(args)...), io.Discard, &stderr); code != exitUsage || !strings.Contains(stderr.String(), want) {
			t.Errorf("index %s: exit %d, %q; want %q", args, code, stderr.String(), want)
		}
	}
}
