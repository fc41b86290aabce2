package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Metrics are the gateway's counters and histograms. Make them with [New]; all may be used at once.
type Metrics struct {
	registry *prometheus.Registry
	vecs     []interface {
		DeletePartialMatch(labels prometheus.Labels) int
	}

	// Requests counts what arrives, Responses what was answered, by route, method and status.
	Requests, Responses *prometheus.CounterVec
	// Refused counts requests that the gateway answered itself, by error code.
	Refused *prometheus.CounterVec
	// ConnectionsCut counts clients' connections that the gateway ended, by listener and reason.
	ConnectionsCut *prometheus.CounterVec
	// WorkerRequests counts dispatches, and as errors those that did not happen because of the worker: worker, model, mode (plain, prefill,
	// decode), outcome.
	WorkerRequests *prometheus.CounterVec
	// Attempts counts new attempts after a forwarding failure, by reason.
	Attempts *prometheus.CounterVec
	// Duration is seconds from arrival to the end of the answer, TTFT to the first byte of a streamed one, by model.
	Duration, TTFT *prometheus.HistogramVec
	// SlowReaders counts answers that were cut off because the client did not read them in its time: model.
	SlowReaders *prometheus.CounterVec
	// Streams counts how streams ended: worker, model, outcome.
	Streams *prometheus.CounterVec
	// Decisions counts picks by policy and reason; SelectionFailures failed picks by policy and class, one for each group.
	Decisions, SelectionFailures *prometheus.CounterVec
	// SelectionSeconds is the time of a whole selection, all buckets.
	SelectionSeconds prometheus.Histogram
	// PrefixLookups counts look-ups of a prompt's prefix, by source and outcome: hit, miss, rejected, or why the source was
	// unavailable; PrefixLookupSeconds is how long one takes.
	PrefixLookups       *prometheus.CounterVec
	PrefixLookupSeconds *prometheus.HistogramVec
	// Stale counts requests that the janitor gave up; a pair is one.
	Stale *prometheus.CounterVec
	// Inputs counts requests by how their length was come by; InputIDs conversations by whether their ids were forwarded, or why not.
	Inputs, InputIDs *prometheus.CounterVec
	// NotEncoded counts requests whose input was not encoded though there is a tokenizer for it: model, reason.
	NotEncoded *prometheus.CounterVec
	// SamplingRejections counts violations of the sampling contract, by parameter.
	SamplingRejections *prometheus.CounterVec
	// Aborts counts /abort_request calls by result: sent, failed, dropped.
	Aborts *prometheus.CounterVec
	// KeyRequests counts completion requests by the name of the API key and the status of the answer.
	KeyRequests *prometheus.CounterVec
	// Reloads counts what became of attempts to take another configuration: applied, unchanged, refused. ReloadedAt is when
	// the one in use was taken (Unix seconds), and ReloadOK is 1 unless the last attempt was refused.
	Reloads              *prometheus.CounterVec
	ReloadedAt, ReloadOK prometheus.Gauge
	// LoadPolls counts load polls by worker and outcome.
	LoadPolls *prometheus.CounterVec
	// Spans counts spans of traces by what became of them.
	Spans *prometheus.CounterVec
	// Prompt, Cached and Completion count tokens as the engines' usage tells them, by model.
	Prompt, Cached, Completion *prometheus.CounterVec
}

// durationBuckets are sgl-router's, in seconds, extended to the request time-out: a long answer must not vanish in +Inf.
var durationBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}

// ttftBuckets are sgl-router's, in seconds.
var ttftBuckets = []float64{.005, .01, .025, .05, .1, .2, .4, .6, .8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400}

// selectionBuckets span a pick in memory (half a microsecond) to a remote look-up that timed out (0.1 s).
var selectionBuckets = []float64{5e-7, 1e-6, 2e-6, 5e-6, 1e-5, 1e-4, 1e-3, 1e-2, .1}

// New returns the metrics, registered on a registry of their own.
func New() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	// What the process itself takes: goroutines, heap, descriptors, resident memory.
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "perigee_" + name, Help: help}, labels)
		m.registry.MustRegister(c)
		m.vecs = append(m.vecs, c)
		return c
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "perigee_" + name, Help: help, Buckets: buckets}, labels)
		m.registry.MustRegister(h)
		m.vecs = append(m.vecs, h)
		return h
	}
	m.Requests = counter("requests_total", "Requests that arrived.", "route", "method")
	m.Responses = counter("responses_total", "Requests that were answered, by status.", "route", "method", "status_code")
	m.Refused = counter("refused_total", "Requests that the gateway answered with an error of its own, by code.", "code")
	m.ConnectionsCut = counter("client_connections_cut_total", "Connections of clients that the gateway ended: over_cap, tls_handshake, slow_head, bad_head, idle, made_room.", "listener", "reason")
	m.WorkerRequests = counter("worker_requests_total", "Requests dispatched to an engine, by outcome.", "worker", "model", "mode", "outcome")
	m.Attempts = counter("new_attempts_total", "New attempts after a forwarding failure, by what failed.", "reason")
	m.Duration = histogram("request_duration_seconds", "From the arrival of a request to the end of its answer.", durationBuckets, "model")
	m.TTFT = histogram("ttft_seconds", "From the arrival of a streamed request to the first byte of a 2xx answer's body.", ttftBuckets, "model")
	m.SlowReaders = counter("slow_readers_total", "Answers that were cut off because the client did not read them in its time.", "model")
	m.Streams = counter("stream_outcome_total", "How streamed answers ended.", "worker", "model", "outcome")
	m.Decisions = counter("policy_decisions_total", "Picks of an engine, by policy and reason. A pick is not a dispatch.", "policy", "reason")
	m.SelectionFailures = counter("policy_selection_failures_total", "Picks that failed, by policy and class, one for each group asked.", "policy", "reason")
	m.PrefixLookups = counter("prefix_lookups_total", "Look-ups of a prompt's prefix: hit, miss, rejected, or why the source was unavailable.", "source", "outcome")
	m.PrefixLookupSeconds = histogram("prefix_lookup_seconds", "One look-up of a prompt's prefix, the naming of its blocks included.", selectionBuckets, "source")
	m.Stale = counter("stale_requests_total", "Requests that outlived the stale time-out.", "outcome")
	m.Inputs = counter("inputs_total", "Requests by how the length of their input was come by.", "model", "source")
	m.InputIDs = counter("input_ids_forwarding_total", "Conversations by whether their token ids were forwarded, or why not.", "model", "outcome")
	m.NotEncoded = counter("inputs_not_encoded_total", "Requests whose input was not encoded though its model has a tokenizer: no_place, no_memory, long_word.", "model", "reason")
	m.SamplingRejections = counter("sampling_contract_rejections_total", "Violations of the sampling contract.", "param")
	m.Aborts = counter("aborts_total", "Abort calls to engines, by result.", "result")
	m.KeyRequests = counter("api_key_requests_total", "Completion requests that came with an API key, by its name and the answer's status.", "key", "status_code")
	m.Reloads = counter("config_reloads_total", "Attempts to take another configuration: applied, unchanged, refused.", "outcome")
	m.ReloadedAt = m.gauge("config_last_reload_timestamp_seconds", "When the configuration in use was taken, in Unix seconds.")
	m.ReloadOK = m.gauge("config_last_reload_successful", "1 unless the last attempt to take another configuration was refused.")
	m.LoadPolls = counter("load_polls_total", "Polls of an engine's load, by outcome.", "worker", "outcome")
	m.Spans = counter("spans_total", "Spans of traces, by what became of them: exported, or why they were dropped.", "outcome")
	m.Prompt = counter("prompt_tokens_total", "Prompt tokens as the engines count them.", "model")
	m.Cached = counter("cached_prompt_tokens_total", "Prompt tokens that the engines did not compute again.", "model")
	m.Completion = counter("completion_tokens_total", "Tokens that the engines generated.", "model")
	sel := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "perigee_selection_seconds", Help: "One whole selection over all buckets tried.", Buckets: selectionBuckets,
	})
	m.registry.MustRegister(sel)
	m.SelectionSeconds = sel
	return m
}

// Forget drops the series that have the value of a label: of a worker, a model or a key that is gone, so that the number of series stays
// bounded by what there is, however often that changes. A request that is still under way may bring one back.
func (m *Metrics) Forget(label, value string) {
	for _, v := range m.vecs {
		v.DeletePartialMatch(prometheus.Labels{label: value})
	}
}

func (m *Metrics) gauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "perigee_" + name, Help: help})
	m.registry.MustRegister(g)
	return g
}

// Registry returns the registry, for serving it and for further collectors.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// Truth is a gauge's value for what is so or is not: 1 or 0.
func Truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
