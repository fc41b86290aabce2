package gateway_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
	"github.com/perigee-llm/perigee/internal/gateway"
	"github.com/perigee-llm/perigee/internal/script"
)

// soakTime is how long the soak goes on; PERIGEE_SOAK=20m makes it long.
func soakTime(t *testing.T) time.Duration {
	text := os.Getenv("PERIGEE_SOAK")
	if text == "" {
		return 4 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// watchSoak waits until the soak is over, and logs ten times what the process takes. What it says of a short one is only that it works.
func watchSoak(t *testing.T, g *gateway.Gateway, whole time.Duration) {
	const samples = 10
	tick := time.NewTicker(whole / samples)
	defer tick.Stop()
	for range samples {
		<-tick.C
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		open, _ := os.ReadDir("/proc/self/fd") // none where there is no /proc
		t.Logf("%d goroutines, %d descriptors, heap %.1f MiB, stacks %.1f MiB, from the system %.1f MiB, %d guards", runtime.NumGoroutine(), len(open),
			float64(m.HeapAlloc)/(1<<20), float64(m.StackInuse)/(1<<20), float64(m.Sys-m.HeapReleased)/(1<<20), g.Held())
	}
}

// TestSoak mixes requests of all kinds, clients that leave and faults of engines at random, and wants everything back where it was:
// guards, engines' accounts, and (by the leak check of this package) goroutines. Every dispatch has one outcome, and no broken answer looks whole.
func TestSoak(t *testing.T) {
	engines := append(startEngines(t, 2, enginehttp.SGLang), startEngines(t, 2, enginehttp.VLLM)...)
	g := startGateway(t, `
models: [{id: m, policy: power_of_two, admission: {max_inflight_requests: 12}}]
server: {port: 0, host: 127.0.0.1, admin: {port: 0}, stream_idle_timeout: 2s, request_timeout: 2s}
breaker: {threshold: 3, cool_down: 200ms}
discovery: {static: {workers: [{url: %s}, {url: %s}, {url: %s}, {url: %s}]}}
`, engines)
	seed := script.Rand(t).Uint64()
	stop := make(chan struct{})
	var faults, clients sync.WaitGroup
	faults.Go(func() { makeTrouble(rand.New(rand.NewPCG(seed, 1)), engines, stop) })
	var counts soakCounts
	c := newClient(t)
	for i := range 32 {
		clients.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(100+i)))
			for {
				select {
				case <-stop:
					return
				default:
					counts.one(t, c, g, r)
				}
			}
		})
	}
	watchSoak(t, g, soakTime(t))
	close(stop)
	faults.Wait()
	for _, e := range engines {
		if err := e.SetFault(enginehttp.Fault{Kind: enginehttp.FaultNone}); err != nil {
			t.Error(err)
		}
	}
	clients.Wait()
	await(t, func() bool { return g.Held() == 0 })
	for _, e := range engines {
		await(t, func() bool { l := e.Stats().Load; return l.Running == 0 && l.Waiting == 0 })
	}
	counts.check(t, g)
}

// makeTrouble sets a fault on an engine at random every few tens of milliseconds.
func makeTrouble(r *rand.Rand, engines []*enginehttp.Server, stop <-chan struct{}) {
	kinds := []enginehttp.Fault{
		{Kind: enginehttp.FaultNone}, {Kind: enginehttp.FaultNone}, {Kind: enginehttp.FaultNone},
		{Kind: enginehttp.FaultSlow, DelayMS: 20, ChunkDelayMS: 5},
		{Kind: enginehttp.FaultHangBeforeHeaders, Count: 3}, {Kind: enginehttp.FaultHangMidStream, Count: 3, AfterChunks: 2},
		{Kind: enginehttp.FaultResetMidStream, Count: 5, AfterChunks: 3},
		{Kind: enginehttp.FaultStatus, Count: 5}, {Kind: enginehttp.FaultStatus, Count: 5, Status: 503, RetryAfter: "1"},
		{Kind: enginehttp.FaultRefuse}, {Kind: enginehttp.FaultRestart, DelayMS: 30},
	}
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			// An error says that the port was taken in the meantime: the engine stays down, which is a fault too.
			_ = engines[r.IntN(len(engines))].SetFault(kinds[r.IntN(len(kinds))])
		}
	}
}

// soakCounts are what the clients saw.
type soakCounts struct {
	sent, answered, broken, left, refused atomic.Int64
}

// one makes one request at random.
func (s *soakCounts) one(t *testing.T, c *http.Client, g *gateway.Gateway, r *rand.Rand) {
	stream := r.IntN(2) == 0
	body := fmt.Sprintf(`{"model":"m","prompt":%s,"max_tokens":%d,"stream":%v}`, ids(1+r.IntN(200)), 1+r.IntN(20), stream)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	leaves := r.IntN(5) == 0
	if leaves {
		timer := time.AfterFunc(time.Duration(r.IntN(30))*time.Millisecond, cancel)
		defer timer.Stop()
	}
	req, err := http.NewRequestWithContext(ctx, "POST", g.URL()+"/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return
	}
	s.sent.Add(1)
	resp, err := c.Do(req)
	if err != nil {
		if ctx.Err() == nil {
			t.Errorf("no answer: %v", err)
		}
		s.left.Add(1)
		return
	}
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	whole := strings.HasSuffix(string(text), "data: [DONE]\n\n")
	if !stream {
		whole = strings.HasSuffix(strings.TrimSpace(string(text)), "}")
	}
	switch {
	case ctx.Err() != nil:
		s.left.Add(1)
	case err != nil:
		s.broken.Add(1)
	case resp.StatusCode != 200:
		s.refused.Add(1)
	case !whole:
		t.Errorf("a clean end of half an answer: %.300q", text)
	default:
		s.answered.Add(1)
	}
}

var sample = regexp.MustCompile(`(?m)^perigee_(\w+?)(\{.*\})? (\S+)$`)

// check adds up the metrics.
func (s *soakCounts) check(t *testing.T, g *gateway.Gateway) {
	c := newClient(t)
	var sums map[string]float64
	read := func() {
		_, text, err := send(t, c, "GET", g.AdminURL()+"/metrics", "")
		if err != nil {
			t.Fatal(err)
		}
		sums = map[string]float64{}
		for _, m := range sample.FindAllStringSubmatch(text, -1) {
			v, err := strconv.ParseFloat(m[3], 64)
			if err != nil {
				t.Fatal(err)
			}
			sums[m[1]] += v
		}
	}
	await(t, func() bool { read(); return sums["responses_total"] == sums["requests_total"] })
	t.Logf("sent %d: answered %d, broken %d, refused %d, left %d; dispatches %.0f, new attempts %.0f, aborts %.0f", s.sent.Load(), s.answered.Load(),
		s.broken.Load(), s.refused.Load(), s.left.Load(), sums["worker_requests_total"], sums["new_attempts_total"], sums["aborts_total"])
	if s.answered.Load() == 0 || s.left.Load() == 0 { // the others are rarer, and a slow machine may meet none
		t.Error("the mix was none")
	}
	// A pick becomes a dispatch, or an error of the engine whose breaker opened in between.
	if sums["policy_decisions_total"] != sums["worker_requests_total"] {
		t.Errorf("%.0f picks, %.0f outcomes of dispatches", sums["policy_decisions_total"], sums["worker_requests_total"])
	}
	if seen := float64(s.answered.Load() + s.broken.Load() + s.refused.Load()); sums["responses_total"] < seen || sums["responses_total"] > float64(s.sent.Load()) {
		t.Errorf("%.0f answers are counted of %d requests; the clients saw %.0f", sums["responses_total"], s.sent.Load(), seen)
	}
	for _, gauge := range []string{"guards", "active_requests", "worker_inflight_requests", "active_load"} {
		if sums[gauge] != 0 {
			t.Errorf("%s is %v at rest", gauge, sums[gauge])
		}
	}
}
