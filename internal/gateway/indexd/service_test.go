package indexd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/remote"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engines starts simulated ones that publish, and returns them as workers.
func engines(t *testing.T, flavors ...enginehttp.Flavor) (out []config.Worker) {
	for _, f := range flavors {
		e, err := enginehttp.Start(enginehttp.Options{
			Flavor: f, Models: []string{"m"}, Engine: engine.Config{KVBlocks: 1000, BlockSize: 16, Timing: engine.Timing{Speed: 1000}},
			KVEvents: &enginehttp.KVEvents{Endpoint: "tcp://127.0.0.1:*", ReplayEndpoint: "tcp://127.0.0.1:*"},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		out = append(out, config.Worker{URL: e.URL(), ID: e.URL()})
	}
	return out
}

func prompt(n int) (ids []uint32, text string) {
	var b strings.Builder
	for i := range n {
		ids = append(ids, uint32(1000+i))
		fmt.Fprintf(&b, ",%d", 1000+i)
	}
	return ids, b.String()[1:]
}

func complete(t *testing.T, url, ids string) {
	t.Helper()
	r, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","max_tokens":1,"prompt":[`+ids+`]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if b, _ := io.ReadAll(r.Body); r.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", r.StatusCode, b)
	}
}

// until asks again and again until the match is as wanted.
func until(t *testing.T, src prefix.Source, q *prefix.Query, wanted func(*prefix.Match) bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var m prefix.Match
	var err error
	for {
		m.Reset()
		if err = src.Lookup(ctx, q, &m); err == nil && wanted(&m) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("it never came: %+v, %v", m, err)
		}
	}
}

// TestService: two simulated engines of both families, and a gateway that asks where a prompt lies.
func TestService(t *testing.T) {
	workers := engines(t, enginehttp.VLLM, enginehttp.SGLang)
	s, err := Start(Options{Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Workers: workers, Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(time.Second)
	numbers := map[string]uint32{workers[0].URL: 7, workers[1].URL: 8}
	x, err := remote.NewIndex(remote.Options{
		Endpoints: []string{"http://" + s.Addr()}, Engines: func(string) map[string]uint32 { return numbers }, Secrets: func() remote.Secrets { return remote.Secrets{Token: "secret"} }, Timeout: 10 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	ids, text := prompt(70)
	q := &prefix.Query{Model: "m", Tokens: ids}
	until(t, x, q, func(m *prefix.Match) bool { return len(m.Blind) == 0 && len(m.Held) == 0 })
	complete(t, workers[1].URL, text)
	until(t, x, q, func(m *prefix.Match) bool { return m.Of(8).Any() == 64 && m.Of(7).Any() == 0 && len(m.Blind) == 0 })
	complete(t, workers[0].URL, text)
	until(t, x, q, func(m *prefix.Match) bool { return m.Of(8).Any() == 64 && m.Of(7).Any() == 64 })

	var taken ranks
	if err := x.Snapshot(t.Context(), "m", &taken); err != nil || len(taken.begun) != 2 || taken.ended != 2 || taken.claims < 8 {
		t.Errorf("snapshot: %+v, %v", taken, err)
	}
	for _, r := range taken.begun {
		if r.Next == 0 || !r.Printed || !r.Whole || r.BlockSize != 16 {
			t.Errorf("%+v", r)
		}
	}
	page := get(t, "http://"+s.AdminAddr()+"/metrics")
	for _, want := range []string{`perigee_index_blocks{block_size="16",model="m"} 4`, `perigee_index_streams{state="exact"} 2`, `perigee_index_calls_total{code="OK",method="Lookup"}`, `perigee_kv_events_stream_state{rank="0",state="exact",worker="` + workers[0].ID + `"} 1`, `perigee_index_in_flight{method="Lookup"} 0`} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	if got := get(t, "http://"+s.AdminAddr()+"/debug/prefixes"); !strings.Contains(got, `"worker":"`+workers[0].ID+`","rank":0,"state":"exact"`) {
		t.Errorf("/debug/prefixes: %s", got)
	}
	if got := get(t, "http://"+s.AdminAddr()+"/readyz"); got != "ok\n" {
		t.Errorf("readyz: %q", got)
	}
	s.Close(time.Second)
	s.Close(time.Second)
	if err := x.Lookup(t.Context(), q, new(prefix.Match)); err == nil {
		t.Error("it answers though it is closed")
	}
}

// ranks counts a snapshot.
type ranks struct {
	begun         []remote.Rank
	claims, ended int
}

func (r *ranks) Begin(b remote.Rank) bool { r.begun = append(r.begun, b); return true }
func (r *ranks) Claims(c []index.Claim) error {
	r.claims += len(c)
	return nil
}
func (r *ranks) End(int64) { r.ended++ }
func (r *ranks) Void()     {}

func get(t *testing.T, url string) string {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	return string(b)
}

func TestWhoMayAsk(t *testing.T) {
	some := []config.Worker{{URL: "http://127.0.0.1:1", ID: "e"}}
	mutual := &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert}
	for _, c := range []struct {
		about string
		o     Options
		want  error
	}{
		{"the default", Options{}, nil},
		{"loopback", Options{Listen: "127.0.0.1:0"}, nil},
		{"loopback by name", Options{Listen: "localhost:0"}, nil},
		{"loopback, version 6", Options{Listen: "[::1]:0"}, nil},
		{"a unix socket", Options{Listen: "unix:/run/x"}, nil},
		{"everywhere", Options{Listen: ":0"}, ErrExposed},
		{"everywhere, in words", Options{Listen: "0.0.0.0:0"}, ErrExposed},
		{"a name", Options{Listen: "host.example:0"}, ErrExposed},
		{"TLS alone", Options{Listen: ":0", TLS: &tls.Config{}}, ErrExposed},
		{"a token", Options{Listen: ":0", Token: "x"}, nil},
		{"certificates", Options{Listen: ":0", TLS: mutual}, nil},
		{"on purpose", Options{Listen: ":0", Open: true}, nil},
	} {
		c.o.Workers = some
		if err := c.o.check(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.about, err, c.want)
		}
	}
	if _, err := Start(Options{}); err == nil {
		t.Error("it starts without engines")
	}
	if _, err := Start(Options{Listen: "127.0.0.1:0", Admin: "host.invalid.:x", Workers: some}); err == nil {
		t.Error("it starts without its admin listener")
	}
	if _, err := Start(Options{Listen: "127.0.0.1:0", Workers: append(some, some...)}); err == nil {
		t.Error("it starts with two engines of one id")
	}
}

// TestUnixSocket serves on one, and nobody answers at its engine.
func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "index")
	s, err := Start(Options{Listen: "unix:" + path, Workers: []config.Worker{{URL: "http://127.0.0.1:1", ID: "e"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(0)
	if s.Addr() != "unix:"+path || s.AdminAddr() != "" {
		t.Errorf("%s, %s", s.Addr(), s.AdminAddr())
	}
	x, err := remote.NewIndex(remote.Options{Endpoints: []string{s.Addr()}, Engines: func(string) map[string]uint32 { return nil }, Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	var away *prefix.Unavailable
	if err := x.Lookup(t.Context(), &prefix.Query{Model: "m", Tokens: []uint32{1}}, new(prefix.Match)); !errors.As(err, &away) || away.Reason != prefix.NotReady {
		t.Errorf("%v", err)
	}
}

// TestKeys: an engine gets its own key, and others none.
func TestKeys(t *testing.T) {
	got := ""
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Get("Authorization") }))
	defer srv.Close()
	c := &http.Client{Transport: WithKeys(map[string]string{srv.URL: "short", srv.URL + "/long": "long"})}
	defer c.CloseIdleConnections()
	for path, want := range map[string]string{"/x": "Bearer short", "/long/x": "Bearer long", "/longer": "Bearer short", "": "Bearer short"} {
		r, err := c.Get(srv.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
		if got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}
