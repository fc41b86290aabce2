package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/telemetry"
)

// countedSource counts the look-ups of a source, and how long they take.
type countedSource struct {
	prefix.Source
	hits, misses, rejected prometheus.Counter
	seconds                prometheus.Observer
	m                      *telemetry.Metrics
}

func newCountedSource(s prefix.Source, m *telemetry.Metrics) *countedSource {
	count := func(outcome string) prometheus.Counter { return m.PrefixLookups.WithLabelValues(s.Name(), outcome) }
	return &countedSource{
		Source: s, m: m, hits: count("hit"), misses: count("miss"), rejected: count("rejected"),
		seconds: m.PrefixLookupSeconds.WithLabelValues(s.Name()),
	}
}

// Lookup implements prefix.Source.
func (c *countedSource) Lookup(ctx context.Context, q *prefix.Query, into *prefix.Match) error {
	began := time.Now()
	err := c.Source.Lookup(ctx, q, into)
	c.seconds.Observe(time.Since(began).Seconds())
	unavailable, away := errors.AsType[*prefix.Unavailable](err)
	switch {
	case err == nil && len(into.Held) > 0:
		c.hits.Inc()
	case err == nil:
		c.misses.Inc()
	case away:
		c.m.PrefixLookups.WithLabelValues(c.Name(), string(unavailable.Reason)).Inc()
	default:
		c.rejected.Inc()
	}
	return err
}
