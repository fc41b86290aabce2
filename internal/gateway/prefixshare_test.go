package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/indexer/indexpb"
	"github.com/perigee-llm/perigee/internal/script"
)

// shareRig is simulated engines whose replay forgets soon, and gateways that start at different times.
type shareRig struct {
	t       *testing.T
	rng     *rand.Rand
	engines []*enginehttp.Server
	client  *http.Client
}

// newShareRig starts two engines that remember so many batches and blocks.
func newShareRig(t *testing.T, steps, blocks int) *shareRig {
	r := &shareRig{t: t, rng: script.Rand(t), client: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(r.client.CloseIdleConnections)
	for _, f := range []enginehttp.Flavor{enginehttp.VLLM, enginehttp.SGLang} {
		e, err := enginehttp.Start(enginehttp.Options{
			Flavor: f, Engine: engine.Config{BlockSize: 16, KVBlocks: blocks, Timing: engine.Timing{Speed: 1000}}, KVEvents: &enginehttp.KVEvents{BufferSteps: steps},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		r.engines = append(r.engines, e)
	}
	return r
}

// gateway starts one whose prefix_index is as given.
func (r *shareRig) gateway(index string) *Gateway {
	r.t.Helper()
	text := fmt.Sprintf("models: [{id: %s, policy: cache_aware}]\ndiscovery: {static: {workers: [%q, %q]}}\nserver: {port: 0}\nprefix_index: {%s}\n",
		rigModel, r.engines[0].URL(), r.engines[1].URL(), index)
	cfg, faults := config.Parse("test.yaml", []byte(text))
	if cfg == nil {
		r.t.Fatal(faults)
	}
	g, err := Start(r.t.Context(), Options{Config: cfg, Log: slog.New(slog.DiscardHandler), Seed: 1})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = g.Shutdown(ctx) // its error is the context's
	})
	return g
}

// randomPrompt is one of a few beginnings and one of a few ends.
func randomPrompt(rng *rand.Rand) []uint32 {
	var out []uint32
	for _, part := range []uint32{rng.Uint32N(4), rng.Uint32N(4), rng.Uint32N(8)} {
		for k := range uint32(32) {
			out = append(out, 1000*(part+1)+uint32(len(out))+k)
		}
	}
	return out
}

func (r *shareRig) post(i int, ids []uint32) error {
	b, _ := json.Marshal(ids)
	resp, err := r.client.Post(r.engines[i].URL()+"/v1/completions", "application/json", bytes.NewReader(fmt.Appendf(nil, `{"prompt":%s,"max_tokens":1}`, b)))
	if err == nil {
		err = resp.Body.Close()
	}
	return err
}

func (r *shareRig) run(n int) {
	r.t.Helper()
	for range n {
		if err := r.post(r.rng.IntN(2), randomPrompt(r.rng)); err != nil {
			r.t.Fatal(err)
		}
	}
}

// looks are what a gateway says of prompts: for each engine how much it holds; a blind one is known for itself.
func (r *shareRig) looks(g *Gateway, prompts [][]uint32) (depths [][2]int32, blind []bool) {
	r.t.Helper()
	depths, blind = make([][2]int32, len(prompts)), make([]bool, 2)
	place := func(no uint32) int {
		for w := range g.registry.View().All() {
			if w.No == no {
				return slices.IndexFunc(r.engines, func(e *enginehttp.Server) bool { return e.URL() == w.URL })
			}
		}
		return -1
	}
	for i, p := range prompts {
		var m prefix.Match
		if err := g.prefixes.own.Lookup(r.t.Context(), &prefix.Query{Model: rigModel, Tokens: p}, &m); err != nil {
			r.t.Fatal(err)
		}
		for _, h := range m.Held {
			depths[i][place(h.Engine)] = int32(h.Depth[prefix.Device])
		}
		for _, b := range m.Blind {
			blind[place(b)] = true
		}
	}
	return depths, blind
}

func (r *shareRig) prompts(n int) (out [][]uint32) {
	for range n {
		out = append(out, randomPrompt(r.rng))
	}
	return out
}

// eventually waits until it is so: events travel over sockets.
func (r *shareRig) eventually(what string, is func() bool) {
	r.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for !is() {
		select {
		case <-tick.C:
		case <-deadline:
			r.t.Fatalf("it never is: %s", what)
		}
	}
}

// quiet waits until a gateway has all batches that the engines have published, and everything counts.
func (r *shareRig) quiet(g *Gateway) {
	r.t.Helper()
	r.eventually("all is followed", func() bool {
		all := g.prefixes.follower.Status()
		for _, s := range all {
			i := slices.IndexFunc(r.engines, func(e *enginehttp.Server) bool { return strings.TrimRight(e.URL(), "/") == s.ID })
			if s.Stream.State.String() != "exact" || i < 0 || s.Waiting > 0 {
				return false
			}
		}
		return len(all) == 2
	})
}

func (r *shareRig) warm() *Gateway {
	g := r.gateway(`listen: "127.0.0.1:0"`)
	r.quiet(g)
	return g
}

func from(g *Gateway) string {
	return fmt.Sprintf("snapshot_from: %q", "http://"+g.prefixes.shared.addr.String())
}

func same(a, b *Gateway, r *shareRig, prompts [][]uint32) bool {
	da, _ := r.looks(a, prompts)
	db, _ := r.looks(b, prompts)
	return slices.Equal(da, db)
}

func none(blind []bool) bool { return !slices.Contains(blind, true) }

func snapshots(g *Gateway, outcome string) float64 {
	families, err := g.metrics.Registry().Gather()
	if err != nil {
		return -1
	}
	for _, f := range families {
		if f.GetName() != "perigee_prefix_snapshots_total" {
			continue
		}
		for _, m := range f.Metric {
			if m.Label[0].GetValue() == outcome {
				return m.Counter.GetValue()
			}
		}
	}
	return -1
}

// TestSnapshotAtTheStart: a gateway that starts late knows what one does that was there from the beginning, although the engines have
// forgotten it; and goes on from there.
func TestSnapshotAtTheStart(t *testing.T) {
	r := newShareRig(t, 4, 400)
	warm := r.warm()
	r.run(150)
	prompts := r.prompts(100)
	r.quiet(warm)

	cold := r.gateway("")
	r.quiet(cold)
	if _, blind := r.looks(cold, prompts); same(warm, cold, r, prompts) || !blind[0] || !blind[1] {
		t.Errorf("without a snapshot a late gateway knows as much as an early one (blind: %v): the engines forget nothing", blind)
	}

	late := r.gateway("snapshot_timeout: 1m, " + from(warm))
	r.quiet(late)
	r.eventually("the same as from the beginning", func() bool { return same(warm, late, r, prompts) })
	if _, blind := r.looks(late, prompts); !none(blind) {
		t.Errorf("blind: %v", blind)
	}
	if n := snapshots(late, "taken"); n != 2 {
		t.Errorf("%v snapshots were taken, want 2", n)
	}
	r.run(50)
	r.eventually("the same as from the beginning, later", func() bool { return same(warm, late, r, prompts) })

	// What it has taken over counts as little as what it has followed itself when the engine turns out to be another.
	if err := r.engines[0].SetFault(enginehttp.Fault{Kind: enginehttp.FaultRestart}); err != nil {
		t.Fatal(err)
	}
	r.eventually("nothing is held after a restart", func() bool {
		d, blind := r.looks(late, prompts)
		return none(blind) && !slices.ContainsFunc(d, func(x [2]int32) bool { return x[0] > 0 })
	})
}

// TestSnapshotInAFlood: engines store and evict all the time while a gateway starts. It claims nothing too much, and where it lacks something
// it says so.
func TestSnapshotInAFlood(t *testing.T) {
	r := newShareRig(t, 2000, 40)
	warm := r.warm()
	r.run(2100) // the beginning is forgotten by both: each prompt is a batch at least
	stop := make(chan struct{})
	var flood sync.WaitGroup
	for i := range 2 {
		rng := rand.New(rand.NewPCG(r.rng.Uint64(), uint64(i)))
		flood.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := r.post(i, randomPrompt(rng)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	late := r.gateway("snapshot_timeout: 1m, " + from(warm))
	r.eventually("two snapshots", func() bool { return snapshots(late, "taken") == 2 })
	r.eventually("all is followed", func() bool {
		for _, s := range late.prefixes.follower.Status() {
			if s.Stream.State.String() != "exact" {
				return false
			}
		}
		return true
	})
	close(stop)
	flood.Wait()
	prompts := r.prompts(300)
	var wrong string
	r.eventually("it is right, or says that it is not", func() bool {
		all, _ := r.looks(warm, prompts)
		has, blind := r.looks(late, prompts)
		wrong = ""
		for i := range prompts {
			for k := range 2 {
				if has[i][k] > all[i][k] || has[i][k] < all[i][k] && !blind[k] {
					wrong = fmt.Sprintf("engine %d, prompt %d: %d, early %d, blind %v", k, i, has[i][k], all[i][k], blind[k])
				}
			}
		}
		return wrong == ""
	})
	_, blind := r.looks(late, prompts)
	t.Logf("partial: %v", blind)
}

// liar is a service that tells of each engine what it is made to.
type liar struct {
	indexpb.UnimplementedPrefixIndexServer
	tell func(r *indexpb.SnapshotRequest, out grpc.ServerStreamingServer[indexpb.SnapshotPart]) error
}

func (l *liar) Snapshot(r *indexpb.SnapshotRequest, out grpc.ServerStreamingServer[indexpb.SnapshotPart]) error {
	return l.tell(r, out)
}

func (r *shareRig) liar(tell func(r *indexpb.SnapshotRequest, out grpc.ServerStreamingServer[indexpb.SnapshotPart]) error) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	s := grpc.NewServer()
	indexpb.RegisterPrefixIndexServer(s, &liar{tell: tell})
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(l) })
	r.t.Cleanup(func() {
		s.Stop()
		wg.Wait()
	})
	return fmt.Sprintf("snapshot_from: %q", "http://"+l.Addr().String())
}

// send tells of a rank that has one claim.
func send(r *indexpb.SnapshotRequest, out grpc.ServerStreamingServer[indexpb.SnapshotPart], rank *indexpb.Rank, end *indexpb.RankEnd) error {
	rank.Engine = r.Engine
	for _, p := range []*indexpb.SnapshotPart{
		{Part: &indexpb.SnapshotPart_Rank{Rank: rank}},
		{Part: &indexpb.SnapshotPart_Claims{Claims: &indexpb.Claims{Names: make([]byte, 16), Parents: make([]byte, 8), Hashes: []byte{1, 2, 3, 4, 5, 6, 7, 8}, Tiers: []byte{1}}}},
		{Part: &indexpb.SnapshotPart_End{End: end}},
	} {
		if p.GetEnd() == nil || end != nil {
			if err := out.Send(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestSnapshotOfALiar: a source that is dead, silent or wrong costs nothing but what was to be had there.
func TestSnapshotOfALiar(t *testing.T) {
	domain := func(size uint32) *indexpb.Domain { return &indexpb.Domain{Base: rigModel, BlockSize: size} }
	type told = func(r *indexpb.SnapshotRequest, out grpc.ServerStreamingServer[indexpb.SnapshotPart]) error
	for _, c := range []struct {
		about, outcome string
		tell           told
	}{
		{"knows nobody", "none", func(*indexpb.SnapshotRequest, grpc.ServerStreamingServer[indexpb.SnapshotPart]) error { return nil }},
		// An end without an error would say that it knows nobody, and the deadline, which travels with the request, may end the wait here
		// before it does there.
		{"hangs", "failed", func(_ *indexpb.SnapshotRequest, out grpc.ServerStreamingServer[indexpb.SnapshotPart]) error {
			<-out.Context().Done()
			return out.Context().Err()
		}},
		{"of another process", "taken", func(r *indexpb.SnapshotRequest, out grpc.ServerStreamingServer[indexpb.SnapshotPart]) error {
			return send(r, out, &indexpb.Rank{Domain: domain(16), Next: 3, Print: 77, HasPrint: true, Whole: true}, &indexpb.RankEnd{Through: 3})
		}},
		{"of another block size", "taken", func(r *indexpb.SnapshotRequest, out grpc.ServerStreamingServer[indexpb.SnapshotPart]) error {
			return send(r, out, &indexpb.Rank{Domain: domain(32), Next: 0, Whole: true}, &indexpb.RankEnd{})
		}},
		{"of another model", "none", func(r *indexpb.SnapshotRequest, out grpc.ServerStreamingServer[indexpb.SnapshotPart]) error {
			return send(r, out, &indexpb.Rank{Domain: &indexpb.Domain{Base: "other", BlockSize: 16}, Next: 3}, &indexpb.RankEnd{Through: 3})
		}},
		{"void", "failed", func(r *indexpb.SnapshotRequest, out grpc.ServerStreamingServer[indexpb.SnapshotPart]) error {
			return send(r, out, &indexpb.Rank{Domain: domain(32), Next: 3}, &indexpb.RankEnd{Void: true})
		}},
		{"breaks off", "failed", func(r *indexpb.SnapshotRequest, out grpc.ServerStreamingServer[indexpb.SnapshotPart]) error {
			return send(r, out, &indexpb.Rank{Domain: domain(32), Next: 3}, nil)
		}},
		{"is away", "failed", nil},
	} {
		t.Run(c.about, func(t *testing.T) {
			r := newShareRig(t, 10_000, 400) // all is in the replay
			warm := r.warm()
			r.run(30)
			r.quiet(warm)
			index := `snapshot_from: "http://127.0.0.1:1"`
			if c.tell != nil {
				index = r.liar(c.tell)
			}
			timeout := "1m" // which none but one who hangs uses up
			if c.about == "hangs" {
				timeout = "300ms"
			}
			late := r.gateway("snapshot_timeout: " + timeout + ", " + index)
			prompts := r.prompts(50)
			r.eventually("as if nobody had been asked", func() bool {
				_, blind := r.looks(late, prompts)
				return none(blind) && same(warm, late, r, prompts)
			})
			r.eventually("both are counted as "+c.outcome, func() bool { return snapshots(late, c.outcome) == 2 })
		})
	}
}

// TestSnapshotInTime: a second source is asked where the first hangs, and a gateway ends while it waits.
func TestSnapshotInTime(t *testing.T) {
	r := newShareRig(t, 4, 400)
	warm := r.warm()
	r.run(60)
	r.quiet(warm)
	hangs := r.liar(func(_ *indexpb.SnapshotRequest, out grpc.ServerStreamingServer[indexpb.SnapshotPart]) error {
		<-out.Context().Done()
		return out.Context().Err()
	})
	both := strings.TrimSuffix(hangs, `"`) + "," + strings.TrimPrefix(from(warm), `snapshot_from: "`)
	late := r.gateway("snapshot_timeout: 4s, " + both)
	prompts := r.prompts(50)
	r.eventually("the same as from the beginning", func() bool { return same(warm, late, r, prompts) })
	r.gateway("snapshot_timeout: 5m, " + hangs) // its end is the test's: see goleak
}

// TestSnapshotWithAHole: a block that is stored on one that is not in the snapshot makes the engine partial, whether that was while the snapshot
// was taken or later.
func TestSnapshotWithAHole(t *testing.T) {
	for about, through := range map[string]int64{"during": 1000, "later": 0} {
		t.Run(about, func(t *testing.T) {
			r := newShareRig(t, 10_000, 400)
			warm := r.warm()
			beginning := randomPrompt(r.rng)
			for i := range r.engines {
				if err := r.post(i, beginning[:64]); err != nil {
					t.Fatal(err)
				}
			}
			r.eventually("the beginning is known", func() bool {
				d, _ := r.looks(warm, [][]uint32{beginning})
				return d[0] == [2]int32{64, 64}
			})
			r.quiet(warm)
			ranks := map[string]*indexpb.Rank{}
			for w := range warm.registry.View().All() {
				at, ok := warm.prefixes.position(w.No, 0)
				if !ok {
					t.Fatal("the early gateway does not believe its engines")
				}
				ranks[w.URL] = &indexpb.Rank{Domain: &indexpb.Domain{Base: rigModel, BlockSize: 16}, Next: at.Next, Print: at.Print, HasPrint: at.Printed, Whole: true}
			}
			for i := range r.engines { // stored on what the snapshot lacks
				if err := r.post(i, beginning); err != nil {
					t.Fatal(err)
				}
			}
			late := r.gateway(r.liar(func(q *indexpb.SnapshotRequest, out grpc.ServerStreamingServer[indexpb.SnapshotPart]) error {
				rank := ranks[q.Engine]
				return send(q, out, rank, &indexpb.RankEnd{Through: max(through, rank.Next)})
			}))
			r.quiet(late)
			r.eventually("each engine's store is without a parent", func() bool {
				for _, s := range late.prefixes.follower.Status() {
					if s.Events.Orphans == 0 || s.Stream.Whole {
						return false
					}
				}
				return true
			})
			if _, blind := r.looks(late, [][]uint32{beginning}); !blind[0] || !blind[1] {
				t.Errorf("blind: %v, want both", blind)
			}
		})
	}
}
