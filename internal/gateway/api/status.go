package api

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/explain"
	"github.com/perigee-llm/perigee/internal/gateway/keyring"
	"github.com/perigee-llm/perigee/internal/gateway/load"
)

func writeJSON(w http.ResponseWriter, status int, v any) {
	text, err := json.Marshal(v)
	if err != nil { // our own types
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n'))
}

// healthz says that the process serves. It looks at nothing else: a restart would not bring engines back.
func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

// readyz says whether traffic should come here: not while draining, and only if at least one model can be served. One model
// without engines does not take the others away.
//
// Where callers need a key, those without one do not learn the models' names here either.
func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	v := s.current.Load()
	s.ready(w, v, v.Keys == nil)
}

func (s *Server) adminReadyz(w http.ResponseWriter, _ *http.Request) {
	v := s.current.Load()
	s.ready(w, v, v.AdminKeys == nil)
}

func (s *Server) ready(w http.ResponseWriter, v *served, tell bool) {
	if s.draining.Load() {
		errDraining.Write(w)
		return
	}
	ready, models := false, map[string]bool{}
	for _, m := range v.Models {
		models[m.ID] = s.usable(m)
		ready = ready || models[m.ID]
	}
	status := http.StatusOK
	if !ready {
		status = http.StatusServiceUnavailable
	}
	answer := map[string]any{"ready": ready}
	if tell {
		answer["models"] = models
	}
	writeJSON(w, status, answer)
}

// usable tells whether some bucket of the model has a live plain engine or a live pair.
func (s *Server) usable(m *Model) bool {
	view, req := s.Registry.View(), &bucket.Request{Now: time.Now()}
	for _, b := range m.Resolver.Buckets() {
		whole := true
		for _, g := range b.Groups() {
			whole = whole && g.Live(view, req) > 0
		}
		if whole {
			return true
		}
	}
	return false
}

type modelEntry struct {
	ID      string  `json:"id"`
	Object  string  `json:"object"`
	Created int64   `json:"created"`
	OwnedBy string  `json:"owned_by"`
	Root    string  `json:"root"`
	Parent  *string `json:"parent"`
}

// listModels answers GET /v1/models: every model that the caller may use, and every alias with its model as root.
func (s *Server) listModels(w http.ResponseWriter, _ *http.Request, v *served, caller *keyring.Key) {
	list := struct {
		Object string       `json:"object"`
		Data   []modelEntry `json:"data"`
	}{Object: "list", Data: []modelEntry{}}
	for _, m := range v.Models {
		if !v.allows(caller, m) {
			continue
		}
		for _, name := range m.names() {
			list.Data = append(list.Data, modelEntry{ID: name, Object: "model", Created: s.created, OwnedBy: "perigee", Root: m.ID})
		}
	}
	writeJSON(w, http.StatusOK, list)
}

func (s *Server) metricsHandler() http.Handler {
	return promhttp.HandlerFor(s.Metrics.Registry(), promhttp.HandlerOpts{})
}

// decisions answers GET /debug/decisions?request=ID&limit=N with the decision log, newest first.
func (s *Server) decisions(w http.ResponseWriter, r *http.Request) {
	q := explain.Query{RequestID: r.URL.Query().Get("request"), Limit: explain.DefaultLimit}
	if text := r.URL.Query().Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > explain.MaxLimit {
			s.refuse(w, badRequest("limit is a whole number from 1 to "+strconv.Itoa(explain.MaxLimit)))
			return
		}
		q.Limit = n
	}
	writeJSON(w, http.StatusOK, map[string]any{"decisions": s.Explain.Records(q)})
}

// WorkerStatus is one worker on GET /debug/workers. A number that is not known is null.
type WorkerStatus struct {
	ID            string          `json:"id"`
	URL           string          `json:"url"`
	Kind          string          `json:"kind"`
	Role          string          `json:"role"`
	Models        []string        `json:"models"`
	Version       string          `json:"version,omitempty"`
	Ranks         int             `json:"ranks,omitempty"`
	MaxContext    load.Count      `json:"max_context_tokens"`
	Breaker       string          `json:"breaker"`
	Failures      int             `json:"failures_in_a_row"`
	InFlight      int64           `json:"in_flight"`
	PrefillTokens int64           `json:"in_flight_prefill_tokens"`
	Report        *explain.Report `json:"report"` // null: none that is fresh and complete
}

func (s *Server) workers(w http.ResponseWriter, _ *http.Request) {
	now := time.Now()
	list := []WorkerStatus{}
	for x := range s.Registry.View().All() {
		state, failures := s.Registry.Breaker(x)
		list = append(list, WorkerStatus{
			ID: x.ID, URL: x.URL, Kind: x.Kind.String(), Role: x.Stage.String(), Models: x.Models, Version: x.Version,
			Ranks: x.Ranks, MaxContext: x.MaxContext, Breaker: state.String(), Failures: failures,
			InFlight: x.Load.Active(), PrefillTokens: x.Load.PrefillTokens(), Report: explain.ReportAt(x.Load.Report(now), now),
		})
	}
	writeJSON(w, http.StatusOK, map[string]any{"workers": list})
}
