// Package telemetry holds the gateway's Prometheus metrics: their names, labels, buckets and units, in one place.
//
// Label values come from a bounded set: models and workers from the configuration and discovery, everything else from
// constants of this code. Nothing that a client sends becomes a label. Selection is counted apart from dispatch, since a
// pick says nothing of whether the request reached its engine.
package telemetry
