package gateway

import (
	"encoding/json"
	"net/http"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/followed"
)

// followed is what is said of the streams that fill the index.
func (p *prefixes) followed() followed.Followed {
	return followed.Followed{Events: p.follower, Managers: p.managers, Store: p.store}
}

// serveStatus answers GET /debug/prefixes: which engines are exact, which are not, why and since when, and the gateways that are heard.
func (p *prefixes) serveStatus(w http.ResponseWriter, _ *http.Request) {
	answer := struct {
		followed.Answer
		Peers []PeerStatus `json:"peers,omitempty"`
	}{p.followed().Answer(), describePeers(p.others.Load())}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // a client that has left needs no answer
}
