package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// runEngines runs the command as the command line would, and returns its first line. Ending the test ends it; it must end cleanly.
func runEngines(t *testing.T, c engineCmd) (line string, stdout *bufio.Reader) {
	t.Helper()
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- c.Run(&runContext{ctx: ctx, stdout: w, stderr: io.Discard, log: slog.New(slog.DiscardHandler)})
		w.Close()
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("perigee engine ended with %v", err)
		}
	})
	stdout = bufio.NewReader(r)
	line, err := stdout.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return line, stdout
}

func TestEngineCommand(t *testing.T) {
	c := engineCmd{Host: "127.0.0.1", Count: 2, Flavor: "sglang", Model: []string{"m"}, Control: true, Speed: 100}
	first, rest := runEngines(t, c)
	second, err := rest.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	form := regexp.MustCompile(`^engine (\d): (http://127\.0\.0\.1:\d+) \(control (http://127\.0\.0\.1:\d+)\)\n$`)
	a, b := form.FindStringSubmatch(first), form.FindStringSubmatch(second)
	if a == nil || b == nil || a[1] != "0" || b[1] != "1" || a[2] == b[2] || a[3] == b[3] {
		t.Fatalf("%q, %q", first, second)
	}
	resp, err := http.Post(a[2]+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"hello","max_tokens":2}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("status %d", resp.StatusCode)
	}
	ctl, err := http.Get(b[3] + "/_control")
	if err != nil {
		t.Fatal(err)
	}
	defer ctl.Body.Close()
	if ctl.StatusCode != http.StatusOK {
		t.Errorf("control: status %d", ctl.StatusCode)
	}
}

func TestEngineCommandJSON(t *testing.T) {
	line, _ := runEngines(t, engineCmd{Host: "127.0.0.1", Count: 3, Flavor: "vllm", JSON: true})
	var v struct {
		Flavor  string
		Engines []struct{ URL, Control string }
	}
	if err := json.Unmarshal([]byte(line), &v); err != nil || v.Flavor != "vllm" || len(v.Engines) != 3 || v.Engines[2].URL == "" || v.Engines[0].Control != "" {
		t.Errorf("%v: %s", err, line)
	}
}

// TestEngineCommandUsage: what cannot work ends with exit code 2, what fails while starting with 1.
func TestEngineCommandUsage(t *testing.T) {
	busy, _ := runEngines(t, engineCmd{Host: "127.0.0.1", Count: 1, JSON: true})
	port := regexp.MustCompile(`127\.0\.0\.1:(\d+)`).FindStringSubmatch(busy)[1]
	for _, x := range []struct {
		args string
		code int
		want string
	}{
		{"--count 0", exitUsage, "--count must be at least 1"},
		{"--port 65535 --count 2", exitUsage, "between 0 and 65535"},
		{"--flavor tgi", exitUsage, "vllm"},
		{"--max-running 10 --max-batch-tokens 5", exitUsage, "MaxBatchTokens 5 is below MaxRunning 10"},
		{"--kv-blocks=-1", exitUsage, "KVBlocks is negative"},
		{"--port " + port, exitRun, "address already in use"},
	} {
		var stdout, stderr strings.Builder
		code := run(t.Context(), append([]string{"engine"}, strings.Fields(x.args)...), &stdout, &stderr)
		if code != x.code || !strings.Contains(stderr.String(), x.want) || stdout.Len() > 0 {
			t.Errorf("%s: code %d, want %d; stdout %q, stderr %q", x.args, code, x.code, stdout.String(), stderr.String())
		}
	}
}

// TestEngineCommandEnds: being told to stop is no failure; not being able to start is one, and no fault of usage.
func TestEngineCommandEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := (&engineCmd{Host: "127.0.0.1", Count: 1}).Run(&runContext{ctx: ctx, stdout: io.Discard, stderr: io.Discard, log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Errorf("a context that has ended is a wish to stop, not %v", err)
	}
	err = (&engineCmd{Host: "256.0.0.1", Count: 1}).Run(&runContext{ctx: context.Background(), stdout: io.Discard, stderr: io.Discard, log: slog.New(slog.DiscardHandler)})
	var exit exitError
	if err == nil || errors.As(err, &exit) {
		t.Errorf("a host that cannot be: %v", err)
	}
}
