//go:build linux

package offload_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/perigee-llm/perigee/internal/cache/manager"
	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
)

// childSocket makes the test binary a Manager with this socket, to be killed.
const childSocket = "PERIGEE_TEST_MANAGER_SOCKET"

func TestMain(m *testing.M) {
	path := os.Getenv(childSocket)
	if path == "" {
		goleak.VerifyTestMain(m)
		return
	}
	if _, err := manager.Start(managerOptions(path)); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed, or its parent has ended
}

func managerOptions(socket string) manager.Options {
	o := manager.Options{Socket: socket, PoolBytes: 4 << 20, Instances: 2, Log: slog.New(slog.DiscardHandler)}
	o.Pool.NoPrefault = true
	return o
}

// startChild starts a Manager in a process of its own, and returns how to send it a signal, and how to kill it.
func (r *rig) startChild() (signal func(os.Signal), kill func()) {
	r.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childSocket+"="+r.socket)
	in, err := cmd.StdinPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		_ = in.Close()
	})
	r.t.Cleanup(kill)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		r.t.Fatalf("%q, %v", line, err)
	}
	return func(s os.Signal) {
		if err := cmd.Process.Signal(s); err != nil {
			r.t.Error(err)
		}
		if s == syscall.SIGSTOP {
			eventually(r.t, "stopped", func() bool {
				text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
				return err == nil && bytes.Contains(text, []byte(") T "))
			})
		}
	}, kill
}

// The engine of these tests: blocks of 16 tokens, 16 of them, so that two prompts of 10 blocks do not fit beside each other.
const (
	blockTokens = 16
	kvBlocks    = 16
	longWait    = time.Minute // no test waits for it; a machine that is busy may
)

// rig is an engine and the Manager that it uses.
type rig struct {
	*enginehttp.Server
	t      *testing.T
	socket string
	m      *manager.Manager // nil: there is none
	client *http.Client
}

// begin starts an engine, and unless absent is set a Manager, which it has registered with then.
func begin(t *testing.T, absent bool, change ...func(*enginehttp.Options)) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "po") // a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := &rig{t: t, socket: filepath.Join(dir, "s"), client: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(r.client.CloseIdleConnections)
	if !absent {
		r.startManager()
	}
	o := enginehttp.Options{
		Engine:       engine.Config{BlockSize: blockTokens, KVBlocks: kvBlocks, Timing: engine.Timing{Speed: 1000}},
		CacheManager: &enginehttp.CacheManager{Socket: r.socket, LookupWait: longWait, RestoreWait: longWait, HangAfter: longWait},
	}
	for _, f := range change {
		f(&o)
	}
	if r.Server, err = enginehttp.Start(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	if !absent {
		r.registered(1)
	}
	return r
}

func (r *rig) startManager() {
	r.t.Helper()
	m, err := manager.Start(managerOptions(r.socket))
	if err != nil {
		r.t.Fatal(err)
	}
	r.m = m
	r.t.Cleanup(func() { _ = m.Close() })
}

// until waits for something, and shows what was counted if it never comes.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	defer func() {
		if r.t.Failed() {
			r.t.Logf("%+v, %+v", r.Stats(), *r.Stats().CacheManager)
		}
	}()
	eventually(r.t, what, ok)
}

// eventually waits for as long as a machine may take that is very busy.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(longWait)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("never: %s", what)
		}
	}
}

// registered waits until the engine has registered so many times.
func (r *rig) registered(times int64) {
	r.t.Helper()
	r.until("registered", func() bool { s := r.Stats().CacheManager; return s.Registered && s.Registrations == times })
}

// published waits until so many blocks have been written to the Manager, were there, or came to nothing.
func (r *rig) published(n int64) {
	r.t.Helper()
	r.until("published", func() bool { s := r.Stats().CacheManager; return s.Published+s.Present+s.Dropped == n })
}

// tokens are those of a prompt of so many blocks and one token, which no other number has in common.
func tokens(prompt, blocks int) (ids []uint32) {
	for i := range blocks*blockTokens + 1 {
		ids = append(ids, uint32(prompt*100_000+i))
	}
	return ids
}

type answer struct {
	status int
	text   string
	cached int
}

// ask has the engine compute a prompt, and one token of an answer.
func (r *rig) ask(ctx context.Context, prompt, blocks int, more string) (answer, error) {
	ids, err := json.Marshal(tokens(prompt, blocks))
	if err != nil {
		return answer{}, err
	}
	body := fmt.Sprintf(`{"prompt":%s,"max_tokens":1%s}`, ids, more)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL()+"/v1/completions", bytes.NewReader([]byte(body)))
	if err != nil {
		return answer{}, err
	}
	res, err := r.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return answer{}, err
	}
	var v struct {
		Choices []struct{ Text string }
		Usage   struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return answer{}, err
	}
	a := answer{status: res.StatusCode, cached: v.Usage.Details.Cached}
	if len(v.Choices) == 1 {
		a.text = v.Choices[0].Text
	}
	return a, nil
}

// want asks and compares how many tokens were cached.
func (r *rig) want(prompt, blocks, cached int, more ...string) string {
	r.t.Helper()
	a, err := r.ask(r.t.Context(), prompt, blocks, fmt.Sprint(append([]string{""}, more...)[len(more)]))
	if err != nil || a.status != http.StatusOK || a.cached != cached {
		r.t.Fatalf("prompt %d: %+v, %v; want %d cached; %+v", prompt, a, err, cached, *r.Stats().CacheManager)
	}
	return a.text
}

// evicted fills the engine's cache with another prompt, and waits until it is published.
func (r *rig) evicted(prompt int) {
	r.t.Helper()
	s := r.Stats().CacheManager
	r.want(prompt, kvBlocks-1, 0)
	r.published(s.Published + s.Present + s.Dropped + kvBlocks - 1)
}

// atRest waits until nothing is held at the Manager, and in the end, without the engine, nothing at all.
func (r *rig) atRest() {
	r.t.Helper()
	r.until("the Manager is at rest", func() bool {
		u := r.m.Status().Usage
		return u.Granted+u.Quarantined+u.Leased+u.Reserved+u.Pinned+u.Queries == 0
	})
	if l := r.Stats().Load; l.Running+l.Waiting+l.Restoring+l.UsedTokens != 0 {
		r.t.Errorf("the engine is not at rest: %+v", l)
	}
	r.Close()
	r.until("no session is left", func() bool { st := r.m.Status(); return len(st.Sessions)+st.Connections == 0 })
	if u := r.m.Status().Usage; u.Granted+u.Quarantined+u.Leased+u.Reserved+u.Pinned+u.Queries != 0 {
		r.t.Errorf("without the engine the Manager holds %+v", u)
	}
}
