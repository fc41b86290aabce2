package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// single is one perigee serve before a stub, for what is measured of it alone.
type single struct {
	perigee string
	extra   string
	logDir  string

	addr, admin string
	proc        *process
	stub        *process
}

func (s *single) flags(fs *flag.FlagSet) {
	fs.StringVar(&s.perigee, "perigee", "bin/perigee", "the binary to measure")
	fs.StringVar(&s.extra, "perigee-args", "", "more flags for perigee serve, separated by spaces")
	fs.StringVar(&s.logDir, "logs", ".cache/bench-gateway", "where the logs of the processes go")
}

// start starts a stub of so many engines and perigee before it. stop is to be called whatever it returns.
func (s *single) start(ctx context.Context, engines int, stubArgs ...string) error {
	if err := os.MkdirAll(s.logDir, 0o755); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	argv := append([]string{self, "stub", "-engines", strconv.Itoa(engines)}, stubArgs...)
	var line string
	if s.stub, line, err = startProcess(ctx, "stub", s.logDir, argv); err != nil {
		return err
	}
	port, err1 := freePort()
	adminPort, err2 := freePort()
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	s.addr, s.admin = "127.0.0.1:"+strconv.Itoa(port), "127.0.0.1:"+strconv.Itoa(adminPort)
	argv = []string{
		s.perigee, "serve", "--host", "127.0.0.1", "--port", strconv.Itoa(port), "--admin-port", strconv.Itoa(adminPort),
		"--model-id", modelID, "--worker-urls",
	}
	for _, e := range strings.Fields(line) {
		argv = append(argv, "http://"+e)
	}
	if s.proc, _, err = startProcess(ctx, "perigee", s.logDir, append(argv, strings.Fields(s.extra)...)); err != nil {
		return err
	}
	return waitServing(ctx, target{name: "perigee", addrs: []string{s.addr}, proc: s.proc})
}

func (s *single) stop() {
	for _, p := range []*process{s.proc, s.stub} {
		if p != nil {
			p.stop()
		}
	}
}

// memory is what a process holds, in bytes: what the system says, and what Go's runtime says of it.
type memory struct{ resident, heap, stack, goroutines float64 }

// memoryNow asks /proc and the process's own metrics.
func (s *single) memoryNow() (m memory, err error) {
	resp, err := http.Get("http://" + s.admin + "/metrics")
	if err != nil {
		return m, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return m, err
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		into := map[string]*float64{"go_memstats_heap_inuse_bytes": &m.heap, "go_memstats_stack_inuse_bytes": &m.stack, "go_goroutines": &m.goroutines}[name]
		if into == nil {
			continue
		}
		if *into, err = strconv.ParseFloat(value, 64); err != nil {
			return m, err
		}
	}
	mb, err := residentMB(s.proc.cmd.Process.Pid)
	m.resident = mb * (1 << 20)
	return m, err
}

// streamsMain measures the memory of streams in which the engine is silent: -n of them are opened, each gets its first event, and then
// nothing comes. What a stream takes is the difference to before, in each of which the process was left alone for a while.
func streamsMain(ctx context.Context, args []string) (err error) {
	var s single
	fs := flag.NewFlagSet("streams", flag.ContinueOnError)
	s.flags(fs)
	n := fs.Int("n", 1000, "streams")
	body := fs.Int("body", 1024, "size of the request body in bytes")
	settle := fs.Duration("settle", 5*time.Second, "how long the process is left alone before its memory is read")
	warm := fs.Int("warm", 1100, "requests before: the decision log remembers 1,024, which no stream is to blame for")
	engines := fs.Int("engines", 4, "engines that the stub plays")
	if err := fs.Parse(args); err != nil {
		return err
	}
	defer s.stop()
	if err := s.start(ctx, *engines, "-hold"); err != nil {
		return err
	}
	for range *warm {
		if err := askOnce(ctx, s.addr); err != nil {
			return err
		}
	}
	if err := pause(ctx, *settle); err != nil {
		return err
	}
	before, err := s.memoryNow()
	if err != nil {
		return err
	}
	for i := range *n {
		conn, err := openStream(s.addr, *body)
		if err != nil {
			return fmt.Errorf("stream %d: %w", i, err)
		}
		defer func() { err = errors.Join(err, conn.Close()) }()
	}
	fmt.Printf("%d streams, request bodies of %d bytes; before: resident %.1f MiB, heap %.1f MiB, stacks %.1f MiB\n%10s %12s %12s %12s %12s\n", *n, *body,
		before.resident/(1<<20), before.heap/(1<<20), before.stack/(1<<20), "after", "resident", "heap", "stacks", "goroutines")
	began := time.Now()
	for _, at := range []time.Duration{*settle, 3 * *settle} {
		if err := pause(ctx, at-time.Since(began)); err != nil {
			return err
		}
		m, err := s.memoryNow()
		if err != nil {
			return err
		}
		k := float64(*n)
		fmt.Printf("%10v %8.1f KiB %8.1f KiB %8.1f KiB %12.2f\n", at, (m.resident-before.resident)/k/1024, (m.heap-before.heap)/k/1024,
			(m.stack-before.stack)/k/1024, (m.goroutines-before.goroutines)/k)
	}
	return nil
}

// openStream sends a streaming request and reads its answer up to the first event.
func openStream(addr string, body int) (net.Conn, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	req, _ := request(addr, cell{Mode: "stream", Body: body})
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return nil, err
	}
	if _, err := conn.Write(req); err != nil {
		return nil, err
	}
	br := bufio.NewReader(conn)
	for {
		line, err := br.ReadString('\n')
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(line, "data: ") {
			return conn, nil
		}
	}
}
