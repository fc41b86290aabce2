package gateway

import (
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/api/body"
	"github.com/perigee-llm/perigee/internal/gateway/config"
)

// TestGuardedKeys: each guarded field has exactly one name by which it can be allowed, and without one it is guarded.
func TestGuardedKeys(t *testing.T) {
	if got := guardedKeys(nil); got != body.ProtectedKeys {
		t.Errorf("without exceptions %b is guarded, want %b", got, body.ProtectedKeys)
	}
	if got := guardedKeys(config.GuardedFields); got != 0 {
		t.Errorf("with every name allowed %b is still guarded", got)
	}
	var seen body.Keys
	for _, name := range config.GuardedFields {
		freed := body.ProtectedKeys &^ guardedKeys([]string{name})
		if freed == 0 || freed&seen != 0 {
			t.Errorf("%s frees %b, of which other names free %b", name, freed, freed&seen)
		}
		seen |= freed
	}
	if got, want := body.ProtectedKeys&^guardedKeys([]string{"routed_dp_rank"}), body.KeysOf(body.RoutedDPRank, body.DataParallelRank); got != want {
		t.Errorf("routed_dp_rank frees %b, want %b", got, want)
	}
}

// TestClientTimeouts: what clients are held to is the configuration's, for a reload too.
func TestClientTimeouts(t *testing.T) {
	c, faults := config.Parse("x.yaml", []byte(`
models: [{id: m}]
server: {clients: {body_timeout: 7s, send_timeout: 9s, max_requests: 3, max_streams: 5}}
discovery: {static: {workers: ["http://a:1"]}}
`))
	if c == nil {
		t.Fatal(faults)
	}
	if s := buildSettings(c); s.BodyStall != 7*time.Second || s.ClientStall != 9*time.Second {
		t.Errorf("%v, %v", s.BodyStall, s.ClientStall)
	}
	if l := c.Server.Clients; l.MaxRequests != 3 || l.MaxStreams != 5 {
		t.Errorf("%+v", l)
	}
}
