package main

import (
	"bytes"
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// watched is an output that a test can wait on.
type watched struct {
	mu    sync.Mutex
	text  bytes.Buffer
	wrote chan struct{} // one place: something was written since the last look
}

func newWatched() *watched { return &watched{wrote: make(chan struct{}, 1)} }

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case w.wrote <- struct{}{}:
	default:
	}
	return w.text.Write(p)
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// find waits until the output matches and returns the first group.
func (w *watched) find(t *testing.T, pattern string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	limit := time.After(time.Minute) // a busy machine may be slow; it is not this slow
	for {
		if m := re.FindStringSubmatch(w.String()); m != nil {
			return m[1]
		}
		select {
		case <-w.wrote:
		case <-limit:
			t.Fatalf("the output never matched %s:\n%s", pattern, w.String())
		}
	}
}

func TestDemoWrongUsage(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"--engines 0", "engines: 0 is out of range"},
		{"--speed 0", "speed: 0 is out of range"},
		{"--speed=-3", "speed: -3 is out of range"},
		{"--requests=-1", "requests, seconds"},
		{"--policy sticky", `policy: "sticky" is not one of`},
		{"--from 100000", "the trace has no request in this slice"},
		{"--nonsense", "unknown flag --nonsense"},
		{"--engines many", "many"},
	} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), append([]string{"demo"}, strings.Fields(tt.args)...), &out, &errs); code != exitUsage {
			t.Errorf("%s: exit code %d, want %d", tt.args, code, exitUsage)
		}
		if !strings.Contains(errs.String(), tt.want) || out.Len() > 0 {
			t.Errorf("%s: %q, want %q; stdout %q", tt.args, errs.String(), tt.want, out.String())
		}
	}
}

func TestDemoJSON(t *testing.T) {
	var out, errs bytes.Buffer
	code := run(t.Context(), strings.Fields("demo --engines 2 --requests 5 --speed 100 --policy power_of_two --no-manager --json --quiet"), &out, &errs)
	if code != exitDone || errs.Len() > 0 {
		t.Fatalf("exit code %d, stderr %s", code, errs.String())
	}
	var got struct {
		Requests, Errors *int
		Runs             []struct{ Policy string }
	}
	dec := json.NewDecoder(&out)
	if err := dec.Decode(&got); err != nil || dec.More() {
		t.Fatalf("not one JSON object: %v", err)
	}
	if *got.Requests != 10 || *got.Errors != 0 || len(got.Runs) != 2 || got.Runs[1].Policy != "power_of_two" {
		t.Errorf("%+v", got)
	}
}

// TestDemoKeeps runs a demo that stays, explains one of its requests, and ends it.
func TestDemoKeeps(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, errs := newWatched(), newWatched()
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, strings.Fields("demo --engines 2 --requests 5 --speed 100 --keep"), out, errs)
	}()
	admin := errs.find(t, `perigee explain --url (http://\S+) --request`)
	if table := out.String(); !strings.Contains(table, "cost + Manager") || !strings.Contains(table, "from the Cache Manager") || !strings.Contains(errs.String(), "5 of 5 requests") {
		t.Errorf("table %s\nprogress %s", table, errs.String())
	}
	var text, none bytes.Buffer
	if got := run(t.Context(), []string{"explain", "--url", admin + "/", "--request", "demo-3"}, &text, &none); got != exitDone {
		t.Errorf("explain: exit code %d, %s", got, none.String())
	}
	if !strings.HasPrefix(text.String(), "request demo-3: ") || strings.Count(text.String(), "\nrequest ") != 0 || !strings.Contains(text.String(), "picked engine-") {
		t.Errorf("explain: %s", text.String())
	}
	text.Reset()
	if got := run(t.Context(), []string{"explain", "--url", admin, "--limit", "2"}, &text, &none); got != exitDone || strings.Count(text.String(), "request demo-") != 2 {
		t.Errorf("explain --limit 2: exit code %d, %s", got, text.String())
	}
	text.Reset()
	if got := run(t.Context(), []string{"explain", "--url", admin, "--prefixes"}, &text, &none); got != exitDone || strings.Count(text.String(), " rank 0: exact for ") != 2 {
		t.Errorf("explain --prefixes: exit code %d, %s", got, text.String())
	}
	if got := run(t.Context(), []string{"explain", "--url", admin, "--request", "nobody"}, &text, &none); got != exitRun || !strings.Contains(none.String(), `no request "nobody"`) {
		t.Errorf("explain of an unknown request: exit code %d, %s", got, none.String())
	}
	select {
	case c := <-code:
		t.Fatalf("the demo did not stay: exit code %d", c)
	default:
	}
	cancel()
	if c := <-code; c != exitDone {
		t.Errorf("exit code %d: %s", c, errs.String())
	}
}

// TestDemoDefaults: a number of requests alone takes the place of the default length.
func TestDemoDefaults(t *testing.T) {
	c := demoCmd{Engines: 8, Speed: 20, Policy: "load_based"}
	if o := c.options(); o.Span != defaultSeconds*time.Second || o.Requests != 0 || o.Validate() != nil {
		t.Errorf("%+v", o)
	}
	c.Requests = 5
	if o := c.options(); o.Span != 0 || o.Requests != 5 {
		t.Errorf("%+v", o)
	}
	c.Seconds = 1.5
	if o := c.options(); o.Span != 1500*time.Millisecond || o.Requests != 5 {
		t.Errorf("%+v", o)
	}
}
