//go:build linux

package manager

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/cache/channel/client"
	"github.com/perigee-llm/perigee/internal/cache/core"
)

// needPython skips a test where there is no Python, but not in CI, which has to prove both clients.
func needPython(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("CI needs python3")
		}
		t.Skip("no python3")
	}
}

// python runs a script of python/tests with the client of python/ in its path.
func (m *tester) python(args ...string) string {
	m.t.Helper()
	out, err := m.pythonCommand(args...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("%v\n%s", err, out)
	}
	return strings.TrimSpace(string(out))
}

func (m *tester) pythonCommand(args ...string) *exec.Cmd {
	m.t.Helper()
	return pythonCommand(m.t, args...)
}

func pythonCommand(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("python3", append([]string{"-I", "-c", "import sys; sys.path.insert(0, sys.argv.pop(1)); sys.argv.pop(0); import runpy; runpy.run_path(sys.argv[0], run_name='__main__')",
		filepath.Join(root, "python"), filepath.Join(root, "python/tests/client_check.py")}, args...)...)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	return cmd
}

// TestPython: the client in Python's standard library against this Manager, and what it publishes is what an engine in Go restores.
func TestPython(t *testing.T) {
	needPython(t)
	m := begin(t, func(o *Options) { o.PoolBytes, o.Instances = 2*128*8192, 2 })
	if out := m.python(m.opt.Socket, "../state/testdata/vectors.json"); out != "ok" {
		t.Fatal(out)
	}
	m.settled()
	s := m.dial(named("go"), func(o *client.Options) {})
	a, err := s.Query(context.Background(), query(1, 12))
	if err != nil || a.Lease == nil || a.Lease.Hits[0] != 12 {
		t.Fatalf("%+v, %v", a, err)
	}
	s.Close()
	m.settled()
}

// TestPythonLost: the client in Python waits for the end of copies, and for no time-out, when its session is lost meanwhile.
func TestPythonLost(t *testing.T) {
	needPython(t)
	g := newGate()
	m := begin(t, func(o *Options) { o.CopyForTesting = func(_ core.SessionID, _ bool, page int) { g.wait(page) } })
	out := make(chan string, 1)
	go func() { out <- m.python(m.opt.Socket, "lost") }()
	select {
	case <-g.reached:
	case got := <-out:
		t.Fatalf("nothing was copied: %s", got)
	}
	m.locked(func() { m.lose(m.mu.sessions[1]) })
	m.until("its connections are told", func(st Status) bool { return len(st.Sessions) == 1 && st.Sessions[0].Lost })
	select {
	case got := <-out:
		t.Errorf("it ended while the Manager copies: %s", got)
		out <- got
	case <-time.After(tooEarly):
	}
	close(g.open)
	if got := <-out; got != "ok" {
		t.Error(got)
	}
	m.settled()
}

// pythonSteps runs the client's checks of that name, which print each of these lines and then wait for one of ours: act comes before it.
func (m *tester) pythonSteps(args, lines []string, act func()) {
	m.t.Helper()
	cmd := m.pythonCommand(append([]string{m.opt.Socket}, args...)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	said := bufio.NewScanner(out)
	for _, want := range lines {
		if !said.Scan() || said.Text() != want {
			m.t.Errorf("%q instead of %q", said.Text(), want)
			break
		}
		act()
		in.Write([]byte("\n"))
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		m.t.Error(err)
	}
}

// TestPythonLeft: the client in Python gives back what a session had that it has lost, though its process lives on.
func TestPythonLeft(t *testing.T) {
	needPython(t)
	m := begin(t)
	m.pythonSteps([]string{"left"}, []string{"left", "ok"}, func() {
		m.until("it is fenced", func(st Status) bool { return len(st.Sessions) == 0 })
	})
	m.settled()
}

// TestPythonHalf: a rank whose second connection fails has ended the session for all, and its process lives on: it says that it has nothing of it. So does who
// registers. Else that part of the pool is nobody's until the process ends.
func TestPythonHalf(t *testing.T) {
	needPython(t)
	m := begin(t)
	s := m.dial()
	c := s.Credentials()
	args := []string{"half", fmt.Sprint(c.Epoch), fmt.Sprint(c.Session), hex.EncodeToString(c.Token[:])}
	m.pythonSteps(args, []string{"joined", "registered"}, func() {
		s.Close() // the other process of the first one
		m.until("it is fenced", func(st Status) bool { return len(st.Sessions) == 0 })
	})
	m.settled()
}

// TestPythonHalves: the two halves of vLLM's connector in one process. Its memory is nobody's until the last thread has let go of it; with a goodbye of each half
// another engine gets it too early, and is served pages that it has not published. Killed, the process gives back all.
func TestPythonHalves(t *testing.T) {
	needPython(t)
	m := begin(t, func(o *Options) { o.PoolBytes, o.Instances = 16*8192, 1 })
	out, err := m.pythonCommand(m.opt.Socket, "halves").CombinedOutput()
	var killed *exec.ExitError
	if strings.TrimSpace(string(out)) != "ok" || !errors.As(err, &killed) {
		t.Fatalf("%v\n%s", err, out)
	}
	m.settled()
}

// BenchmarkPythonQuery512 prints what a query of 512 blocks takes from Python, with a Manager in a process of its own:
// go test -run '^$' -bench PythonQuery512 -benchtime 1x ./internal/cache/manager.
func BenchmarkPythonQuery512(b *testing.B) {
	for b.Loop() {
		socket := filepath.Join(b.TempDir(), "s")
		manager, err := start("bench", socket)
		if err != nil {
			b.Fatal(err)
		}
		out, err := pythonCommand(b, socket, "bench").CombinedOutput()
		manager.Process.Kill()
		manager.Wait()
		if err != nil {
			b.Fatalf("%v\n%s", err, out)
		}
		b.Log(strings.TrimSpace(string(out)))
	}
}

// TestVLLMAdapter runs what of the adapter for vLLM needs no engine: its decisions and its threads. The rest is `make qualify-vllm`.
func TestVLLMAdapter(t *testing.T) { adapter(t, "vllm_check.py") }

// TestSGLangAdapter is the same for SGLang. The rest is `make qualify-sglang`.
func TestSGLangAdapter(t *testing.T) { adapter(t, "sglang_check.py") }

// TestPythonSession: the client in Python against Managers that lie, and its parsers against anything.
func TestPythonSession(t *testing.T) { adapter(t, "session_check.py") }

func adapter(t *testing.T, script string) {
	t.Helper()
	needPython(t)
	cmd := exec.Command("python3", "-I", filepath.Join("../../../python/tests", script))
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "\nOK") {
		t.Fatalf("%v\n%s", err, out)
	}
}
