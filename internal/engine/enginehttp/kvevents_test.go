package enginehttp

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/zmtp"
)

// subscriber reads what an engine publishes and writes it down in a form to compare.
type subscriber struct {
	t    *testing.T
	conn *zmtp.Conn
	m    zmtp.Message
}

func dial(t *testing.T, typ zmtp.Type, endpoint string) *subscriber {
	t.Helper()
	c, err := zmtp.Dial(t.Context(), typ, endpoint, zmtp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &subscriber{t: t, conn: c}
}

// subscribed waits until the engine knows of n subscribers: what it publishes before is lost to them.
func subscribed(t *testing.T, s *Server, n int) {
	t.Helper()
	s.kv.mu.Lock()
	p := s.kv.mu.events
	s.kv.mu.Unlock()
	if err := p.WaitSubscribed(t.Context(), n); err != nil {
		t.Fatal(err)
	}
}

// next returns topic, number and payload of the next message.
func (s *subscriber) next() (string, int64, any) {
	s.t.Helper()
	if err := s.conn.Receive(&s.m); err != nil {
		s.t.Fatal(err)
	}
	f := s.m.Frames
	if len(f) == 4 { // a replay's answers begin with an empty frame
		f = f[1:]
	}
	if len(f) != 3 || len(f[1]) != 8 {
		s.t.Fatalf("%d frames: %q", len(f), f)
	}
	seq := int64(binary.BigEndian.Uint64(f[1]))
	if len(f[2]) == 0 {
		return string(f[0]), seq, nil
	}
	v, rest, err := msgp.ReadIntfBytes(f[2])
	if err != nil || len(rest) > 0 {
		s.t.Fatalf("payload %x: %v, %d bytes too many", f[2], err, len(rest))
	}
	return string(f[0]), seq, v
}

// show writes the events of a batch in one line each.
func show(batch any) string {
	if batch == nil {
		return "end"
	}
	b := batch.([]any)
	var out []string
	for _, e := range b[1].([]any) {
		ev := e.(map[string]any)
		keys := []string{}
		for k := range ev {
			if !slices.Contains([]string{"type", "block_hashes", "token_ids"}, k) {
				keys = append(keys, fmt.Sprintf("%s=%v", k, shortened(k, ev[k])))
			}
		}
		slices.Sort(keys)
		hashes, _ := ev["block_hashes"].([]any)
		toks, _ := ev["token_ids"].([]any)
		out = append(out, fmt.Sprintf("%s %d hashes %v tokens %s", ev["type"], len(hashes), toks, strings.Join(keys, " ")))
	}
	return fmt.Sprintf("rank %v: %s", b[2], strings.Join(out, "; "))
}

func shortened(key string, v any) any {
	if key == "parent_block_hash" && v != nil {
		return fmt.Sprintf("%T", v)
	}
	return v
}

func TestKVEvents(t *testing.T) {
	for _, c := range []struct {
		flavor Flavor
		first  string // of a prompt of 8 tokens with a salt
		next   string // of the block that the same prompt and two tokens more end
	}{
		{
			VLLM,
			"rank 0: BlockStored 2 hashes [1 2 3 4 5 6 7 8] tokens block_size=4 extra_keys=[[s] <nil>] group_idx=0 kv_cache_spec_kind=full_attention lora_id=<nil> lora_name=<nil> medium=GPU parent_block_hash=<nil>",
			"rank 0: BlockStored 1 hashes [9 10 11 12] tokens block_size=4 extra_keys=[<nil>] group_idx=0 kv_cache_spec_kind=full_attention lora_id=<nil> lora_name=<nil> medium=GPU parent_block_hash=uint64",
		},
		{
			SGLang,
			"rank 0: BlockStored 2 hashes [1 2 3 4 5 6 7 8] tokens block_size=4 cache_salt=s lora_id=<nil> medium=GPU parent_block_hash=<nil>",
			"rank 0: BlockStored 1 hashes [9 10 11 12] tokens block_size=4 lora_id=<nil> medium=GPU parent_block_hash=int64",
		},
	} {
		t.Run(string(c.flavor), func(t *testing.T) {
			s, cl := start(t, Options{Engine: engine.Config{BlockSize: 4, Timing: quick}, Flavor: c.flavor, KVEvents: &KVEvents{Topic: "kv"}, DevMode: true})
			sub := dial(t, zmtp.Sub, s.kv.endpoints().events)
			subscribed(t, s, 1)
			ask := func(from, to int) {
				cl.json(http.MethodPost, "/v1/completions", fmt.Sprintf(`{"prompt":%s,"max_tokens":1,"cache_salt":"s"}`, ids(from, to)))
			}
			want := func(sub *subscriber, wantSeq int64, want string) {
				t.Helper()
				topic, seq, batch := sub.next()
				if got := show(batch); seq != wantSeq || got != want || (topic != "kv" && batch != nil) {
					t.Errorf("topic %q, number %d: %s\nwant %d: %s", topic, seq, got, wantSeq, want)
				}
			}
			ask(1, 9)
			want(sub, 0, c.first)
			ask(1, 9) // nothing new
			ask(1, 13)
			want(sub, 1, c.next)
			if c.flavor == SGLang {
				cl.do(http.MethodPost, "/flush_cache", "")
			} else {
				cl.do(http.MethodPost, "/reset_prefix_cache", "")
			}
			want(sub, 2, "rank 0: AllBlocksCleared 0 hashes [] tokens ")

			// What is lost on its way can be asked for, unless the engine has forgotten it.
			if err := s.SetFault(Fault{Kind: FaultLoseEvents}); err != nil {
				t.Fatal(err)
			}
			ask(1, 9)
			ask(1, 13)
			want(sub, 4, c.next)
			replay := dial(t, zmtp.Dealer, s.kv.endpoints().replay)
			from := func(n uint64) {
				if err := replay.conn.Send(nil, binary.BigEndian.AppendUint64(nil, n)); err != nil {
					t.Fatal(err)
				}
			}
			from(3)
			want(replay, 3, c.first)
			want(replay, 4, c.next)
			want(replay, -1, "end")
			from(99)
			want(replay, -1, "end")

			// A restart begins anew, on the same ports.
			at := s.kv.endpoints()
			if err := s.SetFault(Fault{Kind: FaultRestart}); err != nil {
				t.Fatal(err)
			}
			if s.kv.endpoints() != at {
				t.Errorf("the events moved from %v to %v", at, s.kv.endpoints())
			}
			if err := sub.conn.Receive(&sub.m); err == nil {
				t.Error("the connection outlived the engine")
			}
			sub = dial(t, zmtp.Sub, at.events)
			subscribed(t, s, 1)
			ask(1, 9)
			want(sub, 0, c.first)
		})
	}
}

// TestKVEventsWhere holds where the engines say that their events are.
func TestKVEventsWhere(t *testing.T) {
	s, cl := start(t, Options{KVEvents: &KVEvents{Topic: "kv"}})
	at := s.kv.endpoints()
	rank := cl.json(http.MethodGet, "/kv_event_sources", "")["0"].(map[string]any)
	if rank["endpoint"] != at.events || rank["replay_endpoint"] != at.replay || rank["topic"] != "kv" {
		t.Errorf("vLLM: %v, want %+v", rank, at)
	}
	_, cl = start(t, Options{})
	if got := cl.json(http.MethodGet, "/kv_event_sources", ""); len(got) > 0 {
		t.Errorf("without events: %v", got)
	}
	s, cl = start(t, Options{Flavor: SGLang, KVEvents: &KVEvents{}})
	at = s.kv.endpoints()
	info := cl.json(http.MethodGet, "/server_info", "")
	kv := info["kv_events"].(map[string]any)
	if port(at.events) == 0 || kv["endpoint_port_base"] != float64(port(at.events)) || kv["load_endpoint_port_base"] != float64(port(at.load)) || kv["block_size"] != 16.0 {
		t.Errorf("SGLang: %v, want %+v", kv, at)
	}
	if config := info["kv_events_config"].(string); !strings.Contains(config, at.replay) {
		t.Errorf("SGLang: no replay in %s", config)
	}
}

// TestLoadStream follows SGLang's load while a request runs.
func TestLoadStream(t *testing.T) {
	s, cl := start(t, Options{Flavor: SGLang, KVEvents: &KVEvents{}, Engine: engine.Config{Timing: quick}})
	sub := dial(t, zmtp.Sub, s.kv.endpoints().load)
	cl.json(http.MethodPost, "/v1/completions", `{"prompt":[1,2,3],"max_tokens":1}`)
	for { // the stream repeats itself each second; at the latest then it has the request in its sums
		topic, _, v := sub.next()
		stat := v.([]any)
		if topic != "load" || len(stat) != 11 || stat[0] != "LoadStat" {
			t.Fatalf("topic %q: %v", topic, v)
		}
		if fmt.Sprint(stat[9]) == "3" { // tokens prefilled, ever
			break
		}
	}
}

// TestKVEventsConnect has the subscriber listen, as for an engine whose endpoint has no wildcard.
func TestKVEventsConnect(t *testing.T) {
	l, err := zmtp.Listen(zmtp.Sub, "tcp://127.0.0.1:*", zmtp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = l.Serve(t.Context(), func(c *zmtp.Conn) {
			sub := &subscriber{t: t, conn: c}
			if c.Receive(&sub.m) == nil {
				got <- string(sub.m.Frames[0])
			}
		})
	}()
	s, cl := start(t, Options{Engine: engine.Config{BlockSize: 4, Timing: quick}, KVEvents: &KVEvents{Connect: l.Endpoint(), NoReplay: true, Topic: "mine"}})
	subscribed(t, s, 1)
	cl.json(http.MethodPost, "/v1/completions", `{"prompt":[1,2,3,4],"max_tokens":1}`)
	if topic := <-got; topic != "mine" {
		t.Errorf("topic %q", topic)
	}
	_ = l.Close()
	<-done
}

func TestEventFaultsNeedEvents(t *testing.T) {
	s, _ := start(t, Options{})
	for _, k := range []FaultKind{FaultLoseEvents, FaultCutEvents} {
		if err := s.SetFault(Fault{Kind: k}); err == nil {
			t.Errorf("%s: no error from an engine without events", k)
		}
	}
}
