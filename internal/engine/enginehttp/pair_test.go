package enginehttp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
)

// pairOf starts a prefill and a decode engine of a flavor, and one that does both.
func pairOf(t *testing.T, f Flavor, cfg engine.Config) (p, d, both *client, ps, ds *Server) {
	t.Helper()
	if cfg.Timing == (engine.Timing{}) {
		cfg.Timing = quick
	}
	ps, p = start(t, Options{Flavor: f, Engine: cfg, Pair: &Pair{Role: Prefill}})
	ds, d = start(t, Options{Flavor: f, Engine: cfg, Pair: &Pair{Role: Decode, Attempts: 2, Retry: time.Millisecond}})
	_, both = start(t, Options{Flavor: f, Engine: cfg})
	return p, d, both, ps, ds
}

// body is a request with what belongs to the pair put in.
func body(prompt string, rest string) string {
	return fmt.Sprintf(`{"prompt":%s,"max_tokens":6%s}`, prompt, rest)
}

func room(s *Server, n int) string {
	return fmt.Sprintf(`,"bootstrap_host":"127.0.0.1","bootstrap_port":%d,"bootstrap_room":%d`, s.BootstrapPort(), n)
}

// text returns what was generated.
func text(t *testing.T, answer string) string {
	t.Helper()
	var v struct{ Choices []struct{ Text string } }
	if err := json.Unmarshal([]byte(answer), &v); err != nil || len(v.Choices) != 1 {
		t.Fatalf("%v: %s", err, answer)
	}
	return v.Choices[0].Text
}

// atRest waits until nothing is held on either side.
func atRest(t *testing.T, engines ...*Server) {
	t.Helper()
	for _, s := range engines {
		until(t, "at rest", func() bool {
			l := s.Stats().Load
			return l.Running+l.Waiting+l.Held+l.Meeting+l.Joined+l.Fetching+l.UsedTokens == 0
		})
	}
}

// both sends a body to the two engines of an SGLang pair at once, as a gateway does.
func atOnce(p, d *client, send string) (prefill, decode reply) {
	done := make(chan reply)
	go func() { done <- p.reply(send) }()
	decode = d.reply(send)
	return <-done, decode
}

type reply struct {
	status int
	body   string
	err    error
}

func (c *client) reply(send string) (r reply) {
	resp, err := c.try(context.Background(), "POST", "/v1/completions", send)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, string(b), err}
}

// TestPairSGLang: the two meet in their room, the decode engine gives the answer that one engine alone would give, and computes no prompt.
func TestPairSGLang(t *testing.T) {
	p, d, both, ps, ds := pairOf(t, SGLang, engine.Config{})
	for i := range 3 {
		prompt := ids(i, 50)
		pr, dr := atOnce(p, d, body(prompt, room(ps, i)))
		if pr.status != 200 || dr.status != 200 {
			t.Fatalf("%+v\n%+v", pr, dr)
		}
		_, _, want := both.do("POST", "/v1/completions", body(prompt, ""))
		if got := text(t, dr.body); got != text(t, want) || !strings.HasPrefix(got, text(t, pr.body)) || len(text(t, pr.body)) != 4 {
			t.Errorf("prefill %s, decode %s, alone %s", pr.body, dr.body, want)
		}
	}
	atRest(t, ps, ds)
	pl, dl := ps.Stats().Load, ds.Stats().Load
	if pl.PrefillUncachedTokens == 0 || dl.PrefillUncachedTokens != 0 || dl.FetchedTokens != 50+49+48 || dl.PrefillBusy != 0 || pl.OutputTokens != 3 {
		t.Errorf("prefill %+v\ndecode %+v", pl, dl)
	}
	info := d.json("GET", "/server_info", "")
	if info["disaggregation_mode"] != "decode" || p.json("GET", "/server_info", "")["disaggregation_bootstrap_port"] != float64(ps.BootstrapPort()) {
		t.Errorf("decode %v", info["disaggregation_mode"])
	}
	if _, _, page := d.do("GET", "/metrics", ""); !strings.Contains(page, `engine_type="decode"`) || !strings.Contains(page, "sglang:num_decode_transfer_queue_reqs") {
		t.Errorf("metrics: %s", page)
	}
}

// TestPairSGLangStreams: the decode engine streams, the prefill engine's first token among it; several prompts have as many rooms.
func TestPairSGLangStreams(t *testing.T) {
	p, d, both, ps, ds := pairOf(t, SGLang, engine.Config{})
	pr, dr := atOnce(p, d, body(ids(0, 30), room(ps, 1)+`,"stream":true`))
	if n := strings.Count(dr.body, `"text":"`); pr.status != 200 || n != 6 || !strings.HasSuffix(dr.body, "data: [DONE]\n\n") {
		t.Errorf("%d chunks; prefill %+v\ndecode %+v", n, pr, dr)
	}
	two := `[` + ids(0, 20) + `,` + ids(5, 30) + `]`
	for _, rooms := range []string{room(ps, 10), strings.Replace(room(ps, 1), `_room":1`, `_room":[7,3]`, 1)} {
		pr, dr = atOnce(p, d, body(two, rooms))
		_, _, want := both.do("POST", "/v1/completions", body(two, ""))
		if got, want := decode(t, dr.body)["choices"], decode(t, want)["choices"]; pr.status != 200 || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("prefill %+v, decode %v, want %v", pr, got, want)
		}
	}
	atRest(t, ps, ds)
}

// turn has a vLLM prefill engine compute a prompt, and returns what it says of the KV.
func turn(t *testing.T, p *client, prompt string) string {
	t.Helper()
	status, _, answer := p.do("POST", "/v1/completions", fmt.Sprintf(`{"prompt":%s,"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_block_ids":null}}`, prompt))
	var v struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal([]byte(answer), &v); err != nil || status != 200 {
		t.Fatalf("%d %v: %s", status, err, answer)
	}
	return string(v.Params)
}

// TestPairVLLM: the prefill engine says where the KV is, the decode engine fetches it, gives the answer that one engine alone would give, and
// computes no prompt.
func TestPairVLLM(t *testing.T) {
	p, d, both, ps, ds := pairOf(t, VLLM, engine.Config{})
	params := turn(t, p, ids(0, 50))
	keys := slices.Sorted(func(yield func(string) bool) {
		for k := range decode(t, params) {
			if !yield(k) {
				return
			}
		}
	})
	want := "dcp_size do_remote_decode do_remote_prefill pp_size remote_block_ids remote_blocks_expiry_time remote_engine_id remote_host remote_num_tokens remote_port remote_request_id tp_size transfer_mode"
	if got := strings.Join(keys, " "); got != want || decode(t, params)["remote_num_tokens"] != 50.0 {
		t.Errorf("%s: %s", got, params)
	}
	if l := ps.Stats().Load; l.Held != 1 || l.HeldTokens != 64 || l.UsedTokens != 64 || l.Running != 0 {
		t.Errorf("held: %+v", l)
	}
	_, _, alone := both.do("POST", "/v1/completions", body(ids(0, 50), ""))
	status, _, answer := d.do("POST", "/v1/completions", body(ids(0, 50), `,"kv_transfer_params":`+params))
	if status != 200 || text(t, answer) != text(t, alone) || !strings.Contains(answer, `"cached_tokens":49`) {
		t.Errorf("%d %s, alone %s", status, answer, alone)
	}
	// What the decode engine's own cache has is not fetched again.
	_, _, answer = d.do("POST", "/v1/completions", body(ids(0, 50), `,"kv_transfer_params":`+turn(t, p, ids(0, 50))))
	atRest(t, ps, ds)
	if dl := ds.Stats().Load; text(t, answer) != text(t, alone) || dl.PrefillUncachedTokens != 0 || dl.FetchedTokens != 49+1 || dl.CacheHitTokens != 48 {
		t.Errorf("%s: %+v", answer, dl)
	}
	if _, _, page := d.do("GET", "/metrics", ""); !strings.Contains(page, `vllm:external_prefix_cache_hits_total{engine="0",model_name="perigee-sim"} 50`) {
		t.Errorf("metrics: %s", page)
	}
}

// TestPairVLLMAlone: without parameters, and on an engine that has no part, a request is an ordinary one.
func TestPairVLLMAlone(t *testing.T) {
	p, d, both, ps, ds := pairOf(t, VLLM, engine.Config{})
	for _, c := range []*client{p, d, both} {
		for _, extra := range []string{"", `,"kv_transfer_params":null`, `,"kv_transfer_params":{}`} {
			if status, _, answer := c.do("POST", "/v1/completions", body(ids(0, 20), extra)); status != 200 || !strings.Contains(answer, `"kv_transfer_params":null`) {
				t.Errorf("%d %s", status, answer)
			}
		}
	}
	if a := turn(t, both, ids(0, 20)); a != "null" {
		t.Errorf("an engine without a connector holds %s", a)
	}
	atRest(t, ps, ds)
}

// TestPairVLLMRefuses: what is not there, not whole, of another prompt or taken already is an error, and nothing stays held.
func TestPairVLLMRefuses(t *testing.T) {
	p, d, _, ps, ds := pairOf(t, VLLM, engine.Config{})
	good := turn(t, p, ids(0, 50))
	with := func(key string, value any) string {
		v := decode(t, turn(t, p, ids(0, 50)))
		v[key] = value
		b, _ := json.Marshal(v)
		return string(b)
	}
	if status, _, answer := d.do("POST", "/v1/completions", body(ids(0, 50), `,"kv_transfer_params":`+good)); status != 200 {
		t.Fatal(answer)
	}
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = nobody.Close()
	for name, params := range map[string]string{
		"taken already": good, "another engine": with("remote_engine_id", "x"), "another request": with("remote_request_id", "x"), "no blocks": with("remote_block_ids", nil),
		"nobody there": with("remote_port", nobody.Addr().(*net.TCPAddr).Port), "no host": with("remote_host", ""), "a host that is none": with("remote_host", "%"),
	} {
		status, _, answer := d.do("POST", "/v1/completions", body(ids(0, 50), `,"kv_transfer_params":`+params))
		if status != 500 || !strings.Contains(answer, "InternalServerError") {
			t.Errorf("%s: %d %s", name, status, answer)
		}
		answer = d.reply(body(ids(0, 50), `,"stream":true,"kv_transfer_params":`+params)).body
		if !strings.HasPrefix(answer, `data: {"error"`) || !strings.HasSuffix(answer, "data: [DONE]\n\n") {
			t.Errorf("%s, streaming: %s", name, answer)
		}
	}
	if status, _, answer := d.do("POST", "/v1/completions", body(ids(1, 51), `,"kv_transfer_params":`+turn(t, p, ids(0, 50)))); status != 500 || !strings.Contains(answer, corruptPage) {
		t.Errorf("another prompt: %d %s", status, answer)
	}
	if status, _, answer := d.do("POST", "/v1/completions", body(ids(0, 50), `,"kv_transfer_params":[1]`)); status != 400 {
		t.Errorf("no object: %d %s", status, answer)
	}
	until(t, "the six that nobody came for and the one that was taken back", func() bool { return ps.Stats().Load.Held == 6 })
	atRest(t, ds)
	if err := ps.SetFault(Fault{Kind: FaultRestart}); err != nil {
		t.Fatal(err)
	}
	atRest(t, ps)
}

// TestPairSGLangRefuses: no room, a room that is no number, a prefill engine that nobody can reach, a prompt that is another's, and one room for two.
func TestPairSGLangRefuses(t *testing.T) {
	p, d, _, ps, ds := pairOf(t, SGLang, engine.Config{})
	for _, c := range []*client{p, d} {
		for _, extra := range []string{"", `,"bootstrap_room":null`, `,"bootstrap_room":"x"`, `,"bootstrap_room":[1,2]`} {
			if status, _, answer := c.do("POST", "/v1/completions", body(ids(0, 50), extra)); status != 400 || !strings.Contains(answer, "without bootstrap room id") {
				t.Errorf("%s: %d %s", extra, status, answer)
			}
			if a := c.reply(body(ids(0, 50), extra+`,"stream":true`)); a.status != 200 || !strings.HasPrefix(a.body, "data: {") {
				t.Errorf("%s, streaming: %+v", extra, a)
			}
		}
	}
	status, _, answer := d.do("POST", "/v1/completions", body(ids(0, 50), `,"bootstrap_host":"127.0.0.1","bootstrap_port":1,"bootstrap_room":5`))
	if status != 500 || !strings.Contains(answer, "could not fetch prefill parallel info from 127.0.0.1:1 after 2 attempts") {
		t.Errorf("nobody there: %d %s", status, answer)
	}
	if status, _, answer := d.do("POST", "/v1/completions", body(ids(0, 50), `,"bootstrap_port":"x","bootstrap_room":5`)); status != 400 {
		t.Errorf("a port that is none: %d %s", status, answer)
	}
	done := make(chan reply)
	go func() { done <- p.reply(body(ids(0, 50), room(ps, 1))) }()
	until(t, "the prefill half waits", func() bool { return ps.Stats().Load.Meeting == 1 })
	if status, _, answer := p.do("POST", "/v1/completions", body(ids(0, 50), room(ps, 1))); status != 500 {
		t.Errorf("a room for two: %d %s", status, answer)
	}
	if a := d.reply(body(ids(1, 51), room(ps, 1))); a.status != 500 || !strings.Contains(a.body, corruptPage) {
		t.Errorf("another prompt: %+v", a)
	}
	if a := <-done; a.status != 200 { // its KV was taken
		t.Errorf("its prefill half: %+v", a)
	}
	atRest(t, ps, ds)
}

// TestPairBreaks: whichever half goes, the other one hears of it, and nothing stays held.
func TestPairBreaks(t *testing.T) {
	slow := engine.Timing{PrefillPerToken: 100 * time.Millisecond} // five seconds a prompt: it is never waited for
	for _, c := range []struct {
		name   string
		timing engine.Timing
		when   func(p, d engine.Load) bool
		what   func(ps, ds *Server, leaveP, leaveD context.CancelFunc)
		p, d   string // how the two end
	}{
		{"the decode engine's client leaves", slow, func(p, _ engine.Load) bool { return p.Running == 1 }, func(_, _ *Server, _, leave context.CancelFunc) { leave() }, "Prefill transfer failed", "left"},
		{"the prefill engine's client leaves", slow, func(p, _ engine.Load) bool { return p.Running == 1 }, func(_, _ *Server, leave, _ context.CancelFunc) { leave() }, "left", "Decode transfer failed"},
		{"the prefill engine is restarted", slow, func(p, _ engine.Load) bool { return p.Running == 1 }, func(s, _ *Server, _, _ context.CancelFunc) { _ = s.SetFault(Fault{Kind: FaultRestart}) }, "broken", "lost the connection with the prefill engine"},
		{"the decode engine is restarted", slow, func(p, _ engine.Load) bool { return p.Running == 1 }, func(_, s *Server, _, _ context.CancelFunc) { _ = s.SetFault(Fault{Kind: FaultRestart}) }, "Prefill transfer failed", "broken"},
		{"the decode engine is restarted while the KV is on its way", engine.Timing{Speed: 1000, TransferFixed: 10 * time.Hour}, func(p, _ engine.Load) bool { return p.Held == 1 },
			func(_, s *Server, _, _ context.CancelFunc) { _ = s.SetFault(Fault{Kind: FaultRestart}) }, "Prefill transfer failed", "broken"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, d, _, ps, ds := pairOf(t, SGLang, engine.Config{Timing: c.timing})
			pctx, leaveP := context.WithCancel(t.Context())
			dctx, leaveD := context.WithCancel(t.Context())
			defer leaveP()
			defer leaveD()
			ends := [2]chan string{make(chan string, 1), make(chan string, 1)}
			for i, x := range []struct {
				ctx context.Context
				c   *client
			}{{pctx, p}, {dctx, d}} {
				go func() {
					resp, err := x.c.try(x.ctx, "POST", "/v1/completions", body(ids(0, 50), room(ps, 1)))
					switch {
					case x.ctx.Err() != nil:
						ends[i] <- "left"
					case err != nil:
						ends[i] <- "broken"
					default:
						b, _ := io.ReadAll(resp.Body)
						resp.Body.Close()
						ends[i] <- string(b)
					}
				}()
			}
			until(t, "it is so far", func() bool { return c.when(ps.Stats().Load, ds.Stats().Load) })
			c.what(ps, ds, leaveP, leaveD)
			for i, want := range []string{c.p, c.d} {
				if got := <-ends[i]; !strings.Contains(got, want) {
					t.Errorf("half %d ends with %q, want %q", i, got, want)
				}
			}
			atRest(t, ps, ds)
		})
	}
}

// portListener has a port that is no socket's, and no connections.
type portListener struct {
	once   sync.Once
	closed chan struct{}
}

func (l *portListener) Accept() (net.Conn, error) { <-l.closed; return nil, net.ErrClosed }
func (l *portListener) Close() error              { l.once.Do(func() { close(l.closed) }); return nil }
func (l *portListener) Addr() net.Addr            { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4242} }

// TestPairRestartsUnderARequest: a request of before a restart may tell where the pair's port is, while that opens again; for the race detector.
func TestPairRestartsUnderARequest(t *testing.T) {
	// Nobody else gets the port while it is closed: a real one may be anybody's then.
	listen := func(string) (net.Listener, error) { return &portListener{closed: make(chan struct{})}, nil }
	s, _ := start(t, Options{Listener: newMemListener(), Listen: listen, Pair: &Pair{Role: Prefill}})
	_, before := s.side.at()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, port := s.side.at(); port != before {
				t.Errorf("it is at port %d, and was at %d", port, before)
				return
			}
		}
	})
	for range 5 {
		if err := s.SetFault(Fault{Kind: FaultRestart}); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
}

// TestPairTimesOut: a room to which only one comes, and KV that nobody takes, after the times of the real engines.
func TestPairTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		side := newMemListener()
		engines := map[Role]*client{}
		var ps *Server
		for _, x := range []struct {
			role   Role
			flavor Flavor
		}{{Prefill, SGLang}, {Decode, SGLang}} {
			s, c := start(t, Options{
				Flavor: x.flavor, Engine: engine.Config{Timing: quick}, Listener: newMemListener(),
				Listen: func(string) (net.Listener, error) { return side, nil },
				Pair:   &Pair{Role: x.role, Dial: side.dial},
			})
			engines[x.role] = c
			if x.role == Prefill {
				ps = s
			}
		}
		for role, want := range map[Role]string{Prefill: "Prefill bootstrap failed", Decode: "Decode transfer failed"} {
			began := time.Now()
			a := engines[role].reply(body(ids(0, 50), `,"bootstrap_host":"p","bootstrap_port":1,"bootstrap_room":1`))
			if took := time.Since(began).Round(time.Second); a.status != 500 || !strings.Contains(a.body, want) || took != 300*time.Second {
				t.Errorf("%s alone: %+v after %v", role, a, took)
			}
		}
		if l := ps.Stats().Load; l.RoomsExpired == 0 || l.Meeting+l.Joined+l.UsedTokens != 0 {
			t.Errorf("%+v", l)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s, c := start(t, Options{
			Engine: engine.Config{Timing: quick}, Listener: newMemListener(), Listen: func(string) (net.Listener, error) { return newMemListener(), nil }, Pair: &Pair{Role: Prefill},
		})
		turn(t, c, ids(0, 50))
		time.Sleep(29 * time.Second) // of the test's clock
		before := s.Stats().Load
		time.Sleep(2 * time.Second)
		if after := s.Stats().Load; before.Held != 1 || after.Held != 0 || after.UsedTokens != 0 || after.RoomsExpired != 1 {
			t.Errorf("after 29 s %+v, after 31 s %+v", before, after)
		}
	})
}

// TestPairOptions: what cannot be is refused.
func TestPairOptions(t *testing.T) {
	for want, o := range map[string]Options{
		"neither prefill nor decode": {Pair: &Pair{Role: "both"}},
		"not simulated":              {Pair: &Pair{Role: Decode}, CacheManager: &CacheManager{Socket: "x"}},
		"out of range":               {Pair: &Pair{Role: Decode, BootstrapPort: 70000}},
		"negative":                   {Engine: engine.Config{HoldFor: -1}},
	} {
		if _, err := Start(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	s, _ := start(t, Options{Pair: &Pair{Role: Prefill}})
	if _, err := Start(Options{Pair: &Pair{Role: Prefill, Addr: fmt.Sprint("127.0.0.1:", s.BootstrapPort())}}); err == nil {
		t.Error("two on one port")
	}
}

// FuzzJoin: whatever comes to the side port is answered.
func FuzzJoin(f *testing.F) {
	f.Add("POST", "r", "")
	f.Add("DELETE", "r", "taken=true")
	f.Add("POST", "a%2fb", "engine_id=x")
	s, err := Start(Options{Pair: &Pair{Role: Prefill}})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(s.Close)
	f.Fuzz(func(t *testing.T, method, name, query string) {
		req, err := http.NewRequest(method, fmt.Sprintf("http://127.0.0.1:%d/rooms/%s?%s", s.BootstrapPort(), name, query), bytes.NewReader(nil))
		if err != nil {
			return
		}
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			return
		}
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			t.Errorf("%s %s: %d", method, name, resp.StatusCode)
		}
	})
}
