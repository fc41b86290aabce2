package enginehttp

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quick is a timing model in which a test on real sockets spends no time worth mentioning.
var quick = engine.Timing{Speed: 1000}

// start starts an engine and a client for it. Without a listener in opt they talk over loopback.
func start(t testing.TB, opt Options) (*Server, *client) {
	t.Helper()
	s, err := Start(opt)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{}
	if m, ok := opt.Listener.(*memListener); ok {
		tr.DialContext = m.dial
	}
	t.Cleanup(func() { tr.CloseIdleConnections(); s.Close() })
	return s, &client{t, &http.Client{Transport: tr}, s.URL()}
}

type client struct {
	t    testing.TB
	http *http.Client
	url  string
}

// do sends one request and returns status, headers and body. A transport error fails the test.
func (c *client) do(method, path, body string, header ...string) (int, http.Header, string) {
	c.t.Helper()
	resp, err := c.try(context.Background(), method, path, body, header...)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(b)
}

func (c *client) try(ctx context.Context, method, path, body string, header ...string) (*http.Response, error) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return c.http.Do(req)
}

// json is do for an answer that must be 200 and JSON.
func (c *client) json(method, path, body string) map[string]any {
	c.t.Helper()
	status, _, b := c.do(method, path, body)
	if status != http.StatusOK {
		c.t.Fatalf("%s: status %d: %s", path, status, b)
	}
	return decode(c.t, b)
}

func decode(t testing.TB, s string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		t.Fatalf("not JSON: %v: %s", err, s)
	}
	return v
}

// stream is an event stream that a test reads chunk by chunk.
type stream struct {
	t    testing.TB
	resp *http.Response
	r    *bufio.Reader
}

func (c *client) stream(ctx context.Context, path, body string) *stream {
	c.t.Helper()
	resp, err := c.try(ctx, http.MethodPost, path, body)
	if err != nil {
		c.t.Fatal(err)
	}
	if ct := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || ct != "text/event-stream; charset=utf-8" {
		c.t.Fatalf("status %d, content type %q", resp.StatusCode, ct)
	}
	c.t.Cleanup(func() { resp.Body.Close() })
	return &stream{c.t, resp, bufio.NewReader(resp.Body)}
}

// next returns the data of the next chunk, or the error that ended the stream.
func (s *stream) next() (string, error) {
	line, err := s.r.ReadString('\n')
	if err != nil {
		return "", err
	}
	blank, err := s.r.ReadString('\n')
	if err != nil {
		return "", err
	}
	data, ok := strings.CutPrefix(line, "data: ")
	if !ok || blank != "\n" {
		s.t.Fatalf("not a chunk: %q %q", line, blank)
	}
	return strings.TrimSuffix(data, "\n"), nil
}

// brokenOff reads until the stream ends and returns what ended it: io.EOF for a clean end.
func (s *stream) brokenOff() error {
	for {
		if _, err := s.next(); err != nil {
			return err
		}
	}
}

// all reads to the end, which must be clean, and returns the chunks before [DONE].
func (s *stream) all() (chunks []string) {
	s.t.Helper()
	for {
		d, err := s.next()
		if err != nil {
			s.t.Fatalf("after %d chunks: %v", len(chunks), err)
		}
		if d == "[DONE]" {
			if _, err := s.r.ReadByte(); err != io.EOF {
				s.t.Fatalf("after [DONE]: %v", err)
			}
			return chunks
		}
		chunks = append(chunks, d)
	}
}

// memListener is a network in memory, for tests in a synctest bubble, where real sockets cannot be.
type memListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newMemListener() *memListener {
	return &memListener{make(chan net.Conn), make(chan struct{})}
}

func (m *memListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case m.conns <- there:
		return here, nil
	case <-m.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (m *memListener) Accept() (net.Conn, error) {
	select {
	case c := <-m.conns:
		return c, nil
	case <-m.closed:
		return nil, net.ErrClosed
	}
}

func (m *memListener) Close() error {
	select {
	case <-m.closed:
	default:
		close(m.closed)
	}
	return nil
}

func (m *memListener) Addr() net.Addr { return memAddr{} }

type memAddr struct{}

func (memAddr) Network() string { return "memory" }
func (memAddr) String() string  { return "engine.test:80" }

// ids writes token ids from to to as JSON.
func ids(from, to int) string {
	list := make([]int, 0, to-from)
	for ; from < to; from++ {
		list = append(list, from)
	}
	b, _ := json.Marshal(list)
	return string(b)
}

// until calls ok until it is true, and fails the test after ten seconds. It is for what another goroutine does on real sockets.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("after 10 s still not: %s", what)
		}
	}
}
