package api

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/perigee-llm/perigee/internal/gateway/api/body"
	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/downstream"
	"github.com/perigee-llm/perigee/internal/gateway/explain"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/keyring"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
	"github.com/perigee-llm/perigee/internal/gateway/upstream"
	"github.com/perigee-llm/perigee/internal/telemetry"
)

func TestMain(m *testing.M) {
	_, _ = tinyTokenizer() // outside of every bubble: its channel must not belong to the one that happens to ask first; who needs it sees the error
	goleak.VerifyTestMain(m)
}

// memListener is a listener in memory: what dials it gets one end of a pipe without a buffer.
type memListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newMemListener() *memListener {
	return &memListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *memListener) Addr() net.Addr { return &net.TCPAddr{} }

func (l *memListener) dial(ctx context.Context) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-l.closed:
		return nil, syscall.ECONNREFUSED
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// engine is a scripted engine. What it does is set before the request comes.
type engine struct {
	id     string
	ln     *memListener
	worker *fleet.Worker

	refuse  atomic.Bool                   // connections are refused
	drop    atomic.Bool                   // they are neither refused nor taken
	deaf    atomic.Bool                   // aborts are not answered
	short   atomic.Bool                   // this side has no descriptor for one
	handler http.HandlerFunc              // nil: answer okAnswer
	raw     func(c net.Conn, r *seenCall) // instead of the handler: the request's head and body were read from c
	bare    func(c net.Conn)              // instead of both: nothing was read

	mu struct {
		sync.Mutex
		seen   []*seenCall
		aborts []string // Authorization and body
		dials  int
	}
}

// seenCall is one request as an engine saw it.
type seenCall struct {
	method, path, body string
	header             http.Header
	gone               time.Time // when its context ended, if that was before the answer did
}

const okAnswer = `{"id":"x","choices":[{"text":"hi"}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":1}}}`

func (e *engine) calls() []*seenCall {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.seen
}

func (e *engine) aborts() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.aborts
}

func (e *engine) note(r *http.Request, text []byte) *seenCall {
	c := &seenCall{method: r.Method, path: r.URL.Path, body: string(text), header: r.Header}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.seen = append(e.mu.seen, c)
	return c
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if r.URL.Path == "/abort_request" {
		if e.deaf.Load() {
			<-r.Context().Done()
			return
		}
		e.mu.Lock()
		e.mu.aborts = append(e.mu.aborts, r.Header.Get("Authorization")+string(text))
		e.mu.Unlock()
		return
	}
	c := e.note(r, text)
	if e.handler == nil {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, okAnswer)
		return
	}
	e.handler(w, r)
	if r.Context().Err() != nil && c.gone.IsZero() {
		c.gone = time.Now()
	}
}

// serveRaw reads one request of a connection and has the script answer it.
func (e *engine) serveRaw(c net.Conn) {
	defer func() { _ = c.Close() }()
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	e.raw(c, e.note(r, text))
}

// rig is a gateway in a bubble of fake time, with engines and a client, all in memory.
type rig struct {
	t       *testing.T
	s       *Server
	reg     *fleet.Registry
	tracker *load.Tracker
	engines []*engine
	client  *http.Client
	public  *memListener
	access  *accessLog
	logs    *records

	transport *upstream.Transport
	server    interface {
		Serve(net.Listener) error
		Close() error
	}
	wg sync.WaitGroup
}

type rigOptions struct {
	// Specs are the engines; ids and URLs are filled in, with the scheme that URL says, if any. None: one SGLang engine.
	Specs    []fleet.Spec
	Buckets  func(members func(stage fleet.Stage) *bucket.Group) []*bucket.Bucket // nil: one plain bucket, or a pair if a spec is a prefill
	Settings func(*Settings)
	Contract string
	Models   []string // more models, without engines
	Aliases  []string
	Keys     *keyring.Ring
	HTTP2    bool // between the client and the gateway
}

// plain returns n plain engines of a kind.
func plain(n int, k fleet.Kind) []fleet.Spec {
	specs := make([]fleet.Spec, n)
	for i := range specs {
		specs[i].Kind = k
	}
	return specs
}

// The clients' time-outs, as configurations have them by default.
const bodyStall, clientStall = 30 * time.Second, 120 * time.Second

func testSettings() Settings {
	return Settings{
		MaxBody: 1 << 20, MaxBuffered: 8 << 20, MaxAttempts: 3, RequestTimeout: time.Minute, StreamIdle: 20 * time.Second, Stale: time.Hour,
		BodyStall: bodyStall, ClientStall: clientStall, Refused: body.ProtectedKeys,
	}
}

// bubble runs a test on a rig in fake time, and checks afterwards that everything was given back.
func bubble(t *testing.T, o rigOptions, test func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, o)
		// The janitor's clock goes on for ever, so a test that hangs would be no deadlock.
		hangs := time.AfterFunc(12*time.Hour, func() { panic("the test hangs") })
		defer hangs.Stop()
		defer r.close()
		test(t, r)
	})
}

func newRig(t *testing.T, o rigOptions) *rig {
	r := &rig{
		t: t, reg: fleet.NewRegistry(fleet.BreakerConfig{}, 0), tracker: &load.Tracker{},
		public: newMemListener(), access: &accessLog{}, logs: &records{},
	}
	if o.Specs == nil {
		o.Specs = plain(1, fleet.SGLang)
	}
	pd := false
	for i, spec := range o.Specs {
		spec.ID = "w" + string(rune('0'+i))
		scheme := "http"
		if spec.URL != "" {
			scheme = spec.URL
		}
		spec.URL = scheme + "://engine-" + spec.ID + ":8000"
		spec.Models = []string{"m"}
		pd = pd || spec.Stage != fleet.Plain
		e := &engine{id: spec.ID, ln: newMemListener(), worker: r.reg.Put(spec)}
		r.engines = append(r.engines, e)
		r.wg.Go(func() { r.serveEngine(e) })
	}
	group := func(stage fleet.Stage) *bucket.Group {
		return bucket.NewGroup("m", stage, nil, policy.NewRoundRobin(policy.Limits{}))
	}
	var buckets []*bucket.Bucket
	switch {
	case o.Buckets != nil:
		buckets = o.Buckets(group)
	case pd:
		buckets = []*bucket.Bucket{bucket.NewPD("pair", 0, bucket.Range{}, group(fleet.Prefill), group(fleet.Decode))}
	default:
		buckets = []*bucket.Bucket{bucket.NewPlain("all", 0, bucket.Range{}, group(fleet.Plain))}
	}
	resolver, err := bucket.NewResolver(buckets)
	if err != nil {
		t.Fatal(err)
	}
	models := []*Model{{ID: "m", Aliases: o.Aliases, Resolver: resolver}}
	if o.Contract != "" {
		if models[0].Contract, err = body.ParseContract([]byte(o.Contract), body.Reject); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range o.Models {
		empty, err := bucket.NewResolver([]*bucket.Bucket{bucket.NewPlain("none", 0, bucket.Range{}, bucket.NewGroup(id, fleet.Plain, nil, policy.NewRoundRobin(policy.Limits{})))})
		if err != nil {
			t.Fatal(err)
		}
		models = append(models, &Model{ID: id, Resolver: empty})
	}
	settings := testSettings()
	if o.Settings != nil {
		o.Settings(&settings)
	}
	r.transport = upstream.New(upstream.Options{Dial: r.dialEngine})
	r.s, err = New(Options{
		Config:   Config{Models: models, Settings: settings, Keys: o.Keys},
		Registry: r.reg, Tracker: r.tracker, Engines: r.transport, Metrics: telemetry.New(),
		Explain: explain.NewLog(0), Log: slog.New(r.logs), Access: r.access,
	})
	if err != nil {
		t.Fatal(err)
	}
	r.server = downstream.New(downstream.Options{
		Handler: r.s.Public(), IdleTimeout: 2 * time.Minute, HeaderTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10, Log: slog.New(r.logs), ConnContext: ConnContext,
		Refuse: func(downstream.Refusal) []byte {
			return []byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
		},
	})
	transport := &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return r.public.dial(ctx) },
		DisableCompression: true,
	}
	if o.HTTP2 {
		var only http.Protocols
		only.SetUnencryptedHTTP2(true)
		transport.Protocols = &only
		r.server = &http.Server{
			Handler: r.s.Public(), IdleTimeout: 2 * time.Minute, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(r.logs, slog.LevelError), Protocols: &only,
		}
	}
	r.client = &http.Client{Transport: transport}
	r.wg.Go(func() { _ = r.server.Serve(r.public) })
	return r
}

func (r *rig) serveEngine(e *engine) {
	s := &http.Server{Handler: e, ErrorLog: slog.NewLogLogger(r.logs, slog.LevelDebug)}
	forHTTP := newMemListener()
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(forHTTP) })
	for {
		c, err := e.ln.Accept()
		if err != nil {
			break
		}
		switch {
		case e.bare != nil:
			wg.Go(func() { e.bare(c); _ = c.Close() })
		case e.raw != nil:
			wg.Go(func() { e.serveRaw(c) })
		default:
			forHTTP.conns <- c
		}
	}
	_ = s.Close()
	wg.Wait()
}

func (r *rig) dialEngine(ctx context.Context, _, addr string) (net.Conn, error) {
	host, _, _ := strings.Cut(strings.TrimPrefix(addr, "engine-"), ":")
	for _, e := range r.engines {
		if e.id == host {
			e.mu.Lock()
			e.mu.dials++
			e.mu.Unlock()
			if e.refuse.Load() {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
			}
			if e.short.Load() {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", syscall.EMFILE)}
			}
			if e.drop.Load() {
				<-ctx.Done()
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
			}
			return e.ln.dial(ctx)
		}
	}
	return nil, errors.New("no such host " + addr)
}

// close takes everything down and checks that nothing is held.
func (r *rig) close() {
	r.client.CloseIdleConnections()
	synctest.Wait()
	_ = r.server.Close()
	for _, e := range r.engines {
		_ = e.ln.Close()
	}
	synctest.Wait()
	r.pass(time.Second) // net/http lets a connection linger for half of that, so that its last answer is read
	r.s.Close()
	r.transport.Close()
	r.wg.Wait()
	if n := r.s.Active(); n != 0 {
		r.t.Errorf("%d requests are still under way", n)
	}
	r.atRest()
}

// atRest checks that no guard is held and no probe is out.
func (r *rig) atRest() {
	r.t.Helper()
	if n := r.tracker.Held(); n != 0 {
		r.t.Errorf("%d guards are still held", n)
	}
	if n := r.s.buffered.Load(); n != 0 {
		r.t.Errorf("%d bytes of request bodies are still held", n)
	}
	if n, b := r.s.left.n, r.s.left.bytes; n != 0 || b != 0 {
		r.t.Errorf("%d prefill halves with %d bytes are still left behind", n, b)
	}
	if n := len(r.s.encoders); n != 0 {
		r.t.Errorf("%d places for long texts are still taken", n)
	}
	for _, e := range r.engines {
		w := e.worker
		if a, p, d := w.Load.Active(), w.Load.PrefillTokens(), w.Load.DecodeRequests(); a != 0 || p != 0 || d != 0 {
			r.t.Errorf("%s: %d in flight, %d prefill tokens, %d decode requests are left", e.id, a, p, d)
		}
		if !r.reg.Admits(w, time.Now().Add(time.Hour)) {
			r.t.Errorf("%s: its breaker's probe was not given back", e.id)
		}
	}
}

// pass lets time go by.
func (r *rig) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// answer is an answer as the client got it.
type answer struct {
	status int
	header http.Header
	body   string
	err    error // that broke it off
}

const (
	chatPath = "/v1/chat/completions"
	textPath = "/v1/completions"
	chatBody = `{"model":"m","messages":[{"role":"user","content":"hello"}]}`
	textBody = `{"model":"m","prompt":"hello"}`
)

func streamed(b string) string { return strings.TrimSuffix(b, "}") + `,"stream":true}` }

func (r *rig) request(ctx context.Context, method, path, text string, header ...string) *http.Request {
	req, err := http.NewRequestWithContext(ctx, method, "http://gateway"+path, strings.NewReader(text))
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header[header[i]] = append(req.Header[header[i]], header[i+1])
	}
	return req
}

// do sends one request and reads its answer to the end.
func (r *rig) do(method, path, text string, header ...string) answer {
	r.t.Helper()
	resp, err := r.client.Do(r.request(r.t.Context(), method, path, text, header...))
	if err != nil {
		return answer{err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return answer{status: resp.StatusCode, header: resp.Header, body: string(b), err: err}
}

func (r *rig) post(path, text string, header ...string) answer {
	r.t.Helper()
	return r.do(http.MethodPost, path, text, header...)
}

// raw sends bytes as they are over a connection of their own.
func (r *rig) raw(text string) (net.Conn, *bufio.Reader) {
	r.t.Helper()
	c, err := r.public.dial(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	r.wg.Go(func() { _, _ = io.WriteString(c, text) })
	return c, bufio.NewReader(c)
}

// rest reads a connection to its end.
func (r *rig) rest(in io.Reader) string {
	r.t.Helper()
	text, err := io.ReadAll(in)
	if err != nil {
		r.t.Error(err)
	}
	return string(text)
}

// wantError checks an answer of the gateway's own.
func (r *rig) wantError(a answer, status int, code string) {
	r.t.Helper()
	if a.err != nil {
		r.t.Fatalf("want %d %s, got error %v", status, code, a.err)
	}
	if a.status != status || a.header.Get("X-Router-Error-Code") != code || a.header.Get("Content-Type") != "application/json" {
		r.t.Errorf("want %d %s, got %d with %v: %s", status, code, a.status, a.header, a.body)
	}
	kind := "invalid_request_error"
	if status >= 500 {
		kind = "server_error"
	}
	if want := `{"error":{"type":"` + kind + `","code":"` + code + `","message":"`; !strings.HasPrefix(a.body, want) {
		r.t.Errorf("the envelope is %s", a.body)
	}
	if a.header.Get("X-Request-Id") == "" && strings.HasPrefix(a.header.Get("Content-Type"), "application/json") {
		r.t.Errorf("no request id in %v", a.header)
	}
	r.noURL(a)
}

// noURL checks that nothing of an answer names an engine.
func (r *rig) noURL(a answer) {
	r.t.Helper()
	var all bytes.Buffer
	_ = a.header.Write(&all)
	all.WriteString(a.body)
	if strings.Contains(all.String(), "engine-") || strings.Contains(all.String(), ":8000") {
		r.t.Errorf("an engine's address is in the answer: %s", all.String())
	}
}

// records keeps log records.
type records struct {
	mu   sync.Mutex
	list []slog.Record
}

func (l *records) Enabled(context.Context, slog.Level) bool { return true }
func (l *records) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *records) WithGroup(string) slog.Handler            { return l }

func (l *records) Handle(_ context.Context, rec slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, rec.Clone())
	return nil
}

// last returns the attributes of the last record.
func (l *records) last() map[string]any {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.list) == 0 {
		return nil
	}
	m := map[string]any{}
	l.list[len(l.list)-1].Attrs(func(a slog.Attr) bool { m[a.Key] = a.Value.Any(); return true })
	return m
}
