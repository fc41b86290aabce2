package gateway

import (
	"bytes"
	"maps"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/tracing"
	"github.com/perigee-llm/perigee/internal/telemetry"
)

// collectorFiles is what the files hold that are presented to a collector of spans, or by which it is known.
type collectorFiles struct {
	headers     map[string]string // nil: there is no file
	authorities []byte            // PEM; nil: there is no file
}

func readCollectorFiles(t *config.Tracing) (f collectorFiles, faults config.Faults) {
	if t == nil {
		return f, nil
	}
	var fs config.Faults
	if t.HeadersFile != "" {
		f.headers, fs = config.ReadHeaders(t.HeadersFile)
		faults = append(faults, fs...)
	}
	if t.CAFile != "" {
		f.authorities, fs = config.ReadAuthorities(t.CAFile)
		faults = append(faults, fs...)
	}
	return f, faults
}

// diffCollector tells which files have another content, where the configuration has them as before.
func diffCollector(old, next *files) (out []config.Change) {
	was, is := old.collector, next.collector
	if was.headers != nil && is.headers != nil && !maps.Equal(was.headers, is.headers) {
		out = append(out, config.Change{Path: "tracing.headers_file", Old: "some headers", New: "others"})
	}
	if was.authorities != nil && is.authorities != nil && !bytes.Equal(was.authorities, is.authorities) {
		out = append(out, config.Change{Path: "tracing.ca_file", Old: "some authorities", New: "others"})
	}
	return out
}

// buildTracing turns a configuration into the settings of its spans; nil: none.
func buildTracing(c *config.Config, held *files) *tracing.Settings {
	t := c.Tracing
	if t == nil {
		return nil
	}
	s := &tracing.Settings{Endpoint: t.Endpoint, Ratio: t.SampleRatio, Service: t.ServiceName, Headers: held.collector.headers, Authorities: held.collector.authorities}
	if t.Timeout != nil {
		s.Timeout = *t.Timeout
	}
	if t.QueueSize != nil {
		s.Queue = *t.QueueSize
	}
	return s
}

// countSpans returns what counts them.
func countSpans(m *telemetry.Metrics) func(outcome string, spans int) {
	counters := map[string]prometheus.Counter{} // there from the start, so that an alert sees the first that is lost
	for _, outcome := range tracing.Outcomes {
		counters[outcome] = m.Spans.WithLabelValues(outcome)
	}
	return func(outcome string, spans int) { counters[outcome].Add(float64(spans)) }
}
