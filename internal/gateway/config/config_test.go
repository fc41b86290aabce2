package config_test

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/perigee-llm/perigee/internal/gateway/config"
)

func mustParse(t *testing.T, text string) *config.Config {
	t.Helper()
	c, faults := config.Parse("test.yaml", []byte(text))
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	return c
}

func ptr[T any](x T) *T { return &x }

// TestDefaults states every default once more by hand: a default that changes, changes here as well.
func TestDefaults(t *testing.T) {
	got := mustParse(t, "models: [{id: m}]\ndiscovery: {static: {workers: [http://a:1/]}}")
	all := config.Group{Policy: config.Policy{Name: config.RoundRobin}}
	decode := config.Group{Policy: config.Policy{Name: config.PowerOfTwo}}
	want := &config.Config{
		Models: []config.Model{{
			ID: "m", InputIDsForwarding: true,
			Sampling: config.Sampling{Conflict: config.ConflictReject},
			Policy:   all.Policy, DecodePolicy: decode.Policy,
			Buckets: []config.Bucket{{ID: "plain", Plain: &all}, {ID: "pd", Rank: 1, PD: &config.PD{Prefill: all, Decode: decode}}},
		}},
		Discovery:   config.Discovery{Static: &config.Static{Workers: []config.Worker{{URL: "http://a:1", ID: "http://a:1/"}}}},
		PrefixIndex: config.PrefixIndex{SnapshotTimeout: 5 * time.Second},
		Server: config.Server{
			Host: "127.0.0.1", Port: 30000, Admin: config.Admin{Host: "127.0.0.1"}, ShutdownDrain: 30 * time.Second,
			RequestTimeout: 300 * time.Second, StreamIdleTimeout: 180 * time.Second, StaleRequestTimeout: 600 * time.Second,
			MaxBodyBytes: 33554432, MaxBufferedBytes: 1073741824, MaxAttempts: 3, Clients: config.ClientLimits{HeaderTimeout: 10 * time.Second, IdleTimeout: 120 * time.Second, BodyTimeout: 30 * time.Second, SendTimeout: 120 * time.Second, MaxHeaderBytes: 64 << 10, MaxConnections: 8192, MaxRequests: 8192, MaxStreams: 250},
		},
		ClientFields: config.ClientFields{Default: config.RefuseField},
		Breaker:      config.Breaker{Threshold: 3, CoolDown: 30 * time.Second, Floor: 0.5},
		Load:         config.Load{PollInterval: time.Second, Freshness: 5 * time.Second},
		Log:          config.Log{Level: config.LogInfo, Format: config.LogText},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestInheritance: a group's own policy and caps win one by one over the model's; absent and empty membership stay apart.
func TestInheritance(t *testing.T) {
	c := mustParse(t, `
models:
  - id: m
    policy: random
    decode_policy: load_based
    admission: {max_running_requests: 1, max_kv_tokens: 2}
    buckets:
      - id: a
        max_context_tokens: 10
        plain: {policy: {name: power_of_two}, workers: [], admission: {max_kv_tokens: 0}}
      - {id: b, pd: {prefill: {workers: [x]}, decode: {}}}
discovery: {static: {workers: [{url: http://a:1, id: x}]}}
`)
	m := c.Models[0]
	wantPlain := config.Group{
		Policy: config.Policy{Name: config.PowerOfTwo}, Workers: []string{},
		Admission: config.Admission{MaxRunningRequests: ptr(1), MaxKVTokens: ptr(0)},
	}
	if diff := cmp.Diff(&wantPlain, m.Buckets[0].Plain); diff != "" {
		t.Errorf("plain: %s", diff)
	}
	caps := config.Admission{MaxRunningRequests: ptr(1), MaxKVTokens: ptr(2)}
	wantPD := config.PD{
		Prefill: config.Group{Policy: config.Policy{Name: config.Random}, Workers: []string{"x"}, Admission: caps},
		Decode:  config.Group{Policy: config.Policy{Name: config.LoadBased}, Admission: caps},
	}
	if diff := cmp.Diff(&wantPD, m.Buckets[1].PD); diff != "" {
		t.Errorf("pd: %s", diff)
	}
}

// TestValues reads one value of each kind that has more than one spelling.
func TestValues(t *testing.T) {
	c := mustParse(t, `
models:
  - id: m
    sampling: {override: {temperature: 0.70, top_k: -1, n: {min: 1, max: 4}}}
discovery: {static: {workers: [http://a:1]}}
server: {max_body_bytes: 2KiB, request_timeout: 1m30s, termination_grace: 2m, admin: {port: 0}}
`)
	if s := c.Server; s.MaxBodyBytes != 2048 || s.RequestTimeout != 90*time.Second || *s.TerminationGrace != 2*time.Minute || *s.Admin.Port != 0 {
		t.Errorf("server %+v", s)
	}
	want := []config.SamplingRule{
		{Param: "n", Min: 1, Max: 4},
		{Param: "temperature", Exact: "0.7", Min: 0.7, Max: 0.7},
		{Param: "top_k", Exact: "-1", Min: -1, Max: -1},
	}
	if diff := cmp.Diff(want, c.Models[0].Sampling.Override); diff != "" {
		t.Error(diff)
	}
}

// TestBounds holds the two bounds that have no file in testdata: the size of the input and the length of the report.
func TestBounds(t *testing.T) {
	big := bytes.Repeat([]byte("#"), config.MaxFileBytes+1)
	if _, faults := config.Parse("big.yaml", big); len(faults) != 1 || faults[0].String() != "big.yaml: the file has more than 1 MiB; is it a configuration file?" {
		t.Errorf("too big: %v", faults)
	}
	if _, faults := config.Parse("big.yaml", big[1:]); len(faults) != 1 || faults[0].What != "the file is empty" {
		t.Errorf("just small enough: %v", faults)
	}
	_, faults := config.Parse("many.yaml", []byte(strings.Repeat("x: 1\n", 5000)))
	if n := len(faults); n != 1001 || faults[n-1].What != "4002 more faults are not shown" {
		t.Errorf("%d faults, the last %q", n, faults[n-1])
	}
}

// TestLineEnds: a file from another system is read the same. (Here and not in testdata, where a checkout may change line ends.)
func TestLineEnds(t *testing.T) {
	const text = "models: [{id: m}]\ndiscovery: {static: {workers: [http://a:1]}}\n"
	want := mustParse(t, text)
	if diff := cmp.Diff(want, mustParse(t, strings.ReplaceAll(text, "\n", "\r\n"))); diff != "" {
		t.Error(diff)
	}
}

// TestReferenceIsFresh fails when docs/configuration.md is older than the schema.
func TestReferenceIsFresh(t *testing.T) {
	const name = "../../../docs/configuration.md"
	have, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != config.Reference() {
		t.Errorf("%s is stale: run go generate ./internal/gateway/config", name)
	}
}
