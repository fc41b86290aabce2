package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/events"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/wire"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
)

// prefixCollector shows how the engines' events are followed and what the indexes hold.
type prefixCollector struct {
	p                                   *prefixes
	trust, lag, waiting, connected      *prometheus.Desc
	batches, happenings, bad, news      *prometheus.Desc
	blocks, sets, dead                  *prometheus.Desc
	loadConnected, loadReports, loadBad *prometheus.Desc
}

func newPrefixCollector(p *prefixes) *prefixCollector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("perigee_"+name, help, labels, nil)
	}
	return &prefixCollector{
		p:          p,
		trust:      d("kv_events_stream_state", "1 for the state that the rank's KV event stream is in: exact, partial (what it claims is held, and perhaps more), repairing, blind; 0 for the others.", "worker", "rank", "state"),
		lag:        d("kv_events_lag_seconds", "From the engine's making its last batch to its being applied, by both clocks; absent before the first.", "worker", "rank"),
		waiting:    d("kv_events_waiting_messages", "Messages that wait to be applied.", "worker", "rank"),
		connected:  d("kv_events_connected", "1 while the stream's connection is there.", "worker", "rank"),
		batches:    d("kv_events_batches_total", "Batches: applied, duplicate, dropped (our queue was full), unreadable, oversize.", "worker", "rank", "outcome"),
		happenings: d("kv_events_stream_total", "What happened to the stream: gap, replay, loss (for good), restart, withdrawn (believed no longer), unanswered (nobody said whether the last batches came), break.", "worker", "rank", "what"),
		bad:        d("kv_events_bad_total", "Events that were of no use, by class.", "worker", "rank", "class"),
		news:       d("kv_events_blocks_total", "Blocks of which events said something new.", "worker", "rank"),
		blocks:     d("prefix_index_blocks", "Blocks in the index, those of dropped claims that are not yet freed included.", "model", "block_size"),
		sets:       d("prefix_index_holder_sets", "Different sets of holders that blocks have.", "model", "block_size"),
		dead:       d("prefix_index_dropped_claims", "Dropped claims whose memory is not yet freed.", "model", "block_size"),

		loadConnected: d("load_stream_connected", "1 while the engine's load stream is there.", "worker", "rank"),
		loadReports:   d("load_stream_reports_total", "Reports of load streams that were used.", "worker", "rank"),
		loadBad:       d("load_stream_bad_total", "Messages of load streams that were of no use: unreadable, stale.", "worker", "rank", "class"),
	}
}

// Describe implements prometheus.Collector.
func (c *prefixCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.trust, c.lag, c.waiting, c.connected, c.batches, c.happenings, c.bad, c.news, c.blocks, c.sets, c.dead,
		c.loadConnected, c.loadReports, c.loadBad,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *prefixCollector) Collect(ch chan<- prometheus.Metric) {
	put := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, t, v, labels...)
	}
	seen := map[string]bool{} // an engine that has just been registered anew is there twice for a moment
	for _, s := range c.p.follower.Status() {
		if key := s.ID + "\x00" + strconv.Itoa(int(s.Rank)); seen[key] {
			continue
		} else {
			seen[key] = true
		}
		rank := strconv.Itoa(int(s.Rank))
		gauge := func(d *prometheus.Desc, v float64, labels ...string) {
			put(d, prometheus.GaugeValue, v, append([]string{s.ID, rank}, labels...)...)
		}
		count := func(d *prometheus.Desc, n uint64, labels ...string) {
			put(d, prometheus.CounterValue, float64(n), append([]string{s.ID, rank}, labels...)...)
		}
		if s.Prefix {
			c.collectEvents(&s, gauge, count)
		}
		if l := s.Load; l != nil {
			gauge(c.loadConnected, truth(l.Connected))
			count(c.loadReports, l.Reports)
			count(c.loadBad, l.Bad, "unreadable")
			count(c.loadBad, l.Stale, "stale")
		}
	}
	for _, s := range c.p.store.Stats() {
		size := strconv.Itoa(s.BlockSize)
		put(c.blocks, prometheus.GaugeValue, float64(s.Blocks), s.Base, size)
		put(c.sets, prometheus.GaugeValue, float64(s.Sets), s.Base, size)
		put(c.dead, prometheus.GaugeValue, float64(s.Dead), s.Base, size)
	}
}

type sink[V any] func(d *prometheus.Desc, v V, labels ...string)

func (c *prefixCollector) collectEvents(s *events.Status, gauge sink[float64], count sink[uint64]) {
	about, _, _ := c.p.store.About(s.Engine, s.Rank)
	is, _, _ := standing(s, about.State)
	for _, state := range standings {
		gauge(c.trust, truth(state == is), state)
	}
	gauge(c.connected, truth(s.Stream.Connected))
	gauge(c.waiting, float64(s.Waiting))
	if s.Lag > 0 {
		gauge(c.lag, s.Lag.Seconds())
	}
	count(c.batches, s.Stream.Applied, "applied")
	count(c.batches, s.Stream.Duplicates, "duplicate")
	count(c.batches, s.Events.Dropped, "dropped")
	count(c.batches, s.Events.BadBatches+s.Events.BadMessages, "unreadable")
	count(c.batches, s.Events.Oversize, "oversize")
	count(c.happenings, s.Stream.Gaps, "gap")
	count(c.happenings, s.Stream.Asks, "replay")
	count(c.happenings, s.Stream.Losses, "loss")
	count(c.happenings, s.Stream.Restarts, "restart")
	count(c.happenings, s.Stream.Hides, "withdrawn")
	count(c.happenings, s.Stream.Unanswered, "unanswered")
	count(c.happenings, s.Events.Breaks, "break")
	count(c.bad, s.Events.Orphans, "orphan")
	count(c.bad, s.Events.Refused, "refused")
	for class, n := range s.Events.Bad {
		if n > 0 {
			count(c.bad, n, wire.Class(class).String())
		}
	}
	count(c.news, s.Events.Blocks)
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// standings are what a stream can be, in words for people: see standing.
var standings = []string{"exact", "partial", "repairing", "blind"}

// standing says how far an engine's rank is to be believed, and if it is not exact why, and since when if that is known. The stream may have brought
// everything, and the index still not have it all: there was no room for it, or a KV group that it does not follow.
func standing(s *events.Status, kept index.State) (is, why string, since time.Time) {
	switch {
	case s.CutOff:
		return "blind", "claims_too_much", s.CutOffSince
	case s.Stream.State == stream.Blind:
		return "blind", s.Stream.Why.String(), s.Stream.Since
	case s.Stream.State == stream.Repairing:
		return "repairing", s.Stream.Why.String(), s.Stream.Since
	case !s.Stream.Whole:
		return "partial", s.Stream.PartWhy.String(), s.Stream.PartSince
	case kept == index.Partial:
		return "partial", "not_all_indexed", time.Time{}
	}
	return "exact", "", s.Stream.Since
}

// PrefixStatus is one rank's stream as GET /debug/prefixes shows it.
type PrefixStatus struct {
	Worker string `json:"worker"`
	Rank   int32  `json:"rank"`
	State  string `json:"state"`
	// Why says why it is not exact, Since since when it is so.
	Why       string     `json:"why,omitempty"`
	Since     *time.Time `json:"since,omitempty"`
	Connected bool       `json:"connected"`
	Next      int64      `json:"next_batch"`
	Waiting   int        `json:"waiting_messages"`
	LagMS     float64    `json:"lag_ms,omitempty"`
	Blocks    int        `json:"blocks"`
	BlockSize int        `json:"block_size,omitempty"`
	Applied   uint64     `json:"batches_applied"`
	Gaps      uint64     `json:"gaps"`
	Losses    uint64     `json:"losses"`
	Restarts  uint64     `json:"restarts"`
	Load      string     `json:"load_stream,omitempty"`
	Fault     string     `json:"fault,omitempty"`
}

// serveStatus answers GET /debug/prefixes: which engines are exact, which are not, why and since when.
func (p *prefixes) serveStatus(w http.ResponseWriter, _ *http.Request) {
	out := []PrefixStatus{}
	for _, s := range p.follower.Status() {
		out = append(out, p.describe(&s))
	}
	answer := map[string]any{"streams": out}
	if all := p.managers.Status(); len(all) > 0 {
		described := make([]ManagerStatus, len(all))
		for i := range all {
			described[i] = describeManager(&all[i])
		}
		answer["managers"] = described
	}
	if all := describePeers(p.others.Load()); len(all) > 0 {
		answer["peers"] = all
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // a client that has left needs no answer
}

// Text describes the stream in a line or two, for people.
func (s *PrefixStatus) Text(now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s rank %d: %s", s.Worker, s.Rank, strings.ReplaceAll(s.State, "_", " "))
	if s.Why != "" {
		fmt.Fprintf(&b, " (%s)", strings.ReplaceAll(s.Why, "_", " "))
	}
	if s.Since != nil {
		fmt.Fprintf(&b, " for %v", now.Sub(*s.Since).Round(time.Second))
	}
	if s.BlockSize > 0 {
		fmt.Fprintf(&b, "; holds %d blocks of %d tokens", s.Blocks, s.BlockSize)
	}
	fmt.Fprintf(&b, "; %d batches, %d gaps, %d losses, %d restarts", s.Applied, s.Gaps, s.Losses, s.Restarts)
	if s.Load != "" {
		fmt.Fprintf(&b, "; load stream %s", s.Load)
	}
	b.WriteString("\n")
	if s.Fault != "" {
		fmt.Fprintf(&b, "  %s\n", s.Fault)
	}
	return b.String()
}

func (p *prefixes) describe(s *events.Status) PrefixStatus {
	d := PrefixStatus{Worker: s.ID, Rank: s.Rank, State: "not_wanted", Next: -1}
	if s.Prefix {
		about, size, there := p.store.About(s.Engine, s.Rank)
		if there {
			d.Blocks, d.BlockSize = about.Claims, size
		}
		var since time.Time
		if d.State, d.Why, since = standing(s, about.State); !since.IsZero() {
			d.Since = &since
		}
		d.Connected, d.Next, d.Waiting = s.Stream.Connected, s.Stream.Next, s.Waiting
		d.LagMS = float64(s.Lag.Microseconds()) / 1e3
		d.Applied, d.Gaps, d.Losses, d.Restarts = s.Stream.Applied, s.Stream.Gaps, s.Stream.Losses, s.Stream.Restarts
	}
	if l := s.Load; l != nil {
		if d.Load = "broken"; l.Connected {
			d.Load = "connected"
		}
	}
	if s.Fault != nil {
		d.Fault = s.Fault.Error()
	}
	return d
}
