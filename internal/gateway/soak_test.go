package gateway_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
	"github.com/perigee-llm/perigee/internal/gateway"
	"github.com/perigee-llm/perigee/internal/gateway/config"
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

// usage is what the process takes.
type usage struct {
	descriptors int // 0: nobody tells here
	heap        int64
}

func measureUsage() usage {
	runtime.GC()
	runtime.GC() // what finalizers and pools held by the first
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	open, _ := os.ReadDir("/proc/self/fd") // none where there is no /proc
	return usage{len(open), int64(m.HeapAlloc)}
}

// soakHeap is how much more heap there may be after a soak than before it, in bytes: what packages make once and keep, as pools' buffers and the
// templates' parsers. A request that left 10 KiB behind would show in the short soak.
const soakHeap = 8 << 20

// TestSoak mixes requests of all kinds, to engines and to pairs of both families, over plain connections and TLS, clients that leave, read slowly or stop sending, reloads, and faults of engines
// at random, and wants everything back where it was: guards, engines' accounts, descriptors, memory and (by the leak check of this package)
// goroutines. Every dispatch has one outcome, and no broken answer looks whole.
func TestSoak(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0") // the runtime's own descriptors are there then
	if err != nil {
		t.Fatal(err)
	}
	_ = ln.Close()
	before := measureUsage()
	t.Run("mix", soak)
	var after usage
	await(t, func() bool {
		after = measureUsage()
		return after.descriptors <= before.descriptors && after.heap <= before.heap+soakHeap
	})
	t.Logf("before: %d descriptors, heap %.1f MiB; after: %d, %.1f MiB", before.descriptors, float64(before.heap)/(1<<20), after.descriptors, float64(after.heap)/(1<<20))
}

const soaked = `
models:
  - {id: m, policy: power_of_two%s, admission: {max_inflight_requests: 12}}
  - {id: sglang, admission: {max_inflight_requests: 12}, buckets: [{id: pairs, pd: {prefill: {policy: round_robin}, decode: {policy: load_based}}}]}
  - {id: vllm, admission: {max_inflight_requests: 12}, buckets: [{id: pairs, pd: {prefill: {policy: round_robin}, decode: {policy: load_based}}}]}
server: {port: 0, host: 127.0.0.1, admin: {port: 0}, stream_idle_timeout: 2s, request_timeout: 2s, clients: {body_timeout: 300ms, send_timeout: 3s}%s}
breaker: {threshold: 3, cool_down: 200ms}
discovery: {static: {workers: [%s]}}
`

func soak(t *testing.T) {
	engines := append(startEngines(t, 2, enginehttp.SGLang), startEngines(t, 2, enginehttp.VLLM)...)
	var urls []string
	for _, e := range engines {
		urls = append(urls, "{url: "+e.URL()+"}")
	}
	var halves []*enginehttp.Server
	for _, flavor := range []enginehttp.Flavor{enginehttp.SGLang, enginehttp.VLLM} {
		roles := []enginehttp.Role{enginehttp.Prefill, enginehttp.Decode, enginehttp.Prefill, enginehttp.Decode}
		for i, e := range startHalves(t, flavor, string(flavor), engine.Timing{Speed: 200}, 500*time.Millisecond, roles...) {
			urls = append(urls, "{url: "+e.URL()+", role: "+string(roles[i])+"}")
			halves = append(halves, e)
		}
	}
	authority := newAuthority(t)
	cert, key := authority.issue(t, time.Now().Add(24*time.Hour))
	bare := newSoaked(t, fmt.Sprintf(soaked, "", "%s", strings.Join(urls, ", ")), nil)
	secure := newSoaked(t, fmt.Sprintf(soaked, ", tokenizer: $DIR/tokenizer.json", ", tls: {cert_file: $DIR/cert.pem, key_file: $DIR/key.pem}%s", strings.Join(urls, ", ")), map[string]string{
		"tokenizer.json": smallTokenizer(t, "llama3"), "chat_template.jinja": "{% for m in messages %}<|begin|>{{ m.content }}{% endfor %}", "cert.pem": cert, "key.pem": key,
	})
	seed := script.Rand(t).Uint64()
	stop := make(chan struct{})
	var faults, clients sync.WaitGroup
	faults.Go(func() { makeTrouble(rand.New(rand.NewPCG(seed, 1)), engines, stop) })
	faults.Go(func() { makeTrouble(rand.New(rand.NewPCG(seed, 2)), halves, stop) })
	faults.Go(func() { reloadOften(t, stop, bare, secure) })
	// again has a client go on until the soak is over.
	again := func(n int, one func(r *rand.Rand)) {
		for i := range n {
			clients.Go(func() {
				for r := rand.New(rand.NewPCG(seed, uint64(100*n+i))); ; {
					select {
					case <-stop:
						return
					default:
						one(r)
					}
				}
			})
		}
	}
	plain, one, two := newClient(t), authority.client(t, false), authority.client(t, true)
	again(20, func(r *rand.Rand) { bare.counts.one(t, plain, bare.Gateway, r) })
	again(4, func(r *rand.Rand) { secure.counts.one(t, one, secure.Gateway, r) })
	again(8, func(r *rand.Rand) { secure.counts.one(t, two, secure.Gateway, r) })
	again(3, func(r *rand.Rand) { bare.counts.awkward(bare.Gateway, nil, r) })
	over := &tls.Config{RootCAs: authority.pool, ServerName: "127.0.0.1"}
	again(3, func(r *rand.Rand) { secure.counts.awkward(secure.Gateway, over, r) })
	watchSoak(t, bare.Gateway, soakTime(t))
	tick := time.NewTicker(50 * time.Millisecond)
	for end := time.Now().Add(20 * time.Second); !(bare.counts.mixed() && secure.counts.mixed()) && time.Now().Before(end); { // a machine may be that busy
		<-tick.C
	}
	tick.Stop()
	close(stop)
	faults.Wait()
	for _, e := range append(engines, halves...) {
		if err := e.SetFault(enginehttp.Fault{Kind: enginehttp.FaultNone}); err != nil {
			t.Error(err)
		}
	}
	clients.Wait()
	for _, g := range []*soakedGateway{bare, secure} {
		await(t, func() bool { return g.Held() == 0 })
	}
	for _, e := range engines {
		await(t, func() bool { l := e.Stats().Load; return l.Running == 0 && l.Waiting == 0 })
	}
	halvesAtRest(t, halves)
	bare.counts.check(t, bare.Gateway)
	secure.counts.check(t, secure.Gateway)
	for _, model := range []string{"m", "sglang", "vllm"} { // breakers may be open for a moment
		await(t, func() bool {
			status, _, err := send(t, plain, "POST", bare.URL()+"/v1/completions", `{"model":"`+model+`","prompt":[1,2,3],"max_tokens":4}`)
			return err == nil && status == 200
		})
	}
	halvesAtRest(t, halves)
}

// soakedGateway is a gateway whose configuration can be replaced, and what its clients saw.
type soakedGateway struct {
	*gateway.Gateway
	counts soakCounts
	turn   int
	file   string
	text   string // in which %s stands for what changes
}

func newSoaked(t *testing.T, text string, files map[string]string) *soakedGateway {
	t.Helper()
	dir := t.TempDir()
	s := &soakedGateway{file: filepath.Join(dir, configFile), text: strings.ReplaceAll(text, "$DIR", dir)}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func() (*config.Config, config.Faults) { return config.ParseFile(s.file) }
	s.change(t)
	cfg, wrong := read()
	if cfg == nil {
		t.Fatal(wrong)
	}
	var err error
	if s.Gateway, err = gateway.Start(t.Context(), gateway.Options{
		Config: cfg, Log: slog.New(slog.DiscardHandler), Access: io.Discard, Seed: 1, WatchInterval: time.Hour, Source: &gateway.Source{File: s.file, Read: read},
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
	return s
}

// change writes another configuration than the one before.
func (s *soakedGateway) change(t *testing.T) {
	s.turn++
	if err := os.WriteFile(s.file, fmt.Appendf(nil, s.text, fmt.Sprint(", max_attempts: ", 2+s.turn%2)), 0o600); err != nil {
		t.Error(err)
	}
}

// reloadOften has gateways take another configuration a few times a second.
func reloadOften(t *testing.T, stop <-chan struct{}, gateways ...*soakedGateway) {
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		for _, g := range gateways {
			g.change(t)
			if err := g.Reload(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
}

// awkward is one client that sends or reads as nobody should: it stops within its head or its body, or reads a byte now and then.
func (s *soakCounts) awkward(g *gateway.Gateway, over *tls.Config, r *rand.Rand) {
	_, host, _ := strings.Cut(g.URL(), "://")
	raw, err := net.Dial("tcp", host)
	if err != nil {
		return // it may have as many connections as it may
	}
	defer func() { _ = raw.Close() }()
	_ = raw.SetDeadline(time.Now().Add(time.Second))
	c := raw
	if over != nil {
		if r.IntN(8) == 0 { // no handshake, or no whole one
			_, _ = raw.Write([]byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")[:r.IntN(12)])
			<-time.After(time.Duration(r.IntN(20)) * time.Millisecond)
			return
		}
		c = tls.Client(raw, over)
		defer func() { // some say goodbye, and some nothing of the socket's end
			if r.IntN(2) == 0 {
				_ = c.(*tls.Conn).CloseWrite()
				<-time.After(time.Duration(r.IntN(20)) * time.Millisecond)
			}
		}()
	}
	body := fmt.Sprintf(`{"model":"%s","prompt":%s,"max_tokens":200,"stream":%v}`, soakedModel(r), ids(1+r.IntN(200)), r.IntN(2) == 0)
	head := fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", len(body))
	text := head + body
	s.sent.Add(1)
	switch r.IntN(4) {
	case 0:
		text = text[:r.IntN(len(head))]
	case 1:
		text = text[:len(head)+r.IntN(len(body))]
	}
	if _, err := io.WriteString(c, text); err != nil {
		return
	}
	for range 1 + r.IntN(30) {
		if _, err := c.Read(make([]byte, 1+r.IntN(300))); err != nil {
			return
		}
		<-time.After(time.Duration(r.IntN(20)) * time.Millisecond)
	}
}

// makeTrouble sets a fault on an engine at random every few tens of milliseconds.
func makeTrouble(r *rand.Rand, engines []*enginehttp.Server, stop <-chan struct{}) {
	kinds := []enginehttp.Fault{
		{Kind: enginehttp.FaultNone}, {Kind: enginehttp.FaultNone}, {Kind: enginehttp.FaultNone},
		{Kind: enginehttp.FaultSlow, DelayMS: 20, ChunkDelayMS: 5},
		{Kind: enginehttp.FaultHangBeforeHeaders, Count: 3}, {Kind: enginehttp.FaultHangMidStream, Count: 3, AfterChunks: 2},
		{Kind: enginehttp.FaultResetMidStream, Count: 5, AfterChunks: 3},
		{Kind: enginehttp.FaultStatus, Count: 5}, {Kind: enginehttp.FaultStatus, Count: 5, Status: 503, RetryAfter: "1"},
		{Kind: enginehttp.FaultRefuse}, {Kind: enginehttp.FaultRestart, DelayMS: 30}, {Kind: enginehttp.FaultRestart},
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
	sent, answered, broken, left, refused, paired atomic.Int64 // paired are of answered
}

// mixed tells whether there was something of what must not be missing. The rest is rarer, and a slow machine may meet none.
func (s *soakCounts) mixed() bool {
	paired := s.paired.Load()
	return paired > 0 && s.answered.Load() > paired && s.left.Load() > 0
}

// soakedModel is one of the models at random: every second request is for a pair.
func soakedModel(r *rand.Rand) string { return []string{"m", "m", "sglang", "vllm"}[r.IntN(4)] }

// one makes one request at random.
func (s *soakCounts) one(t *testing.T, c *http.Client, g *gateway.Gateway, r *rand.Rand) {
	stream := r.IntN(2) == 0
	path, asked := "/v1/completions", `"prompt":`+ids(1+r.IntN(200))
	if r.IntN(3) == 0 {
		path, asked = "/v1/chat/completions", `"messages":[{"role":"user","content":"`+strings.Repeat("hello ", 1+r.IntN(200))+`"}]`
	}
	model := soakedModel(r)
	body := fmt.Sprintf(`{"model":"%s",%s,"max_tokens":%d,"stream":%v}`, model, asked, 1+r.IntN(20), stream)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	leaves := r.IntN(5) == 0
	if leaves {
		timer := time.AfterFunc(time.Duration(r.IntN(30))*time.Millisecond, cancel)
		defer timer.Stop()
	}
	req, err := http.NewRequestWithContext(ctx, "POST", g.URL()+path, strings.NewReader(body))
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
		if model != "m" {
			s.paired.Add(1)
		}
	}
}

var soakedLabel = regexp.MustCompile(`(?:policy|mode)="\w+"`)

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
			for _, label := range soakedLabel.FindAllString(m[2], -1) {
				sums[m[1]+label] += v
			}
		}
	}
	await(t, func() bool { read(); return sums["responses_total"] == sums["requests_total"] })
	t.Logf("sent %d: answered %d (%d by pairs), broken %d, refused %d, left %d; dispatches %.0f, new attempts %.0f, aborts %.0f", s.sent.Load(), s.answered.Load(), s.paired.Load(),
		s.broken.Load(), s.refused.Load(), s.left.Load(), sums["worker_requests_total"], sums["new_attempts_total"], sums["aborts_total"])
	if !s.mixed() {
		t.Error("the mix was none")
	}
	// A pick becomes a dispatch, or an error of the engine whose breaker opened in between. The halves of a pair are dispatched together: a prefill engine
	// that is picked where no decode engine can be is not.
	for _, x := range [][2]string{
		{`policy_decisions_totalpolicy="power_of_two"`, `worker_requests_totalmode="plain"`}, {`policy_decisions_totalpolicy="load_based"`, `worker_requests_totalmode="decode"`},
		{`worker_requests_totalmode="prefill"`, `worker_requests_totalmode="decode"`},
	} {
		if sums[x[0]] != sums[x[1]] || sums[x[1]] == 0 {
			t.Errorf("%s: %.0f, %s: %.0f", x[0], sums[x[0]], x[1], sums[x[1]])
		}
	}
	if seen := float64(s.answered.Load() + s.broken.Load() + s.refused.Load()); sums["responses_total"] < seen || sums["responses_total"] > float64(s.sent.Load()) {
		t.Errorf("%.0f answers are counted of %d requests; the clients saw %.0f", sums["responses_total"], s.sent.Load(), seen)
	}
	for _, gauge := range []string{"guards", "active_requests", "worker_inflight_requests", "active_load", "buffered_bytes"} {
		if sums[gauge] != 0 {
			t.Errorf("%s is %v at rest", gauge, sums[gauge])
		}
	}
}
