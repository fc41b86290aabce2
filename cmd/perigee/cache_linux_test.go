package main

import (
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
	"syscall"
	"testing"
)

func TestCache(t *testing.T) {
	dir, err := os.MkdirTemp("", "pe") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file, socket := filepath.Join(dir, "c.yaml"), filepath.Join(dir, "s")
	if err := os.WriteFile(file, []byte("pool_bytes: 1GiB\nsocket: /nowhere/else\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	signals := make(chan os.Signal, 1)
	out, in := io.Pipe()
	var log bytes.Buffer
	done := make(chan error, 1)
	c := cacheCmd{Config: file, Socket: socket, PoolBytes: 1 << 20, Admin: "127.0.0.1:0", Events: ":0", signalsForTesting: signals}
	go func() {
		done <- c.Run(&runContext{ctx: context.Background(), stdout: in, stderr: &log, log: slog.New(slog.NewTextHandler(&log, nil))})
		in.Close()
	}()
	line := make([]byte, 400)
	n, err := out.Read(line)
	m := regexp.MustCompile(`^perigee cache listens on (\S+), admin on (\S+), events on tcp://127\S+, replay on tcp://127\S+, snapshot on tcp://127\S+\n$`).FindStringSubmatch(string(line[:n]))
	if m == nil || m[1] != socket {
		t.Fatalf("%q, %v", line[:n], err)
	}
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	signals <- syscall.SIGHUP
	signals <- syscall.SIGHUP // the first was taken, or the second would find no room
	res, err := http.Get(m[2] + "/healthz")
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("%v, %v", res, err)
	}
	res.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	signals <- syscall.SIGTERM
	if err := <-done; err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
	if n := strings.Count(log.String(), "SIGHUP changes nothing"); n != 2 {
		t.Errorf("two hangups are told %d times", n)
	}
	if _, err := os.Lstat(socket); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

func TestCacheUsage(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "c.yaml")
	if err := os.WriteFile(file, []byte("pool_byte: 1GiB\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"cache"}, "pool_bytes: missing"},
		{[]string{"cache", "--pool-bytes", "lots"}, "no size"},
		{[]string{"cache", "--pool-bytes", "1000000TiB"}, "the machine has"},
		{[]string{"cache", "--pool-bytes", "1GiB", "--instances", "1000000"}, "instances"},
		{[]string{"cache", "--config", file}, "pool_byte"},
		{[]string{"cache", "--pool-bytes", "1MiB", "--admin", "here"}, "admin"},
		{[]string{"cache", "--pool-bytes", "1MiB", "--events", "here"}, "events"},
	} {
		var out, errs bytes.Buffer
		if code := run(context.Background(), c.args, &out, &errs); code != exitUsage || !strings.Contains(errs.String(), c.want) {
			t.Errorf("%v: exit %d, %q", c.args, code, errs.String())
		}
	}
}
