package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
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
	tls         *tls.Config // of clients; nil: none is spoken
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
	return waitServing(ctx, target{name: "perigee", addrs: []string{s.addr}, proc: s.proc, tls: s.tls})
}

// secure has the gateway, which is yet to be started, speak TLS with a certificate that is made here.
func (s *single) secure() (err error) {
	var flags []string
	if flags, s.tls, err = makeCertificate(s.logDir); err == nil {
		s.extra += " " + strings.Join(flags, " ")
	}
	return err
}

// makeCertificate returns the flags that have perigee serve speak TLS with a certificate that is made here, and the configuration of its clients.
func makeCertificate(dir string) (flags []string, clients *tls.Config, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	cert, err := x509.CreateCertificate(rand.Reader, of, of, &key.PublicKey, key)
	if err != nil {
		return nil, nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, err
	}
	for name, b := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: cert}, "key.pem": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(b), 0o600); err != nil {
			return nil, nil, err
		}
	}
	flags = []string{"--tls-cert-file", filepath.Join(dir, "cert.pem"), "--tls-key-file", filepath.Join(dir, "key.pem")}
	return flags, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}, nil //nolint:gosec // it is our own, over loopback
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
	secure := fs.Bool("tls", false, "streams over TLS and HTTP/1.1")
	if err := fs.Parse(args); err != nil {
		return err
	}
	defer s.stop()
	if *secure {
		if err := s.secure(); err != nil {
			return err
		}
	}
	if err := s.start(ctx, *engines, "-hold"); err != nil {
		return err
	}
	for range *warm {
		if err := askOnce(ctx, s.addr, s.tls); err != nil {
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
		conn, err := openStream(s.addr, s.tls, *body)
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
func openStream(addr string, over *tls.Config, body int) (net.Conn, error) {
	conn, err := connect(context.Background(), addr, over)
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
