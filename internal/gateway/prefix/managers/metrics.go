package managers

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/wire"
	"github.com/perigee-llm/perigee/internal/telemetry"
)

// collector shows how Cache Managers are followed.
type collector struct {
	f                                            *Follower
	state, connected, lag                        *prometheus.Desc
	namespaces, attachments, claims, cutOff      *prometheus.Desc
	batches, happenings, happened, bad, newsDesc *prometheus.Desc
}

// Collector shows how the Managers are followed, as perigee_manager_… .
func (f *Follower) Collector() prometheus.Collector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("perigee_manager_"+name, help, append([]string{"manager"}, labels...), nil)
	}
	return &collector{
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
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.state, c.connected, c.lag, c.namespaces, c.attachments, c.claims, c.cutOff, c.batches, c.happenings, c.happened, c.bad, c.newsDesc,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for _, s := range c.f.Status() {
		gauge := func(d *prometheus.Desc, v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{s.ID}, labels...)...)
		}
		count := func(d *prometheus.Desc, n uint64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), append([]string{s.ID}, labels...)...)
		}
		is := s.Standing()
		for _, state := range [...]string{"exact", "partial", "repairing", "blind"} {
			gauge(c.state, telemetry.Truth(state == is), state)
		}
		gauge(c.connected, telemetry.Truth(s.Stream.Connected))
		if s.Lag > 0 {
			gauge(c.lag, s.Lag.Seconds())
		}
		gauge(c.namespaces, float64(s.Namespaces))
		gauge(c.attachments, float64(s.Attachments))
		gauge(c.claims, float64(s.Claims))
		gauge(c.cutOff, telemetry.Truth(s.CutOff != ""))
		c.collectCounts(&s, count)
	}
}

func (c *collector) collectCounts(s *Status, count func(d *prometheus.Desc, n uint64, labels ...string)) {
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

// Standing says how far the Manager is to be believed, in words for people: exact, partial, repairing or blind.
func (s *Status) Standing() string {
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
