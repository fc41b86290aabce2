package api

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
)

// collector reads the gauges of the fleet when somebody scrapes, so that they cost nothing in between.
type collector struct {
	s *Server

	workers, health, breaker, inflight, load, reportAge, requests, guards, buffered *prometheus.Desc
}

func newCollector(s *Server) *collector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("perigee_"+name, help, labels, nil)
	}
	return &collector{
		s:         s,
		workers:   d("workers", "Registered workers, by mode.", "mode"),
		health:    d("worker_health", "1 if the worker's breaker would let a request through now, else 0.", "worker"),
		breaker:   d("worker_breaker_state", "0 closed, 1 open, 2 half-open.", "worker"),
		inflight:  d("worker_inflight_requests", "Requests that this gateway has in flight on the worker.", "worker"),
		load:      d("active_load", "Input tokens of prefill requests and number of decode requests in flight on the worker.", "worker", "kind"),
		reportAge: d("worker_report_age_seconds", "Age of the worker's load report; absent without a fresh and complete one.", "worker"),
		requests:  d("active_requests", "Completion requests under way in this gateway."),
		guards:    d("guards", "Places in engines' accounts that are held."),
		buffered:  d("buffered_bytes", "Bytes of request bodies that are held."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.workers, c.health, c.breaker, c.inflight, c.load, c.reportAge, c.requests, c.guards, c.buffered} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	now := time.Now()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	modes := map[fleet.Stage]int{fleet.Plain: 0, fleet.Prefill: 0, fleet.Decode: 0}
	for w := range c.s.Registry.View().All() {
		modes[w.Stage]++
		state, _ := c.s.Registry.Breaker(w)
		healthy := 0.0
		if c.s.Registry.Admits(w, now) {
			healthy = 1
		}
		gauge(c.health, healthy, w.ID)
		gauge(c.breaker, float64(state), w.ID)
		gauge(c.inflight, float64(w.Load.Active()), w.ID)
		gauge(c.load, float64(w.Load.PrefillTokens()), w.ID, "prefill_tokens")
		gauge(c.load, float64(w.Load.DecodeRequests()), w.ID, "decode_requests")
		if r := w.Load.Report(now); r != nil {
			gauge(c.reportAge, now.Sub(r.At).Seconds(), w.ID)
		}
	}
	for mode, n := range modes {
		gauge(c.workers, float64(n), mode.String())
	}
	gauge(c.requests, float64(c.s.Active()))
	gauge(c.guards, float64(c.s.Tracker.Held()))
	gauge(c.buffered, float64(c.s.buffered.Load()))
}
