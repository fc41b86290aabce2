//go:build linux

package manager

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/cache/channel/client"
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/state"
)

// admin asks the admin listener.
func (m *tester) admin(method, path string, into any) (int, string) {
	m.t.Helper()
	req, err := http.NewRequest(method, m.AdminURL()+path, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := c.Do(req)
	if err != nil {
		m.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		m.t.Fatal(err)
	}
	if into != nil {
		if err := json.Unmarshal(b, into); err != nil {
			m.t.Fatalf("%s: %v: %s", path, err, b)
		}
	}
	return res.StatusCode, string(b)
}

func TestAdmin(t *testing.T) {
	seen := 0
	m := begin(t, func(o *Options) {
		o.Admin, o.Instances = "127.0.0.1:0", 2
		o.Observe = func(_ core.Time, a core.Action) { seen++ }
	})
	s := m.dial()
	m.dial(named("another model"), func(o *client.Options) { o.Ranks = namespaces(1, pageBytes+1) })
	if _, err := publish(s, prompt(1, 0, 8)); err != nil {
		t.Fatal(err)
	}
	if n, err := restore(s, 1, 10); n != 8 || err != nil {
		t.Fatal(n, err)
	}
	if code, body := m.admin("GET", "/healthz", nil); code != 200 || body != "ok\n" {
		t.Errorf("healthz: %d %s", code, body)
	}
	_, metrics := m.admin("GET", "/metrics", nil)
	for _, want := range []string{
		"perigee_cache_resident_blocks 8", `perigee_cache_published_blocks_total{disposition="write"} 8`, `perigee_cache_restores_total{outcome="whole"} 1`,
		`perigee_cache_queries_total{mode="prefix"} 1`, `perigee_cache_query_blocks_total{mode="prefix",tier="memory"} 8`,
		`perigee_cache_query_blocks_total{mode="prefix",tier="missing"} 2`, "perigee_cache_resident_bytes 65536",
		`perigee_cache_transfer_bytes_total{direction="publish",route="engine"} 65536`, `perigee_cache_transfers_total{direction="restore",route="engine"} 1`,
		"perigee_cache_checksum_verified_bytes_total 40000", "perigee_cache_sessions 2", "perigee_cache_quarantined_bytes 0",
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("no %q in the metrics", want)
		}
	}
	var st StatusPage
	if m.admin("GET", "/status", &st); st.ResidentBlocks != 8 || st.Counts.PublishedBlocks["write"] != 8 || st.Counts.Restores["whole"] != 1 || len(st.Sessions) != 2 ||
		st.Sessions[0].Instance != "engine-0" || st.Pool.UsedBytes == 0 || st.Pool.UsedBytes >= int64(st.Pool.ArenaBytes) {
		t.Errorf("%+v", st)
	}

	var x QueryExplanation
	m.admin("GET", "/explain?session=1&op=1", &x)
	if x.Instance != "engine-0" || x.Asked[0] != 10 || x.Hits[0] != 8 || x.First == nil || !strings.Contains(x.First.Why, "nothing is remembered") {
		t.Errorf("%+v", x)
	}
	if x.Others["another model"] != "layout.groups[0].segments[0].bytes" {
		t.Errorf("how the others differ: %v", x.Others)
	}
	var all []QueryExplanation
	q := query(1, 10)
	q.Request = "mine"
	if a, err := s.Query(t.Context(), q); err != nil || a.Lease == nil {
		t.Fatal(err)
	} else if err := s.Release(a.Lease); err != nil {
		t.Fatal(err)
	}
	for of, want := range map[string]int{"instance=engine-0": 2, "instance=engine-0&request=mine": 1, "instance=another": 0} {
		if m.admin("GET", "/explain?"+of, &all); len(all) != want || want > 0 && all[0].Op != 2 {
			t.Errorf("%s: %+v", of, all)
		}
	}
	if m.admin("GET", "/explain?request=mine", &all); len(all) != 1 || all[0].Op != 2 || !strings.Contains(all[0].Text(), "prefix: found; 8 of 10 blocks") {
		t.Errorf("%+v", all)
	}
	var dropped map[string]int
	if m.admin("POST", "/evict?blocks=3", &dropped); dropped["dropped"] != 3 {
		t.Errorf("evicted %v", dropped)
	}
	if _, err := restore(s, 1, 8); err != nil {
		t.Fatal(err)
	}
	x = QueryExplanation{}
	m.admin("GET", "/explain?session=1&op=3", &x)
	if x.Hits[0] != 5 || x.First == nil || !strings.HasPrefix(x.First.Why, "evicted") {
		t.Errorf("%+v %+v", x, x.First)
	}
	if m.admin("POST", "/flush", &dropped); dropped["dropped"] != 5 {
		t.Errorf("flushed %v", dropped)
	}
	h := hashOf(1, 2)
	var e Explanation
	if m.admin("GET", "/explain?block="+hex.EncodeToString(h[:]), &e); !strings.HasPrefix(e.Why, "flushed") {
		t.Errorf("%+v", e)
	}
	if seen != 16 {
		t.Errorf("the observer saw %d, want 8 come and 8 go", seen)
	}
	for path, want := range map[string]int{
		"/explain": 400, "/explain?block=xx": 400, "/explain?session=9&op=1": 404, "/explain?request=other": 200, "/nothing": 404, "/flush": 405,
	} {
		if code, _ := m.admin("GET", path, nil); code != want {
			t.Errorf("%s: %d, want %d", path, code, want)
		}
	}
	for path, want := range map[string]int{"/evict": 400, "/evict?blocks=-1": 400, "/flush?namespace=zz": 400} {
		if code, _ := m.admin("POST", path, nil); code != want {
			t.Errorf("POST %s: %d, want %d", path, code, want)
		}
	}
}

// TestExplainDiscovered: a question that restores nothing is explained by the first block that is not there, too.
func TestExplainDiscovered(t *testing.T) {
	m := begin(t, func(o *Options) { o.Admin = "127.0.0.1:0" })
	s := m.dial()
	for _, part := range []*client.Publish{prompt(1, 0, 3), prompt(1, 5, 8)} {
		if _, err := publish(s, part); err != nil {
			t.Fatal(err)
		}
	}
	for i, n := range []int{3, 8} {
		q := query(1, n)
		q.Mode = core.Discover
		if _, err := s.Query(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		var x QueryExplanation
		m.admin("GET", "/explain?session=1&op="+strconv.Itoa(i+1), &x)
		missing := hashOf(1, 3)
		if len(x.Hits) != 1 || x.Hits[0] != 3 || (n == 3) != (x.First == nil) || x.First != nil && x.First.Block != hex.EncodeToString(missing[:]) {
			t.Errorf("%d: %+v %+v", n, x, x.First)
		}
	}
}

// TestExplainUnanswered: a query that nobody waits for any more is told of as what has become of it, and not as if its answer was to come.
func TestExplainUnanswered(t *testing.T) {
	m := begin(t, func(o *Options) { o.Admin, o.Core.Budgets.Total = "127.0.0.1:0", 4*8192 })
	s, _ := victimOf(m) // its lease has all the bytes
	cred := s.Credentials()
	c := raw(m, func(o *client.Options) { o.Join = &cred })
	say := func(what wire.Message, want wire.Kind) {
		t.Helper()
		c.say(what)
		if a, _ := c.hear(); a.Kind() != want {
			t.Fatalf("%T was answered with %T %+v", what, a, a)
		}
	}
	ask := func(op, revision uint64, want wire.Kind) {
		t.Helper()
		q := query(1, 4)
		q.Ticket, q.Request = core.Ticket{Op: op, Revision: revision}, "mine"
		say(q, want)
	}
	ask(100, 1, wire.KindLoading)
	ask(100, 2, wire.KindLoading)
	ask(101, 1, wire.KindLoading)
	c.say(&wire.Cancel{Ticket: core.Ticket{Op: 101, Revision: 1}})
	ask(99, 1, wire.KindRefused)
	say(&wire.Fetch{Request: "mine", Hashes: hashes(1, 4)}, wire.KindRefused)
	answers := func() (out []string) {
		var all []QueryExplanation
		m.admin("GET", "/explain?request=mine", &all)
		for _, x := range all {
			out = append(out, x.Answer)
		}
		return out
	}
	if got, want := answers(), []string{"refused: invalid", "refused: retired", "cancelled", "loading", "replaced"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	c.goodbye()
	if got := answers()[3]; got != "lost" {
		t.Errorf("of a session that has ended: %q", got)
	}
}

// TestExplainOptions: where two identities differ in an option, its name is told, and not its place.
func TestExplainOptions(t *testing.T) {
	m := begin(t, func(o *Options) { o.Admin, o.Instances = "127.0.0.1:0", 2 })
	with := func(value string) func(*client.Options) {
		return func(o *client.Options) {
			o.Ranks = namespaces(1, pageBytes)
			o.Ranks[0].Compute.Options = []state.Option{{Name: "kernel", Value: "a"}, {Name: "settings", Value: value}}
		}
	}
	s := m.dial(with("1"))
	m.dial(named("other"), with("2"))
	if _, err := s.Query(t.Context(), query(1, 4)); err != nil {
		t.Fatal(err)
	}
	var all []QueryExplanation
	if m.admin("GET", "/explain?instance=engine", &all); len(all) != 1 || all[0].Others["other"] != "compute.options settings" {
		t.Errorf("%+v", all)
	}
}

// TestAnswersWithoutTheLock: who asks the admin listener and does not read what he is told keeps nobody waiting.
func TestAnswersWithoutTheLock(t *testing.T) {
	m := begin(t, func(o *Options) { o.Admin = "127.0.0.1:0" })
	s := m.dial()
	q := query(1, 4)
	q.Request = "mine"
	if _, err := s.Query(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	for _, ask := range []string{
		"GET /explain?request=mine", "GET /explain?instance=e", "GET /explain?session=1&op=1", "GET /explain?session=9&op=9", "GET /explain?block=00", "GET /explain", "GET /status", "GET /metrics",
		"POST /flush", "POST /evict?blocks=1", "POST /evict",
	} {
		method, path, _ := strings.Cut(ask, " ")
		w := &notReading{m: m.Manager, head: http.Header{}}
		m.Manager.admin.http.Handler.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		if w.wrote == 0 || w.locked {
			t.Errorf("%s: %d bytes were written, under the lock: %v", ask, w.wrote, w.locked)
		}
	}
}

// notReading finds out whether it is written to under the lock.
type notReading struct {
	m      *Manager
	head   http.Header
	wrote  int
	locked bool
}

func (w *notReading) Header() http.Header { return w.head }
func (w *notReading) WriteHeader(int)     {}

func (w *notReading) Write(b []byte) (int, error) {
	w.wrote += len(b)
	free := make(chan struct{})
	go func() {
		w.m.mem.Lock() // a reader of it would do for most, and this one sees those too
		w.m.locked(func() {})
		w.m.mem.Unlock()
		close(free)
	}()
	select {
	case <-free:
	case <-time.After(patience / 12):
		w.locked = true
	}
	return len(b), nil
}

// TestStatusPage: docs/cache-daemon.md shows each key of the page, and no other, and words in its style.
func TestStatusPage(t *testing.T) {
	m := begin(t, func(o *Options) { o.Admin = "127.0.0.1:0" })
	m.dial()
	doc, err := os.ReadFile("../../../docs/cache-daemon.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, found := strings.Cut(string(doc), "```json\n")
	example, _, ends := strings.Cut(example, "```")
	if !found || !ends {
		t.Fatal("no example in docs/cache-daemon.md")
	}
	var shown, is any
	if err := json.Unmarshal([]byte(example), &shown); err != nil {
		t.Fatal(err)
	}
	m.admin("GET", "/status", &is)
	want, got := keysOf("", shown), keysOf("", is)
	if !slices.Equal(want, got) {
		t.Errorf("docs/cache-daemon.md shows\n%v\nand the page has\n%v", want, got)
	}
	for _, k := range got {
		if !regexp.MustCompile(`^[a-z0-9_.]+$`).MatchString(k) {
			t.Errorf("a key that is not in snake case: %q", k)
		}
	}
	if v := shown.(map[string]any)["version"]; v != float64(statusVersion) {
		t.Errorf("the example is of version %v", v)
	}
}

// keysOf is the paths of all values, in order, each once; the elements of an array are one.
func keysOf(at string, v any) (all []string) {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			all = append(all, keysOf(at+"."+k, e)...)
		}
	case []any:
		for _, e := range v {
			all = append(all, keysOf(at, e)...)
		}
	default:
		all = append(all, at)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// TestKilledManager: a Manager that is killed leaves nothing but its socket's name; the engine goes on and registers with the next.
func TestKilledManager(t *testing.T) {
	before := shm(t)
	m := begin(t) // for its socket's path and its log
	m.Close()
	v := m.spawn("manager")
	s := m.dial()
	if got, err := publish(s, prompt(1, 0, 8)); err != nil || got.Sealed != 8 {
		t.Fatalf("%+v, %v", got, err)
	}
	v.Process.Kill()
	v.Wait()
	<-s.Done()
	if _, err := s.Query(context.Background(), query(1, 8)); err == nil {
		t.Error("a query without a Manager")
	}
	s.Close()
	if after := shm(t); after != before {
		t.Errorf("%d files in /dev/shm, %d before", after, before)
	}
	next := begin(t, func(o *Options) { o.Socket = m.opt.Socket })
	s = next.dial()
	if n, err := restore(s, 1, 8); n != 0 || err != nil {
		t.Errorf("restored %d: %v", n, err)
	}
}

// TestFailedStart: the socket comes last, so that nobody is served by a Manager that does not start; and the admin listener goes with it.
func TestFailedStart(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Socket: socketPath(t), PoolBytes: 64 * 8192, Log: slog.New(slog.NewTextHandler(testLog{t}, nil)), Admin: other.Addr().String()}
	if err := os.WriteFile(o.Socket, nil, 0o600); err != nil { // and cannot be listened at either
		t.Fatal(err)
	}
	if _, err := Start(o); !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("the socket came first: %v", err)
	}
	other.Close()
	if _, err := Start(o); err == nil || errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("without a socket: %v", err)
	}
	os.Remove(o.Socket)
	m, err := Start(o)
	if err != nil {
		t.Fatalf("the admin listener is still there: %v", err)
	}
	m.Close()
}
