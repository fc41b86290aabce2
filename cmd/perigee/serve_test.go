package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
	"github.com/perigee-llm/perigee/internal/gateway/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(thenHangUp{m}) }

// thenHangUp closes what the default client keeps for later, which is no leak of ours.
type thenHangUp struct{ m *testing.M }

func (t thenHangUp) Run() int {
	code := t.m.Run()
	http.DefaultClient.CloseIdleConnections()
	return code
}

// lockedBuffer is a bytes.Buffer for several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// served is perigee serve in this process.
type served struct {
	url, admin string
	signals    chan os.Signal
	stderr     *lockedBuffer
	cancel     context.CancelFunc
	ended      chan error
}

var serveLine = regexp.MustCompile(`^perigee serves on (http://\S+?)(?:, admin on (http://\S+))?\n$`)

// serve starts the command and waits for its line.
func serve(t *testing.T, c *serveCmd) *served {
	t.Helper()
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	s := &served{signals: make(chan os.Signal, 4), stderr: &lockedBuffer{}, cancel: cancel, ended: make(chan error, 1)}
	c.signalsForTesting = s.signals
	go func() {
		s.ended <- c.Run(&runContext{ctx: ctx, stdout: w, stderr: s.stderr, log: slog.New(slog.DiscardHandler)})
		w.Close()
	}()
	t.Cleanup(cancel)
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatalf("no line: %v, %v\n%s", err, <-s.ended, s.stderr)
	}
	m := serveLine.FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("line %q", line)
	}
	s.url, s.admin = m[1], m[2]
	return s
}

func given(values ...string) config.Once { return config.Once{Given: values} }

func oneEngine(t *testing.T, speed float64) *enginehttp.Server {
	t.Helper()
	e, err := enginehttp.Start(enginehttp.Options{Models: []string{"m"}, Engine: engine.Config{Timing: engine.Timing{Speed: speed}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// fresh asks over a connection of its own, so that a listener that is closed shows.
func fresh(t *testing.T, method, url, body string) (status int, text string, err error) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

const shortRequest = `{"model":"m","prompt":"hello","max_tokens":2}`

func TestServeInterruptLeavesOutThePause(t *testing.T) {
	e := oneEngine(t, 1000)
	s := serve(t, &serveCmd{Flags: config.Flags{
		ModelID: given("m"), WorkerURLs: config.List{Given: []string{e.URL()}}, Port: given("0"), AdminPort: given("0"),
	}})
	if status, text, err := fresh(t, "POST", s.url+"/v1/completions", shortRequest); err != nil || status != 200 {
		t.Fatalf("%d %s %v", status, text, err)
	}
	if status, _, err := fresh(t, "GET", s.admin+"/metrics", ""); err != nil || status != 200 {
		t.Errorf("metrics on the admin listener: %d %v", status, err)
	}
	if status, _, err := fresh(t, "GET", s.url+"/metrics", ""); err != nil || status != 404 {
		t.Errorf("metrics on the public listener: %d %v", status, err)
	}
	s.signals <- os.Interrupt
	if err := <-s.ended; err != nil { // a pause of 30 s would run into the test's limit
		t.Error(err)
	}
	if _, _, err := fresh(t, "GET", s.url+"/healthz", ""); err == nil {
		t.Error("it still listens")
	}
}

func TestServeDrains(t *testing.T) {
	e := oneEngine(t, 1) // 20 ms a token: 100 tokens outlast the drain
	s := serve(t, &serveCmd{Flags: config.Flags{
		ModelID: given("m"), WorkerURLs: config.List{Given: []string{e.URL()}}, Port: given("0"), ShutdownDrainSecs: given("1800"),
	}})
	type answer struct {
		status int
		text   string
		err    error
	}
	long := make(chan answer, 1)
	resp, err := http.Post(s.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"hello","max_tokens":100,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	go func() { // its head is here, so it is under way
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		long <- answer{resp.StatusCode, string(b), err}
	}()
	s.signals <- syscall.SIGTERM
	for { // not ready, and still serving
		status, text, err := fresh(t, "GET", s.url+"/readyz", "")
		if err != nil {
			t.Fatal(err)
		}
		if status == 503 && strings.Contains(text, `"draining"`) {
			break
		}
	}
	if status, text, err := fresh(t, "POST", s.url+"/v1/completions", shortRequest); err != nil || status != 200 {
		t.Errorf("while draining: %d %s %v", status, text, err)
	}
	s.signals <- syscall.SIGTERM // cuts the half hour short
	if err := <-s.ended; err != nil {
		t.Error(err)
	}
	if a := <-long; a.err != nil || a.status != 200 || !strings.Contains(a.text, "data: [DONE]") {
		t.Errorf("the request under way got %d, %v, and this much: %d bytes", a.status, a.err, len(a.text))
	}
}

func TestServeRefusals(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	_, port, _ := net.SplitHostPort(busy.Addr().String())
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("models: [{id: m, bucktes: []}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"serve"}, exitUsage, "--model-id"},
		{[]string{"serve", "--config", bad}, exitUsage, "bad.yaml:1:18: models[0].bucktes: "},
		{[]string{"serve", "--model-id", "m", "--worker-urls", "http://127.0.0.1:1", "--policy", "fused_score"}, exitUsage, "--policy: fused_score"},
		{[]string{"serve", "--model-id", "m", "--worker-urls", "http://127.0.0.1:1", "--port", port}, exitRun, "public listener: listen tcp 127.0.0.1:" + port},
		{[]string{"serve", "--no-such-flag"}, exitUsage, "--no-such-flag"},
		{[]string{"serve", "--model-id", "m", "--worker-urls", "http://127.0.0.1:1", "--port", "0", "--api-keys-file", bad, "--engine-api-key-file", "none"}, exitUsage, "bad.yaml:1:1: has a key that is not known"},
		{[]string{"serve", "--model-id", "m", "--worker-urls", "http://127.0.0.1:1", "--port", "0", "--api-keys-file", bad, "--engine-api-key-file", "none"}, exitUsage, "none: cannot be read"},
		{[]string{"serve", "--model-id", "m", "--worker-urls", "http://127.0.0.1:1", "--port", "0", "--tls-cert-file", bad, "--tls-key-file", bad}, exitUsage, "bad.yaml: cannot be used with"},
	} {
		var out, errs bytes.Buffer
		if code := run(context.Background(), c.args, &out, &errs); code != c.code {
			t.Errorf("%v: exit code %d, want %d\n%s", c.args, code, c.code, &errs)
		}
		if !strings.Contains(errs.String(), c.want) {
			t.Errorf("%v: stderr lacks %q:\n%s", c.args, c.want, &errs)
		}
	}
}

// TestServeReloads: SIGHUP has the files read anew, and ends nothing; not the pause of the drain either.
func TestServeReloads(t *testing.T) {
	e := oneEngine(t, 1000)
	dir := t.TempDir()
	file, keys := filepath.Join(dir, "perigee.yaml"), filepath.Join(dir, "keys.yaml")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text := "models: [{id: m}]\ndiscovery: {static: {workers: ['" + e.URL() + "']}}\n"
	write(file, text)
	write(keys, "version: 1\nkeys: [{name: a, key: 0123456789abcdef}]\n")
	s := serve(t, &serveCmd{Flags: config.Flags{ConfigFile: given(file), Port: given("0"), APIKeysFile: given(keys), ShutdownDrainSecs: given("1800")}})
	until := func(want string) {
		t.Helper()
		for !strings.Contains(s.stderr.String(), want) {
			if _, _, err := fresh(t, "GET", s.url+"/healthz", ""); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.signals <- syscall.SIGHUP
	until("nothing is different")
	write(file, text+"log: {level: debug}\n")
	s.signals <- syscall.SIGHUP
	until("log.level: info → debug")
	write(file, text+"server: {host: localhost}\n")
	s.signals <- syscall.SIGHUP
	until("server.host: 127.0.0.1 → localhost")
	if status, _, err := fresh(t, "GET", s.url+"/v1/models", ""); err != nil || status != 401 {
		t.Errorf("without a key: %d %v", status, err)
	}
	s.signals <- syscall.SIGTERM
	until("draining: not ready, still accepting")
	write(file, text+"server: {max_attempts: 1}\n")
	s.signals <- syscall.SIGHUP
	until("server.max_attempts: 3 → 1")
	s.signals <- os.Interrupt
	if err := <-s.ended; err != nil {
		t.Error(err)
	}
	if strings.Contains(s.stderr.String(), "0123456789abcdef") {
		t.Error("a key is in the log")
	}
}

func TestVersion(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(context.Background(), []string{"version"}, &out, &errs); code != exitDone || !strings.HasPrefix(out.String(), "perigee ") {
		t.Errorf("code %d, %q", code, out.String())
	}
}
