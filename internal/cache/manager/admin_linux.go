package manager

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/state"
	"github.com/perigee-llm/perigee/internal/cache/storage/pool"
)

// adminGrace is how long a stop waits for requests to the admin listener. None takes longer than an answer about all sessions.
const adminGrace = 2 * time.Second

// serveAdmin begins to serve at the admin listener.
func (m *Manager) serveAdmin(ln net.Listener) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{m}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("ok\n")) })
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		st := m.Status()
		reply(w, st.page())
	})
	mux.HandleFunc("GET /explain", m.explain)
	mux.HandleFunc("POST /flush", m.flush)
	mux.HandleFunc("POST /evict", m.evict)
	m.admin.addr = ln.Addr()
	m.admin.http = &http.Server{
		Handler: mux, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
	}
	m.wg.Go(func() {
		if err := m.admin.http.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			m.journal.say(slog.LevelError, "the admin listener failed", "err", err)
		}
	})
}

func (m *Manager) stopAdmin() error {
	if m.admin.http == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), adminGrace)
	defer cancel()
	if err := m.admin.http.Shutdown(ctx); err != nil {
		return m.admin.http.Close()
	}
	return nil
}

// AdminURL is where the admin listener is; "" without one.
func (m *Manager) AdminURL() string {
	if m.admin.addr == nil {
		return ""
	}
	return "http://" + m.admin.addr.String()
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.Encode(v)
}

// Status is what is going on. Bytes are of slots, if not said otherwise. What GET /status says of it is StatusPage.
type Status struct {
	Epoch         string
	UptimeSeconds float64
	Connections   int
	Pool          pool.Usage
	Usage         core.Usage
	Stats         core.Stats
	Spoiled       int64
	Sessions      []SessionStatus
	Arenas        []ArenaStatus
}

// SessionStatus is one instance.
type SessionStatus struct {
	Session   uint32 `json:"session"`
	Instance  string `json:"instance"`
	Model     string `json:"model"`
	Namespace string `json:"namespace"`
	// Lost says that it has gone, and that its processes may still touch the pool.
	Lost      bool  `json:"lost"`
	Processes []int `json:"processes"`
}

// ArenaStatus is one arena.
type ArenaStatus struct {
	ID        uint32 `json:"id"`
	Slots     uint32 `json:"slots"`
	SlotBytes uint32 `json:"slot_bytes"`
	WarmBytes uint64 `json:"warm_bytes"`
	Huge      bool   `json:"huge"`
	Instance  string `json:"instance"` // the last writer
	Vacant    bool   `json:"vacant"`
}

// Status returns what is going on. It does not walk over the pool's books.
func (m *Manager) Status() Status {
	m.mem.RLock()
	defer m.mem.RUnlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	st := Status{
		Epoch: fmt.Sprintf("%016x", m.epoch), UptimeSeconds: m.now().Seconds(), Connections: m.server.Conns(), Pool: m.pool.Usage(),
		Usage: m.mu.core.Usage(), Stats: m.mu.core.Stats(), Spoiled: m.counts.spoiled.Load(), Sessions: []SessionStatus{}, Arenas: []ArenaStatus{},
	}
	for _, n := range slices.Sorted(maps.Keys(m.mu.sessions)) {
		s := m.mu.sessions[n]
		one := SessionStatus{Session: n, Instance: s.instance, Model: s.model, Namespace: state.NamespaceID(s.namespace).String(), Lost: s.lost, Processes: []int{}}
		for _, p := range s.procs {
			if !p.gone {
				one.Processes = append(one.Processes, p.pid)
			}
		}
		st.Sessions = append(st.Sessions, one)
	}
	for _, h := range m.mu.holdings {
		for _, id := range h.ids {
			if a := m.mem.arenas[id]; a != nil {
				st.Arenas = append(st.Arenas, ArenaStatus{id, a.Shape.Slots, a.Shape.SlotBytes, a.Warm(), a.Huge, h.instance, h.writer == nil})
			}
		}
	}
	return st
}

func (m *Manager) flush(w http.ResponseWriter, r *http.Request) {
	var n core.Namespace
	if text := r.URL.Query().Get("namespace"); text != "" {
		d, err := state.ParseDigest(text)
		if err != nil {
			http.Error(w, "namespace: "+err.Error(), http.StatusBadRequest)
			return
		}
		n = core.Namespace(d)
	}
	reply(w, map[string]int64{"dropped": m.Flush(n)})
}

func (m *Manager) evict(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(r.URL.Query().Get("blocks"))
	if err != nil || n < 1 {
		http.Error(w, "blocks: how many of each arena, above 0", http.StatusBadRequest)
		return
	}
	reply(w, map[string]int64{"dropped": m.Evict(n)})
}

// explain answers GET /explain?request=ID, ?session=N&op=N, or ?block=HEX.
func (m *Manager) explain(w http.ResponseWriter, r *http.Request) {
	x, code, text := m.explained(r.URL.Query())
	if code != http.StatusOK {
		http.Error(w, text, code)
		return
	}
	reply(w, x)
}

// explained makes the answer under the lock; who asked may take his time to read it.
func (m *Manager) explained(q url.Values) (x any, code int, fault string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if text := q.Get("block"); text != "" {
		b, err := hex.DecodeString(text)
		if err != nil || len(b) != len(core.Hash{}) {
			return nil, http.StatusBadRequest, "block: 64 hexadecimal digits"
		}
		return m.mu.story.explain(m.now(), core.Hash(b)), http.StatusOK, ""
	}
	if id, instance := q.Get("request"), q.Get("instance"); id != "" || instance != "" {
		out := []QueryExplanation{}
		m.mu.story.requests(id, instance, explainMost, func(a *asked) { out = append(out, m.explainQuery(a)) })
		return out, http.StatusOK, ""
	}
	session, err := strconv.ParseUint(q.Get("session"), 10, 32)
	op, err2 := strconv.ParseUint(q.Get("op"), 10, 64)
	if err != nil || err2 != nil {
		return nil, http.StatusBadRequest, "want request=ID, instance=NAME, session=N&op=N, or block=HEX"
	}
	a := m.mu.story.query(uint32(session), op)
	if a == nil {
		return nil, http.StatusNotFound, "no such query is remembered"
	}
	return m.explainQuery(a), http.StatusOK, ""
}

// fieldName is a field's name for people: an option's own in the place of its number.
func fieldName(field string, n *state.Namespace) string {
	var i int
	if _, err := fmt.Sscanf(field, "compute.options[%d].value", &i); err == nil && i < len(n.Compute.Options) {
		return "compute.options " + n.Compute.Options[i].Name
	}
	return field
}

// explainMost is how many queries of one request are told: an engine asks once or, after a preemption, twice, and a request has few engines.
const explainMost = 16

func (m *Manager) explainQuery(a *asked) QueryExplanation {
	x := QueryExplanation{
		Instance: a.Instance, Session: a.Session, Op: a.Ticket.Op, Request: a.Request, Mode: modes[a.Mode], SecondsAgo: (m.now() - a.At).Seconds(), Asked: a.Asked, Hits: a.Hits, Answer: a.Answer,
		TookMicros: a.Took.Microseconds(), Others: map[string]string{},
	}
	if h := a.missing(); h != nil {
		first := m.mu.story.explain(m.now(), *h)
		x.First = &first
	}
	s := m.mu.sessions[a.Session]
	for _, o := range m.mu.sessions {
		if s != nil && o.namespace != s.namespace {
			if d := state.Differences(&s.rank0, &o.rank0); len(d) > 0 {
				x.Others[o.instance] = fieldName(d[0].Name, &s.rank0)
			}
		}
	}
	return x
}
