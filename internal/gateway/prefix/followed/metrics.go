package followed

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/events"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/wire"
	"github.com/perigee-llm/perigee/internal/telemetry"
)

// collector shows how the engines' events are followed and what the indexes hold.
type collector struct {
	f                                   Followed
	trust, lag, waiting, connected      *prometheus.Desc
	batches, happenings, bad, news      *prometheus.Desc
	blocks, sets, dead                  *prometheus.Desc
	loadConnected, loadReports, loadBad *prometheus.Desc
}

// Collector shows it as perigee_kv_events_…, perigee_load_stream_… and perigee_prefix_index_… .
func (f Followed) Collector() prometheus.Collector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("perigee_"+name, help, labels, nil)
	}
	return &collector{
		f:          f,
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
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.trust, c.lag, c.waiting, c.connected, c.batches, c.happenings, c.bad, c.news, c.blocks, c.sets, c.dead,
		c.loadConnected, c.loadReports, c.loadBad,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	put := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, t, v, labels...)
	}
	seen := map[string]bool{} // an engine that has just been registered anew is there twice for a moment
	for _, s := range c.f.Events.Status() {
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
			gauge(c.loadConnected, telemetry.Truth(l.Connected))
			count(c.loadReports, l.Reports)
			count(c.loadBad, l.Bad, "unreadable")
			count(c.loadBad, l.Stale, "stale")
		}
	}
	for _, s := range c.f.Store.Stats() {
		size := strconv.Itoa(s.BlockSize)
		put(c.blocks, prometheus.GaugeValue, float64(s.Blocks), s.Base, size)
		put(c.sets, prometheus.GaugeValue, float64(s.Sets), s.Base, size)
		put(c.dead, prometheus.GaugeValue, float64(s.Dead), s.Base, size)
	}
}

type sink[V any] func(d *prometheus.Desc, v V, labels ...string)

func (c *collector) collectEvents(s *events.Status, gauge sink[float64], count sink[uint64]) {
	about, _, _ := c.f.Store.About(s.Engine, s.Rank)
	is, _, _ := standing(s, about.State)
	for _, state := range standings {
		gauge(c.trust, telemetry.Truth(state == is), state)
	}
	gauge(c.connected, telemetry.Truth(s.Stream.Connected))
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
