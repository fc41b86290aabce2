package keeper_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/introspect"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/keeper"
)

// fakeEngine is one engine of a fake network. Its fields are changed under network.mu.
type fakeEngine struct {
	sglang, vllm bool
	model        string
	running      int
	started      int  // process_start_time_seconds
	down, hang   bool // refuse connections; take them and say nothing
}

// network answers for engines by host, and takes down when each was asked for what.
type network struct {
	mu      sync.Mutex
	began   time.Time
	engines map[string]*fakeEngine
	asked   map[string][]string // by host: path@time
	open    map[string]int
	overlap bool // an engine was asked while it was asked
}

func newNetwork(engines map[string]*fakeEngine) *network {
	return &network{began: time.Now(), engines: engines, asked: map[string][]string{}, open: map[string]int{}}
}

func (n *network) change(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

func (n *network) RoundTrip(r *http.Request) (*http.Response, error) {
	n.mu.Lock()
	host := r.URL.Host
	n.asked[host] = append(n.asked[host], r.URL.Path+"@"+time.Since(n.began).String())
	n.open[host]++
	n.overlap = n.overlap || n.open[host] > 1
	defer n.change(func() { n.open[host]-- })
	e := *n.engines[host]
	n.mu.Unlock()
	switch {
	case e.down:
		return nil, errors.New("connection refused")
	case e.hang:
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	resp := &http.Response{StatusCode: 200, ContentLength: -1, Request: r}
	text := e.answer(r.URL.Path)
	if text == "" {
		resp.StatusCode = 404
	}
	resp.Body = io.NopCloser(strings.NewReader(text))
	return resp, nil
}

func (e *fakeEngine) answer(path string) string {
	owner := map[bool]string{e.sglang: "sglang", e.vllm: "vllm"}[true]
	switch {
	case path == "/v1/models":
		return fmt.Sprintf(`{"data":[{"id":%q,"owned_by":%q}]}`, e.model, owner)
	case path == "/server_info" && e.sglang:
		return fmt.Sprintf(`{"served_model_name":%q,"disaggregation_mode":"null","dp_size":1}`, e.model)
	case path == "/v1/loads" && e.sglang:
		return fmt.Sprintf(`{"loads":[{"dp_rank":0,"num_running_reqs":%d}]}`, e.running)
	case path == "/version" && e.vllm:
		return `{"version":"0.32.0"}`
	case path == "/metrics" && e.vllm:
		return fmt.Sprintf("process_start_time_seconds %d\nvllm:num_requests_running{engine=\"0\"} %d\n", e.started, e.running)
	}
	return ""
}

// times returns when the host was asked for the path.
func (n *network) times(host, path string) (out []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range n.asked[host] {
		if at, ok := strings.CutPrefix(a, path+"@"); ok {
			out = append(out, at)
		}
	}
	return out
}

func target(host string) introspect.Target { return introspect.Target{ID: host, URL: "http://" + host} }

// pass lets virtual time pass, and everything that is due happen.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func start(t *testing.T, n *network, o keeper.Options) (*keeper.Keeper, *fleet.Registry) {
	t.Helper()
	o.Registry = fleet.NewRegistry(fleet.BreakerConfig{}, 0)
	o.Client = &http.Client{Transport: n}
	k, err := keeper.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k, o.Registry
}

func running(t *testing.T, r *fleet.Registry, id string) string {
	t.Helper()
	w := r.View().Get(id)
	if w == nil {
		t.Fatalf("%s is not registered", id)
	}
	report := w.Load.Report(time.Now())
	if report == nil {
		return "none"
	}
	return report.Running.String()
}

func models(r *fleet.Registry, id string) string {
	if w := r.View().Get(id); w != nil {
		return fmt.Sprintf("%s %v", w.Kind, w.Models)
	}
	return "absent"
}

func TestRegistersAndPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(map[string]*fakeEngine{
			"s": {sglang: true, model: "m", running: 3}, "v": {vllm: true, model: "m", running: 4}, "u": {model: "m"}, "d": {down: true}, "h": {hang: true},
		})
		var logs bytes.Buffer
		var mu sync.Mutex
		var polled []string
		k, r := start(t, n, keeper.Options{
			Targets: []introspect.Target{target("s"), target("v"), target("u"), target("d"), target("h")},
			Log:     slog.New(slog.NewTextHandler(&logs, nil)),
			Events: keeper.Events{Polled: func(p keeper.PollInfo) {
				mu.Lock()
				defer mu.Unlock()
				polled = append(polled, p.ID)
				if p.Err != nil || p.At.Location() == nil {
					t.Errorf("%+v", p)
				}
			}},
		})
		began := time.Now()
		<-k.Registered()
		if d := time.Since(began); d != 6300*time.Millisecond {
			t.Errorf("registered after %v; the one that hangs is given up after 3 × 2 s and two pauses", d)
		}
		for id, want := range map[string]string{"s": "sglang [m]", "v": "vllm [m]", "u": "unknown [m]", "d": "unknown []", "h": "unknown []"} {
			if got := models(r, id); got != want {
				t.Errorf("%s is %s, want %s", id, got, want)
			}
		}
		pass(time.Minute)
		for id, want := range map[string]string{"s": "3", "v": "4", "u": "none", "d": "none", "h": "none"} {
			if got := running(t, r, id); got != want {
				t.Errorf("%s reports %s, want %s", id, got, want)
			}
		}
		k.Close()
		if lines := strings.Count(logs.String(), "\n"); lines != 5 {
			t.Errorf("%d lines are logged in a minute for 5 engines:\n%s", lines, logs.String())
		}
		if len(polled) < 2*66 || len(polled) > 2*68 { // one more than the seconds, as the first comes at once
			t.Errorf("%d polls of two engines in 66 s", len(polled))
		}
		if n.overlap {
			t.Error("an engine was asked twice at once")
		}
	})
}

// TestSpreadsPolls: each of 64 engines is polled when it is registered, and from then on every second at its own moment, and never
// many at once.
func TestSpreadsPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(map[string]*fakeEngine{})
		var targets []introspect.Target
		for i := range 64 {
			host := fmt.Sprintf("10.0.0.%d:8000", i)
			n.engines[host] = &fakeEngine{sglang: true, model: "m"}
			targets = append(targets, target(host))
		}
		start(t, n, keeper.Options{Targets: targets})
		pass(10 * time.Second)
		tenths := map[time.Duration]int{}
		for _, target := range targets {
			times := n.times(target.ID, "/v1/loads")
			if len(times) != 11 || times[0] != "0s" {
				t.Fatalf("%s was polled at %v", target.ID, times)
			}
			times = times[1:]
			first, _ := time.ParseDuration(times[0])
			for i, s := range times {
				at, _ := time.ParseDuration(s)
				if at != first+time.Duration(i)*time.Second {
					t.Fatalf("%s was polled at %v", target.ID, times)
				}
				tenths[at.Truncate(100*time.Millisecond)]++
			}
		}
		for at, polls := range tenths {
			if polls > 16 {
				t.Errorf("%d polls in the tenth of a second from %v", polls, at)
			}
		}
	})
}

// TestStartingEngine: it is registered soon after it is up, however long it took.
func TestStartingEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(map[string]*fakeEngine{"e": {down: true, vllm: true, model: "m"}})
		_, r := start(t, n, keeper.Options{Targets: []introspect.Target{target("e")}})
		pass(100 * time.Second)
		// Each question is three attempts, 300 ms in all, and the pause begins at its end.
		want := "0s 1.3s 3.6s 7.9s 16.2s 32.5s 1m2.8s 1m33.1s"
		var first []string
		for i, at := range n.times("e", "/server_info") {
			if i%3 == 0 {
				first = append(first, at)
			}
		}
		if got := strings.Join(first, " "); got != want {
			t.Errorf("asked at %s, want %s", got, want)
		}
		n.change(func() { n.engines["e"].down = false })
		pass(24 * time.Second)
		if got := models(r, "e"); got != "vllm [m]" {
			t.Errorf("it is %s", got)
		}
	})
}

func TestRestartInPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(map[string]*fakeEngine{"e": {vllm: true, model: "m", running: 9, started: 100}})
		e := n.engines["e"]
		told := 0
		_, r := start(t, n, keeper.Options{
			Targets: []introspect.Target{target("e")},
			Events:  keeper.Events{Restarted: func(*fleet.Worker) { n.change(func() { told++ }) }},
		})
		restarts := func(want int) {
			t.Helper()
			n.change(func() {
				if told != want {
					t.Errorf("%d restarts were told of, want %d", told, want)
				}
			})
		}
		pass(2 * time.Second)
		if got := running(t, r, "e"); got != "9" {
			t.Fatalf("it reports %s", got)
		}
		restarts(0)
		// Between two polls: only the start of the process tells.
		n.change(func() { e.started, e.model, e.running = 200, "other", 0 })
		pass(1100 * time.Millisecond)
		if m, got := models(r, "e"), running(t, r, "e"); m != "vllm [other]" || got != "0" {
			t.Errorf("after a quick restart it is %s and reports %s", m, got)
		}
		restarts(1)
		// As another family, with a pause in which it is down: what is known of it stays until it answers.
		n.change(func() { e.down = true })
		pass(7 * time.Second)
		if m, got := models(r, "e"), running(t, r, "e"); m != "vllm [other]" || got != "none" {
			t.Errorf("while it is down it is %s and reports %s", m, got)
		}
		n.change(func() { e.down, e.vllm, e.sglang, e.running = false, false, true, 2 })
		pass(2100 * time.Millisecond)
		if m, got := models(r, "e"), running(t, r, "e"); m != "sglang [other]" || got != "2" {
			t.Errorf("as another family it is %s and reports %s", m, got)
		}
	})
}

// TestStuckEngine: a poll is given up after the interval, and a stuck engine is still asked, never twice at once.
func TestStuckEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(map[string]*fakeEngine{"e": {sglang: true, model: "m", running: 1}})
		var took []time.Duration // guarded by n.mu
		_, r := start(t, n, keeper.Options{
			Targets: []introspect.Target{target("e")}, PollInterval: 100 * time.Millisecond, RetryInterval: time.Hour,
			Events: keeper.Events{Polled: func(p keeper.PollInfo) { n.change(func() { took = append(took, p.Took) }) }},
		})
		pass(time.Second)
		n.change(func() { n.engines["e"].hang, took = true, nil })
		pass(3 * time.Second)
		var stuck []time.Duration
		n.change(func() { n.engines["e"].hang, stuck = false, slices.Clone(took) })
		if len(stuck) == 0 || slices.Max(stuck) != 500*time.Millisecond || slices.Min(stuck) != 500*time.Millisecond {
			t.Errorf("polls took %v", stuck)
		}
		pass(700 * time.Millisecond)
		if got := running(t, r, "e"); got != "1" || n.overlap {
			t.Errorf("it reports %s; overlap %v", got, n.overlap)
		}
	})
}

// TestManyStuckEngines: engines that do not answer, more than there are goroutines to ask, keep none of the others waiting.
func TestManyStuckEngines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(map[string]*fakeEngine{"e": {sglang: true, model: "m", running: 1}})
		targets := []introspect.Target{target("e")}
		for i := range 20 {
			id := fmt.Sprintf("stuck%02d", i)
			n.engines[id] = &fakeEngine{hang: true}
			targets = append(targets, target(id))
		}
		_, r := start(t, n, keeper.Options{Targets: targets, PollInterval: 100 * time.Millisecond})
		for range 10 {
			pass(200 * time.Millisecond)
			if report := r.View().Get("e").Load.Report(time.Now()); report == nil || time.Since(report.At) > 100*time.Millisecond {
				t.Fatalf("the engine that answers was not asked in its time: %+v", report)
			}
		}
	})
}

func TestAddAndRemove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(map[string]*fakeEngine{"a": {sglang: true, model: "m"}, "b": {hang: true}})
		k, r := start(t, n, keeper.Options{Targets: []introspect.Target{target("a")}})
		if err := k.Add(target("a")); !errors.Is(err, keeper.ErrDuplicate) {
			t.Errorf("the same id again: %v", err)
		}
		if err := k.Add(target("b")); err != nil {
			t.Error(err)
		}
		pass(time.Second)
		before := time.Now()
		if !k.Remove("b") || k.Remove("b") || k.Remove("nobody") {
			t.Error("removing tells wrongly whether it was there")
		}
		if !k.Remove("a") || models(r, "a") != "absent" {
			t.Error("it is removed and there")
		}
		if d := time.Since(before); d != 0 {
			t.Errorf("removing took %v, though a question hangs", d)
		}
		n.change(func() { clear(n.asked) })
		pass(time.Minute)
		if len(n.asked) != 0 || r.View().Len() != 0 {
			t.Errorf("removed engines are asked: %v", n.asked)
		}
		if err := k.Add(target("a")); err != nil {
			t.Error(err)
		}
		pass(time.Second)
		if got := models(r, "a"); got != "sglang [m]" {
			t.Errorf("added again it is %s", got)
		}
	})
}

// TestRemoveRaces: an id that is removed by several at once is removed by one, and is free when any of them has returned.
func TestRemoveRaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(map[string]*fakeEngine{"a": {sglang: true, model: "m"}})
		k, r := start(t, n, keeper.Options{})
		for range 100 {
			if err := k.Add(target("a")); err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			removed := make(chan bool, 4)
			for range 4 {
				wg.Go(func() { removed <- k.Remove("a") })
			}
			wg.Wait()
			count := 0
			for range 4 {
				if <-removed {
					count++
				}
			}
			if count != 1 || r.View().Len() != 0 {
				t.Fatalf("removed %d times, %d are left", count, r.View().Len())
			}
		}
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(map[string]*fakeEngine{"a": {sglang: true, model: "m", running: 1}, "b": {hang: true}})
		var logs bytes.Buffer
		k, r := start(t, n, keeper.Options{
			Targets: []introspect.Target{target("a"), target("b")}, Log: slog.New(slog.NewTextHandler(&logs, nil)),
			Events: keeper.Events{Asked: func(a keeper.AskInfo) {
				if a.ID == "b" {
					t.Error("a question that Close ended is told")
				}
			}},
		})
		pass(1500 * time.Millisecond)
		before := time.Now()
		k.Close()
		k.Close()
		if d := time.Since(before); d != 0 {
			t.Errorf("closing took %v", d)
		}
		<-k.Registered() // nobody may wait for what will not come
		if err := k.Add(target("c")); !errors.Is(err, keeper.ErrClosed) {
			t.Errorf("adding after Close: %v", err)
		}
		if m, got := models(r, "a"), running(t, r, "a"); m != "sglang [m]" || got != "1" {
			t.Errorf("closing took the workers away: %s, %s", m, got)
		}
		if strings.Contains(logs.String(), "worker=b") {
			t.Errorf("closing is logged as a failure:\n%s", logs.String())
		}
	})
}

// TestCloseAtOnce: whoever waits for the first targets is let go also when none of them was asked.
func TestCloseAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(map[string]*fakeEngine{"b": {hang: true}})
		for range 50 { // which of the goroutine's two events it sees first is left to chance
			k, _ := start(t, n, keeper.Options{Targets: []introspect.Target{target("b")}})
			k.Close()
			<-k.Registered()
		}
	})
}

func TestStartRefusesDuplicates(t *testing.T) {
	_, err := keeper.Start(keeper.Options{Registry: fleet.NewRegistry(fleet.BreakerConfig{}, 0), Targets: []introspect.Target{target("a"), target("a")}})
	if !errors.Is(err, keeper.ErrDuplicate) {
		t.Errorf("got %v", err)
	}
}

// TestFollowsNoRedirect: an engine cannot send the gateway elsewhere.
func TestFollowsNoRedirect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		elsewhere := make(chan string, 8)
		client := &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
			if r.URL.Host != "e" {
				elsewhere <- r.URL.String()
			}
			return &http.Response{StatusCode: 302, Header: http.Header{"Location": {"http://inside/"}}, Body: http.NoBody, Request: r}, nil
		})}
		r := fleet.NewRegistry(fleet.BreakerConfig{}, 0)
		k, err := keeper.Start(keeper.Options{Registry: r, Client: client, Targets: []introspect.Target{target("e")}})
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		<-k.Registered()
		if got := models(r, "e"); got != "unknown []" || len(elsewhere) != 0 {
			t.Errorf("it is %s; %d were asked elsewhere", got, len(elsewhere))
		}
	})
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
