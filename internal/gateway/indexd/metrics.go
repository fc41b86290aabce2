package indexd

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc/codes"
)

// metrics are the service's. Label values are methods, statuses, models' base names and states.
type metrics struct {
	registry *prometheus.Registry
	calls    *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

// callBuckets span a look-up in memory and a snapshot of a large engine, in seconds.
var callBuckets = []float64{2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 2e-2, .1, 1, 10}

func newMetrics(s *Service) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		calls:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "perigee_index_calls_total", Help: "Calls that are over, by method and gRPC status."}, []string{"method", "code"}),
		seconds:  prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "perigee_index_call_seconds", Help: "Time in the service of calls that were answered.", Buckets: callBuckets}, []string{"method"}),
	}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), m.calls, m.seconds, state{s}, s.followed().Collector(), s.managers.Collector())
	return m
}

func (m *metrics) answered(method string, code codes.Code, took time.Duration) {
	m.calls.WithLabelValues(method, code.String()).Inc()
	if code == codes.OK {
		m.seconds.WithLabelValues(method).Observe(took.Seconds())
	}
}

// serverOf is the admin listener's.
func (m *metrics) serverOf(s *Service) *http.Server {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /debug/prefixes", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.followed().Answer()) // a client that has left needs no answer
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-s.keeper.Registered():
			_, _ = w.Write([]byte("ok\n"))
		default:
			http.Error(w, "not every engine was asked yet", http.StatusServiceUnavailable)
		}
	})
	return &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
}

// state says how things are when it is asked.
type state struct{ s *Service }

var (
	blocksDesc   = prometheus.NewDesc("perigee_index_blocks", "Blocks that some engine claims, by base model and block size.", []string{"model", "block_size"}, nil)
	streamsDesc  = prometheus.NewDesc("perigee_index_streams", "Streams of KV events, by state: exact, partial, repairing, blind.", []string{"state"}, nil)
	inFlightDesc = prometheus.NewDesc("perigee_index_in_flight", "Calls under way.", []string{"method"}, nil)
)

// Describe implements prometheus.Collector.
func (state) Describe(ch chan<- *prometheus.Desc) {
	ch <- blocksDesc
	ch <- streamsDesc
	ch <- inFlightDesc
}

// Collect implements prometheus.Collector.
func (c state) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, d := range c.s.store.Stats() {
		gauge(blocksDesc, float64(d.Blocks), d.Base, strconv.Itoa(d.BlockSize))
	}
	states := map[string]int{}
	for _, st := range c.s.followed().Answer().Streams {
		states[st.State]++
	}
	for name, n := range states {
		gauge(streamsDesc, float64(n), name)
	}
	lookups, snapshots := c.s.server.InFlight()
	gauge(inFlightDesc, float64(lookups), "Lookup")
	gauge(inFlightDesc, float64(snapshots), "Snapshot")
}
