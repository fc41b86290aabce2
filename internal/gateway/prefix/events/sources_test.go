package events_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/ask"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events"
)

// answers is what an engine answers to paths; the rest is not found.
type answers map[string]string

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	body, there := a[r.URL.Path]
	resp := &http.Response{StatusCode: 200, ContentLength: -1, Body: io.NopCloser(strings.NewReader(body)), Request: r}
	if !there {
		resp.StatusCode = 404
	}
	return resp, nil
}

func show(s *events.Sources) string {
	if s == nil {
		return ""
	}
	var lines []string
	for _, r := range s.Ranks {
		line := string('0'+rune(r.Rank)) + " " + r.Events
		if r.Listen {
			line += " (listen)"
		}
		if r.Topic != "" {
			line += " topic=" + r.Topic
		}
		if r.Replay != "" {
			line += " replay=" + r.Replay
		}
		if r.Load != "" {
			line += " load=" + r.Load + "/" + r.LoadTopic
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "; ")
}

func TestDiscover(t *testing.T) {
	captured, err := os.ReadFile("testdata/sglang_0.5.23_server_info.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		kind fleet.Kind
		body string
		want string
		err  error
	}{
		{"as it was captured", fleet.SGLang, string(captured), "0 tcp://engine-1:15657 topic=kv load=tcp://engine-1:15658/load", nil},
		{"ranks, a host of its own, a replay port", fleet.SGLang,
			`{"kv_events":{"publisher":"zmq","endpoint_host":"10.0.0.5","endpoint_port_base":5557,"topic":"","block_size":16,"dp_size":2,"replay_endpoint_port_base":6557}}`,
			"0 tcp://10.0.0.5:5557 replay=tcp://10.0.0.5:6557; 1 tcp://10.0.0.5:5558 replay=tcp://10.0.0.5:6558", nil},
		{"a replay in the configuration", fleet.SGLang,
			`{"kv_events":{"endpoint_host":"0.0.0.0","endpoint_port_base":5557,"topic":"kv","dp_size":1},"kv_events_config":"{\"replay_endpoint\":\"tcp://*:7000\"}"}`,
			"0 tcp://engine-1:5557 topic=kv replay=tcp://engine-1:7000", nil},
		{"a port of loads without a topic is none", fleet.SGLang, `{"kv_events":{"endpoint_host":"[::]","endpoint_port_base":5557,"load_endpoint_port_base":1}}`, "0 tcp://engine-1:5557", nil},
		{"ranks beyond the last port", fleet.SGLang, `{"kv_events":{"endpoint_host":"*","endpoint_port_base":65535,"dp_size":3}}`, "0 tcp://engine-1:65535", nil},
		{"no events", fleet.SGLang, `{"kv_events":null}`, "", events.ErrNoEvents},
		{"another publisher", fleet.SGLang, `{"kv_events":{"publisher":"null","endpoint_port_base":1}}`, "", events.ErrNoEvents},
		{"no port", fleet.SGLang, `{"kv_events":{"publisher":"zmq"}}`, "", ask.ErrMalformed},
		{"too many ranks", fleet.SGLang, `{"kv_events":{"endpoint_port_base":1,"dp_size":100000}}`, "", ask.ErrMalformed},
		{"a page", fleet.SGLang, `<html>`, "", ask.ErrMalformed},

		{"vllm", fleet.VLLM, `{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558","buffer_steps":10000,"topic":"kv"},
			"1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5558","replay_endpoint":null,"topic":"kv"}}`,
			"0 tcp://engine-1:5557 topic=kv replay=tcp://engine-1:5558; 1 tcp://engine-1:5558 topic=kv", nil},
		{"vllm as a list", fleet.VLLM, `[{"data_parallel_rank":3,"endpoint":"tcp://10.0.0.1:5560","replay_endpoint":null,"topic":""}]`, "3 tcp://10.0.0.1:5560", nil},
		{"vllm without events", fleet.VLLM, `{}`, "", events.ErrNoEvents},
		{"vllm that has them switched off", fleet.VLLM, `{"0":{"enable_kv_cache_events":false,"endpoint":"tcp://*:5557"}}`, "", events.ErrNoEvents},
		{"vllm with another publisher", fleet.VLLM, `{"0":{"publisher":"null","endpoint":"tcp://*:5557"}}`, "", events.ErrNoEvents},
		{"vllm in one process", fleet.VLLM, `{"0":{"publisher":"zmq","endpoint":"inproc://x"}}`, "", ask.ErrMalformed},
		{"a rank twice", fleet.VLLM, `[{"data_parallel_rank":1,"endpoint":"tcp://*:1"},{"data_parallel_rank":1,"endpoint":"tcp://*:2"}]`, "", ask.ErrMalformed},
		{"older vllm", fleet.VLLM, "", "", events.ErrNoEvents},
		{"another family", fleet.UnknownKind, "", "", events.ErrNoEvents},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := answers{}
			if c.body != "" {
				a[map[fleet.Kind]string{fleet.SGLang: "/server_info", fleet.VLLM: "/kv_event_sources"}[c.kind]] = c.body
			}
			w := &fleet.Worker{Spec: fleet.Spec{ID: "e", URL: "http://engine-1:8000", Kind: c.kind}}
			got, err := events.Discover(t.Context(), &http.Client{Transport: a}, w)
			if !errors.Is(err, c.err) || (err != nil) != (c.err != nil) {
				t.Fatalf("error %v, want %v", err, c.err)
			}
			if d := cmp.Diff(c.want, show(got)); d != "" {
				t.Error(d)
			}
		})
	}
}

func FuzzDiscover(f *testing.F) {
	for _, s := range []string{`{"kv_events":{"endpoint_host":"*","endpoint_port_base":65535,"dp_size":3}}`, `{"0":{"endpoint":"tcp://*:5557"}}`, `[{"endpoint":"tcp://[::]:1"}]`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		client := &http.Client{Transport: answers{"/server_info": body, "/kv_event_sources": body}}
		for _, kind := range []fleet.Kind{fleet.SGLang, fleet.VLLM} {
			s, err := events.Discover(context.Background(), client, &fleet.Worker{Spec: fleet.Spec{URL: "http://engine-1", Kind: kind}})
			if (s == nil) == (err == nil) {
				t.Fatalf("%v, %v", s, err)
			}
			if err == nil && (len(s.Ranks) == 0 || len(s.Ranks) > 1024) {
				t.Fatalf("%d ranks", len(s.Ranks))
			}
		}
	})
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		name  string
		c     events.Config
		ranks int
		want  string
		fails string
	}{
		{"one rank", events.Config{Endpoint: "tcp://*:5557", ReplayEndpoint: "tcp://*:5558", Topic: "kv"}, 0, "0 tcp://engine-1:5557 topic=kv replay=tcp://engine-1:5558", ""},
		{"as many ranks as the engine says", events.Config{Endpoint: "tcp://10.1.1.1:5557"}, 2, "0 tcp://10.1.1.1:5557; 1 tcp://10.1.1.1:5558", ""},
		{"fewer", events.Config{Endpoint: "tcp://*:5557", Ranks: 1}, 2, "0 tcp://engine-1:5557", ""},
		{"we listen", events.Config{Listen: "tcp://*:5557", Topic: "kv@a"}, 0, "0 tcp://*:5557 (listen) topic=kv@a", ""},
		{"loads alone", events.Config{LoadEndpoint: "tcp://*:5560"}, 0, "0  load=tcp://engine-1:5560/load", ""},
		{"a socket file", events.Config{Endpoint: "ipc:///run/kv"}, 1, "0 ipc:///run/kv", ""},
		{"nothing", events.Config{Topic: "kv"}, 0, "", "endpoint, listen"},
		{"both", events.Config{Endpoint: "tcp://*:1", Listen: "tcp://*:2"}, 0, "", "endpoint, listen"},
		{"every fault is named", events.Config{Endpoint: "udp://*:1", ReplayEndpoint: "tcp://x", Ranks: -1}, 0, "", "ranks: -1"},
		{"no such port", events.Config{Endpoint: "tcp://*:65536"}, 0, "", "endpoint"},
		{"a replay that is none", events.Config{Endpoint: "tcp://*:5557", ReplayEndpoint: "5558"}, 0, "", "replay_endpoint"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.c.Sources("http://engine-1:8000", c.ranks)
			if (err != nil) != (c.fails != "") || err != nil && !strings.Contains(err.Error(), c.fails) {
				t.Fatalf("error %v, want %q", err, c.fails)
			}
			if d := cmp.Diff(c.want, show(got)); d != "" {
				t.Error(d)
			}
		})
	}
}

// changing is an engine that answers what it is told to at the time.
type changing struct{ now atomic.Pointer[answers] }

func (c *changing) RoundTrip(r *http.Request) (*http.Response, error) {
	return c.now.Load().RoundTrip(r)
}

// TestDiscovered: an engine is asked where it publishes, again when it does not answer, and now and then whether that is still so.
func TestDiscovered(t *testing.T) {
	a := &changing{}
	a.now.Store(&answers{})
	inWorld(t, events.Options{Client: &http.Client{Transport: a}}, func(w *world) {
		target := w.target(1, events.Needs{Prefix: true, Load: true})
		w.follow(target)
		if s := w.f.Status(); len(s) != 1 || !errors.Is(s[0].Fault, events.ErrNoEvents) {
			t.Errorf("%+v", s)
		}
		first, second := newEngine(t, &w.net, "engine-1", "kv"), newEngine(t, &w.net, "engine-2", "kv")
		a.now.Store(&answers{"/server_info": `{"kv_events":{"endpoint_host":"*","endpoint_port_base":1,"topic":"kv","load_endpoint_port_base":3,"load_topic":"load","replay_endpoint_port_base":2}}`})
		first.store(1)
		pass(30 * time.Second)
		w.want("1/0", "exact 1")
		a.now.Store(&answers{"/server_info": `{"kv_events":{"endpoint_host":"engine-2","endpoint_port_base":1,"topic":"kv","replay_endpoint_port_base":2}}`})
		second.store(2)
		pass(30 * time.Second)
		w.want("1/0", "exact 2")
		a.now.Store(&answers{"/server_info": `<html>`}) // no answer takes nothing away
		pass(30 * time.Second)
		w.want("1/0", "exact 2")
		if s := w.f.Status(); len(s) != 1 || s[0].Load != nil {
			t.Errorf("%+v", s)
		}
		first.stop()
		second.stop()
	})
}
