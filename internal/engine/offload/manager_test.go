//go:build linux

package offload_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/perigee-llm/perigee/internal/cache/channel/client"
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/state"
	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
	"github.com/perigee-llm/perigee/internal/engine/offload"
	"github.com/perigee-llm/perigee/internal/zmtp"
)

// TestRestores: what an engine has lost it gets back, page by page, and another engine of the same host gets it too.
func TestRestores(t *testing.T) {
	r := begin(t, false)
	first := r.want(1, 10, 0)
	r.published(10)
	r.evicted(2)
	if again := r.want(1, 10, 10*blockTokens); again != first {
		t.Errorf("restored it answers %q, computed %q", again, first)
	}
	s := r.Stats()
	if s.Load.RestoredTokens != 10*blockTokens || s.Load.CorruptPages != 0 || s.CacheManager.RestoredPages != 10 {
		t.Errorf("%+v, %+v", s.Load, *s.CacheManager)
	}
	// It is in the engine's own cache now: nothing is restored again, and nothing is published again.
	r.want(1, 10, 10*blockTokens)
	if s := r.Stats(); s.Load.RestoredTokens != 10*blockTokens || s.CacheManager.Published != 10+kvBlocks-1 {
		t.Errorf("%+v, %+v", s.Load, *s.CacheManager)
	}
	page := r.get("/metrics")
	for _, want := range []string{
		`vllm:external_prefix_cache_hits_total{engine="0",model_name="perigee-sim"} 160.0`,
		`vllm:prefix_cache_hits_total{engine="0",model_name="perigee-sim"} 160.0`,
		`vllm:prompt_tokens_cached_total{engine="0",model_name="perigee-sim"} 320.0`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	other, err := enginehttp.Start(enginehttp.Options{
		Flavor: enginehttp.SGLang, Engine: engine.Config{BlockSize: blockTokens, KVBlocks: kvBlocks, Timing: engine.Timing{Speed: 1000}},
		CacheManager: &enginehttp.CacheManager{Socket: r.socket, LookupWait: longWait, RestoreWait: longWait, HangAfter: longWait},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	there := *r
	there.Server = other
	there.registered(1)
	if again := there.want(1, 12, 10*blockTokens); again == first {
		t.Error("a longer prompt has the same answer")
	}
	there.published(2)
	if s := other.Stats(); s.Load.RestoredTokens != 10*blockTokens || s.CacheManager.Published != 2 {
		t.Errorf("the other engine: %+v, %+v", s.Load, *s.CacheManager)
	}
	other.Close()
	r.atRest()
}

func (r *rig) get(path string) string {
	r.t.Helper()
	res, err := r.client.Get(r.URL() + path)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(text)
}

// TestWhatSeparates: a salt and an adapter keep pages apart; a salt that is part of no identity is served without the Manager.
func TestWhatSeparates(t *testing.T) {
	r := begin(t, false)
	r.want(1, 10, 0, `,"cache_salt":"a"`)
	r.published(10)
	r.evicted(2)
	r.want(1, 10, 0, `,"cache_salt":"b"`)
	r.published(10 + 15 + 10)
	r.evicted(3)
	r.want(1, 10, 10*blockTokens, `,"cache_salt":"a"`)
	r.evicted(4)
	long := `,"cache_salt":"` + strings.Repeat("x", state.MaxSalt+1) + `"`
	r.want(1, 10, 0, long)
	r.published(10 + 15 + 10 + 15 + 15 + 10)
	if s := r.Stats().CacheManager; s.Dropped != 10 || s.Published != 65 {
		t.Errorf("%+v", *s)
	}
	r.atRest()
}

// TestWrongPage: a page that another engine has published with other bytes under the right name is not answered from.
func TestWrongPage(t *testing.T) {
	r := begin(t, false)
	o := offload.Options{Socket: r.socket, Model: enginehttp.DefaultModel, BlockTokens: blockTokens, PageBytes: enginehttp.DefaultPageBytes}
	liar, err := client.Dial(t.Context(), client.Options{Socket: r.socket, Instance: "liar", Ranks: []state.Namespace{offload.NamespaceForTest(o)}, Model: o.Model})
	if err != nil {
		t.Fatal(err)
	}
	a := offload.Start(o)
	defer a.Close()
	core, err := engine.New(engine.Config{BlockSize: blockTokens})
	if err != nil {
		t.Fatal(err)
	}
	ids := tokens(1, 10)
	chain := core.Chain(engine.Request{Prompt: ids}, nil)
	p := a.NewPrompt(ids, "", "")
	pub := &client.Publish{Root: wire.Root{Model: o.Model}}
	for i, h := range chain {
		b := wire.Block{Hash: offload.NameForTest(p, h), Tokens: ids[i*blockTokens : (i+1)*blockTokens]}
		if i > 0 {
			b.Parent = pub.Blocks[i-1].Hash
		}
		pub.Blocks = append(pub.Blocks, b)
	}
	if out, err := liar.Publish(t.Context(), pub, func(i int, slot []byte) error {
		chain[i].Fill(slot)
		if i == 7 {
			slot[len(slot)-1] ^= 1
		}
		return nil
	}); err != nil || out.Sealed != 10 {
		t.Fatalf("%+v, %v", out, err)
	}
	got, err := r.ask(t.Context(), 1, 10, "")
	if err != nil || got.status != http.StatusInternalServerError {
		t.Errorf("%+v, %v", got, err)
	}
	if l := r.Stats().Load; l.CorruptPages != 1 || l.RestoredTokens != 0 {
		t.Errorf("%+v", l)
	}
	r.want(1, 7, 7*blockTokens) // those before it are as they should be
	if err := liar.Close(); err != nil {
		t.Error(err)
	}
	a.Close()
	r.atRest()
}

// slowRestores makes a restore take an hour, so that something can happen meanwhile.
func slowRestores(o *enginehttp.Options) { o.Engine.Timing.RestoreFixed = 1000 * time.Hour }

// restoring has a request that is being restored, and returns how it ends.
func (r *rig) restoring(ctx context.Context) (ended chan error) {
	r.t.Helper()
	r.want(1, 10, 0)
	r.published(10)
	r.evicted(2)
	ended = make(chan error, 1)
	go func() {
		a, err := r.ask(ctx, 1, 10, "")
		if err == nil && (a.status != http.StatusOK || a.cached != 0) {
			err = errors.New("not computed")
		}
		ended <- err
	}()
	r.until("the restore", func() bool { return r.Stats().Load.Restoring == 1 && r.Stats().CacheManager.Restores == 1 })
	return ended
}

// TestManagerEndsInARestore: the request is computed, and the engine is at home with the next Manager.
func TestManagerEndsInARestore(t *testing.T) {
	r := begin(t, false, slowRestores)
	ended := r.restoring(t.Context())
	r.want(3, 4, 0) // others run meanwhile
	const known = 10 + kvBlocks - 1 + 4
	r.published(known)
	if err := r.m.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if s := r.Stats().CacheManager; s.RestoresFailed != 1 || s.RestoredPages != 0 {
		t.Errorf("%+v", *s)
	}
	r.until("the loss is noticed", func() bool { s := r.Stats().CacheManager; return !s.Registered && s.Lost == 1 })
	r.published(known + 10) // what was to be restored is dropped, which may come behind the answer
	r.want(4, 10, 0)        // and without a Manager it computes
	r.published(known + 20)
	r.startManager()
	r.registered(2)
	r.want(5, 10, 0)
	r.until("it publishes again", func() bool { return r.m.Status().Usage.Blocks >= 10 })
	r.atRest()
}

// TestManagerKilledInARestore is the same with one that says nothing as it ends.
func TestManagerKilledInARestore(t *testing.T) {
	r := begin(t, true, slowRestores)
	_, kill := r.startChild()
	r.registered(1)
	ended := r.restoring(t.Context())
	kill()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	r.until("the loss is noticed", func() bool { s := r.Stats().CacheManager; return !s.Registered && s.Lost == 1 })
	r.want(3, 10, 0)
	r.startManager()
	r.registered(2)
	r.want(4, 10, 0)
	r.until("it publishes again", func() bool { return r.m.Status().Usage.Blocks >= 10 })
	r.atRest()
}

// TestStoppedManager: while it is stopped the engine computes, and when it goes on the same session does, too.
func TestStoppedManager(t *testing.T) {
	r := begin(t, true, func(o *enginehttp.Options) { o.CacheManager.LookupWait = 100 * time.Millisecond })
	signal, _ := r.startChild()
	r.registered(1)
	signal(syscall.SIGSTOP)
	r.want(1, 10, 0)
	r.want(2, 10, 0)
	if s := r.Stats().CacheManager; s.Lookups != 1 || s.LookupsLate != 1 || s.Unasked != 1 || s.Hung != 0 {
		t.Errorf("%+v", *s)
	}
	signal(syscall.SIGCONT)
	r.published(20)
	r.restoredAtLast()
	if s := r.Stats().CacheManager; s.Hung != 0 || s.Registrations != 1 {
		t.Errorf("%+v", *s)
	}
}

// restoredAtLast asks for prompts in turn, of which only one fits into the cache, until one is restored: on a busy machine an answer may be late.
func (r *rig) restoredAtLast() {
	r.t.Helper()
	prompt := 1
	r.until("a restore", func() bool {
		prompt = 3 - prompt
		if a, err := r.ask(r.t.Context(), prompt, 10, ""); err != nil || a.status != http.StatusOK {
			r.t.Fatalf("%+v, %v", a, err)
		}
		return r.Stats().Load.RestoredTokens > 0
	})
}

// TestStoppedManagerIsGivenUp, and found again when it goes on: the goodbye that it reads then gives the engine its memory back.
func TestStoppedManagerIsGivenUp(t *testing.T) {
	r := begin(t, true, func(o *enginehttp.Options) {
		o.CacheManager.LookupWait, o.CacheManager.HangAfter = 100*time.Millisecond, time.Second
	})
	signal, _ := r.startChild()
	r.registered(1)
	signal(syscall.SIGSTOP)
	r.want(1, 10, 0)
	r.until("the session is given up", func() bool { return r.Stats().CacheManager.Hung >= 1 })
	r.want(2, 10, 0)
	signal(syscall.SIGCONT)
	r.until("it is registered again", func() bool { s := r.Stats().CacheManager; return s.Registered && s.Registrations >= 2 })
	r.restoredAtLast()
	if l := r.Stats().Load; l.CorruptPages != 0 {
		t.Errorf("%+v", l)
	}
}

// TestEvents: whoever follows the engine's KV events knows exactly what its cache holds, restored blocks included.
func TestEvents(t *testing.T) {
	r := begin(t, false, func(o *enginehttp.Options) { o.KVEvents = &enginehttp.KVEvents{} })
	r.want(1, 10, 0)
	r.published(10)
	r.evicted(2)
	r.want(1, 10, 10*blockTokens)
	l := r.Stats().Load // by when the batches of the last answer are out
	var at map[string]struct {
		Replay string `json:"replay_endpoint"`
	}
	if err := json.Unmarshal([]byte(r.get("/kv_event_sources")), &at); err != nil {
		t.Fatal(err)
	}
	conn, err := zmtp.Dial(t.Context(), zmtp.Dealer, at["0"].Replay, zmtp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.Send(nil, make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	held, stored := map[string]bool{}, 0
	for {
		var m zmtp.Message
		if err := conn.Receive(&m); err != nil {
			t.Fatal(err)
		}
		payload := m.Frames[len(m.Frames)-1]
		if len(payload) == 0 {
			break
		}
		batch, _, err := msgp.ReadIntfBytes(payload)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range batch.([]any)[1].([]any) {
			ev := e.(map[string]any)
			for _, h := range ev["block_hashes"].([]any) {
				if name := fmt.Sprint(h); ev["type"] == "BlockStored" {
					held[name] = true
					stored++
				} else {
					delete(held, name)
				}
			}
		}
	}
	if len(held) != l.CachedBlocks || stored != 10+kvBlocks-1+10 {
		t.Errorf("the events say that %d blocks are held, of %d that were stored; the engine holds %d", len(held), stored, l.CachedBlocks)
	}
	r.atRest()
}

// TestClientLeavesInARestore: its blocks and its lease are free again.
func TestClientLeavesInARestore(t *testing.T) {
	r := begin(t, false, slowRestores)
	ctx, cancel := context.WithCancel(t.Context())
	ended := r.restoring(ctx)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	r.until("the blocks are free", func() bool { l := r.Stats().Load; return l.Restoring+l.UsedTokens == 0 })
	r.want(3, kvBlocks-1, 0)
	r.atRest()
}

// TestEngineEndsInARestore, and what restarts in one comes back without it.
func TestEngineEndsInARestore(t *testing.T) {
	t.Run("restart", func(t *testing.T) {
		r := begin(t, false, slowRestores)
		ended := r.restoring(t.Context())
		if err := r.SetFault(enginehttp.Fault{Kind: enginehttp.FaultRestart}); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err == nil {
			t.Error("it was answered by an engine that had restarted")
		}
		r.registered(2)
		r.want(3, 10, 0)
		r.atRest()
	})
	t.Run("close", func(t *testing.T) {
		r := begin(t, false, slowRestores)
		ended := r.restoring(t.Context())
		r.Close()
		if err := <-ended; err == nil {
			t.Error("it was answered by an engine that had ended")
		}
		r.atRest()
	})
}

// TestAbsent: without a Manager everything is computed; one that comes is found.
func TestAbsent(t *testing.T) {
	r := begin(t, true)
	r.until("a failure", func() bool { return r.Stats().CacheManager.Error != "" })
	r.want(1, 10, 0)
	r.published(10)
	if s := r.Stats().CacheManager; s.Registered || s.Dropped != 10 || s.Unasked != 1 || s.Lookups != 0 {
		t.Errorf("%+v", *s)
	}
	r.startManager()
	r.registered(1)
	if s := r.Stats().CacheManager; s.Error != "" {
		t.Errorf("%+v", *s)
	}
	r.want(2, 10, 0)
	r.published(20)
	r.evicted(3)
	r.want(2, 10, 10*blockTokens)
	r.atRest()
}

// mute is a Manager that registers whoever comes, and answers nothing afterwards. It returns how to end it.
func mute(t *testing.T, path string) (stop func()) {
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	serve := func(c net.Conn) {
		defer c.Close()
		head := make([]byte, wire.HeaderSize)
		for {
			if _, err := io.ReadFull(c, head); err != nil {
				return
			}
			h, err := wire.ParseHeader(head)
			if err != nil {
				return
			}
			if _, err := io.CopyN(io.Discard, c, int64(h.Length)); err != nil {
				return
			}
			to := wire.Header{Ref: h.Ref, Epoch: 1, Session: 1}
			switch h.Kind {
			case wire.KindHello:
				to.Session = 0
				_, _ = c.Write(wire.Append(nil, to, &wire.Welcome{Version: 1}))
			case wire.KindRegister:
				_, _ = c.Write(wire.Append(nil, to, &wire.Registered{}))
			case wire.KindAttach:
				_, _ = c.Write(wire.Append(nil, to, &wire.Attached{}))
			}
		}
	}
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { serve(c) })
		}
	})
	return func() { ln.Close(); wg.Wait() }
}

// TestHung: a lookup that is not answered is waited for once, then nobody asks; in the end the session is given up.
func TestHung(t *testing.T) {
	r := begin(t, true, func(o *enginehttp.Options) { o.CacheManager.LookupWait = time.Millisecond })
	stop := mute(t, r.socket)
	defer func() { r.Close(); stop() }()
	r.registered(1)
	r.want(1, 10, 0)
	r.want(2, 10, 0)
	if s := r.Stats().CacheManager; s.Lookups != 1 || s.LookupsLate != 1 || s.Unasked != 1 || s.Hung != 0 {
		t.Errorf("%+v", *s)
	}
}

// TestHungIsGivenUp, for another session, whoever it is that waits.
func TestHungIsGivenUp(t *testing.T) {
	r := begin(t, true, func(o *enginehttp.Options) {
		o.CacheManager.LookupWait, o.CacheManager.HangAfter = time.Millisecond, 10*time.Millisecond
	})
	stop := mute(t, r.socket)
	defer func() { r.Close(); stop() }()
	r.registered(1)
	r.want(1, 10, 0)
	r.until("the session is given up", func() bool { s := r.Stats().CacheManager; return s.Hung >= 1 && s.Registrations >= 2 })
	r.want(2, 10, 0)
}

// TestQueueIsBounded: what a Manager does not take is dropped, and holds nobody.
func TestQueueIsBounded(t *testing.T) {
	dir := t.TempDir()
	stop := mute(t, dir+"/s")
	defer stop()
	a := offload.Start(offload.Options{
		Socket: dir + "/s", Instance: "i", URL: "u", Model: "m", BlockTokens: 2, PageBytes: 4096, Timing: engine.Timing{}.Filled(), HangAfter: longWait,
	})
	defer a.Close()
	eventually(t, "registered", func() bool { return a.Stats().Registered })
	p := a.NewPrompt([]uint32{1, 2}, "", "")
	const more = 50
	for range 1 + offload.QueueForTest + more {
		a.Stored(p, &engine.KVEvent{Kind: engine.BlockStored, Hashes: []engine.BlockHash{{Lo: 1}}, Tokens: []uint32{1, 2}, BlockSize: 2})
	}
	// One is under way, or still in the queue.
	if s := a.Stats(); s.QueueFull < more || s.QueueFull > more+1 || s.Dropped != s.QueueFull {
		t.Errorf("%+v", s)
	}
}
