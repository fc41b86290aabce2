package gateway

import (
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/wire"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/managers"
)

// managerTargets are the Cache Managers that the configuration names.
func managerTargets(c *config.Config) (out []managers.Target) {
	for _, m := range c.Managers {
		out = append(out, managers.Target{ID: m.ID, Events: m.Events, Replay: m.Replay, Snapshot: m.Snapshot})
	}
	return out
}

// managerCollector shows how Cache Managers are followed.
type managerCollector struct {
	f                                            *managers.Follower
	state, connected, lag                        *prometheus.Desc
	namespaces, attachments, claims, cutOff      *prometheus.Desc
	batches, happenings, happened, bad, newsDesc *prometheus.Desc
}

func newManagerCollector(f *managers.Follower) *managerCollector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("perigee_manager_"+name, help, append([]string{"manager"}, labels...), nil)
	}
	return &managerCollector{
		f:           f,
		state:       d("stream_state", "1 for the state that the Cache Manager's stream is in: exact, partial (what it claims can be restored, and perhaps more), repairing, blind; 0 for the others.", "state"),
		connected:   d("connected", "1 while the subscription's connection is there."),
		lag:         d("lag_seconds", "From the Manager's making its last batch to its being applied, by both clocks; absent before the first."),
		namespaces:  d("namespaces", "Namespaces, by model and block size, in which it has blocks."),
		attachments: d("attachments", "Registrations of engines, by namespace."),
		claims:      d("claims", "Blocks that it can restore, by medium."),
		cutOff:      d("cut_off", "1 while it counts for nothing because it has too much of something."),
		batches:     d("batches_total", "Batches: applied, duplicate, dropped (we were too slow), unreadable, oversize.", "outcome"),
		happenings:  d("stream_total", "What happened to the stream: gap, replay, loss (for good), restart, withdrawn (believed no longer), break, snapshot, bad_snapshot, resync.", "what"),
		happened:    d("events_total", "Events, by kind.", "kind"),
		bad:         d("bad_total", "Events that were of no use, by class; stray: a price of an engine that is not attached; full: a block for which the index had no room.", "class"),
		newsDesc:    d("blocks_total", "Blocks of which events said something new."),
	}
}

// Describe implements prometheus.Collector.
func (c *managerCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.state, c.connected, c.lag, c.namespaces, c.attachments, c.claims, c.cutOff, c.batches, c.happenings, c.happened, c.bad, c.newsDesc,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *managerCollector) Collect(ch chan<- prometheus.Metric) {
	for _, s := range c.f.Status() {
		gauge := func(d *prometheus.Desc, v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{s.ID}, labels...)...)
		}
		count := func(d *prometheus.Desc, n uint64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), append([]string{s.ID}, labels...)...)
		}
		is := managerStanding(&s)
		for _, state := range standings {
			gauge(c.state, truth(state == is), state)
		}
		gauge(c.connected, truth(s.Stream.Connected))
		if s.Lag > 0 {
			gauge(c.lag, s.Lag.Seconds())
		}
		gauge(c.namespaces, float64(s.Namespaces))
		gauge(c.attachments, float64(s.Attachments))
		gauge(c.claims, float64(s.Claims))
		gauge(c.cutOff, truth(s.CutOff != ""))
		c.collectCounts(&s, count)
	}
}

func (c *managerCollector) collectCounts(s *managers.Status, count sink[uint64]) {
	k := &s.Counts
	count(c.batches, s.Stream.Applied, "applied")
	count(c.batches, s.Stream.Duplicates, "duplicate")
	count(c.batches, s.Dropped, "dropped")
	count(c.batches, k.BadBatches+s.BadMessages, "unreadable")
	count(c.batches, s.Oversize, "oversize")
	count(c.happenings, s.Stream.Gaps, "gap")
	count(c.happenings, s.Stream.Asks, "replay")
	count(c.happenings, s.Stream.Losses, "loss")
	count(c.happenings, s.Stream.Restarts, "restart")
	count(c.happenings, s.Stream.Hides, "withdrawn")
	count(c.happenings, s.Breaks, "break")
	count(c.happenings, k.Snapshots, "snapshot")
	count(c.happenings, k.BadSnapshots+k.Foreign, "bad_snapshot")
	count(c.happenings, k.Resyncs, "resync")
	count(c.happened, k.Stored, "stored")
	count(c.happened, k.Removed, "removed")
	count(c.happened, k.Cleared, "cleared")
	count(c.happened, k.Attached, "attached")
	count(c.happened, k.Detached, "detached")
	count(c.happened, k.Costs, "cost")
	count(c.bad, k.Strays, "stray")
	count(c.bad, k.Full, "full")
	for class, n := range k.Bad {
		if n > 0 {
			count(c.bad, n, wire.Class(class).String())
		}
	}
	count(c.newsDesc, k.Blocks)
}

// managerStanding says how far a Manager is to be believed, in the words of [standings].
func managerStanding(s *managers.Status) string {
	switch {
	case s.CutOff != "" || s.Stream.State == stream.Blind:
		return "blind"
	case s.Stream.State == stream.Repairing:
		return "repairing"
	case !s.Stream.Whole:
		return "partial"
	}
	return "exact"
}

// ManagerStatus is one Cache Manager as GET /debug/prefixes shows it.
type ManagerStatus struct {
	Manager string `json:"manager"`
	// Says is its own name for itself; Epoch its incarnation, 0 while nothing has come.
	Says  string `json:"says,omitempty"`
	Epoch uint64 `json:"epoch,omitempty,string"` // JSON's numbers lose some of its 64 bits
	State string `json:"state"`
	// Why says why it is not exact, Since since when it is so.
	Why         string     `json:"why,omitempty"`
	Since       *time.Time `json:"since,omitempty"`
	Connected   bool       `json:"connected"`
	Next        int64      `json:"next_batch"`
	LagMS       float64    `json:"lag_ms,omitempty"`
	Namespaces  int        `json:"namespaces"`
	Attachments int        `json:"attachments"`
	Blocks      int        `json:"blocks"`
	Applied     uint64     `json:"batches_applied"`
	Gaps        uint64     `json:"gaps"`
	Snapshots   uint64     `json:"snapshots"`
	Losses      uint64     `json:"losses"`
	Restarts    uint64     `json:"restarts"`
	Fault       string     `json:"fault,omitempty"`
}

func describeManager(s *managers.Status) ManagerStatus {
	d := ManagerStatus{
		Manager: s.ID, Says: s.Manager, Epoch: s.Epoch, State: managerStanding(s), Connected: s.Stream.Connected, Next: s.Stream.Next,
		LagMS: float64(s.Lag.Microseconds()) / 1e3, Namespaces: s.Namespaces, Attachments: s.Attachments, Blocks: s.Claims,
		Applied: s.Stream.Applied, Gaps: s.Stream.Gaps, Snapshots: s.Counts.Snapshots, Losses: s.Stream.Losses, Restarts: s.Stream.Restarts,
	}
	why, since := s.Stream.Why.String(), s.Stream.Since
	if d.State == "partial" {
		why, since = s.Stream.PartWhy.String(), s.Stream.PartSince
	}
	if s.CutOff != "" {
		why = string(s.CutOff)
	}
	if d.Why = why; !since.IsZero() {
		d.Since = &since
	}
	if s.Fault != nil {
		d.Fault = s.Fault.Error()
	}
	return d
}

// Text describes the Manager in a line or two, for people.
func (s *ManagerStatus) Text(now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Cache Manager %s: %s", s.Manager, s.State)
	if s.Why != "" {
		fmt.Fprintf(&b, " (%s)", strings.ReplaceAll(s.Why, "_", " "))
	}
	if s.Since != nil {
		fmt.Fprintf(&b, " for %v", now.Sub(*s.Since).Round(time.Second))
	}
	fmt.Fprintf(&b, "; can restore %d blocks of %d namespaces, %d attachments; %d batches, %d gaps, %d snapshots, %d losses, %d restarts\n",
		s.Blocks, s.Namespaces, s.Attachments, s.Applied, s.Gaps, s.Snapshots, s.Losses, s.Restarts)
	if s.Fault != "" {
		fmt.Fprintf(&b, "  %s\n", s.Fault)
	}
	return b.String()
}
