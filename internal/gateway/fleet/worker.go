package fleet

import (
	"slices"
	"sync/atomic"

	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// Stage is a part of a request that one engine serves. An engine's role is the stage that it can serve.
type Stage uint8

// The stages. A plain engine does the whole request; in a P/D pair one engine does the prefill and one the decode.
const (
	Plain Stage = iota
	Prefill
	Decode
)

// String returns the stage's name as it stands in metrics, logs and configuration.
func (s Stage) String() string {
	switch s {
	case Plain:
		return "plain"
	case Prefill:
		return "prefill"
	case Decode:
		return "decode"
	}
	return "invalid"
}

// Kind is the engine's family, which decides the wire facts: where its load is read, how it aborts, how it does P/D.
type Kind uint8

// The engine families.
const (
	// UnknownKind is an engine that did not say what it is: it gets requests, but gives no load.
	UnknownKind Kind = iota
	VLLM
	SGLang
)

// String returns the family's name as it stands in metrics, logs and configuration.
func (k Kind) String() string {
	switch k {
	case VLLM:
		return "vllm"
	case SGLang:
		return "sglang"
	}
	return "unknown"
}

// Spec is what is known of an engine when it registers.
type Spec struct {
	// ID names the worker in configuration, logs and metrics. Static discovery uses the URL as it was given.
	ID string
	// URL is the engine's base, http or https, without a trailing slash.
	URL   string
	Kind  Kind
	Stage Stage
	// Models are the model ids that the engine serves, as clients name them. A worker without any gets no traffic.
	Models []string
	// Adapters are those of Models that are LoRA adapters of the others, which share one base model.
	Adapters []string
	// Ranks is the number of data-parallel ranks, 0 where it is not known.
	Ranks int
	// MaxContext is the longest sequence of input and output that the engine takes, in tokens.
	MaxContext load.Count
	// BootstrapPort is the port at which a prefill engine meets its decode engine (SGLang).
	BootstrapPort load.Count
	// PageSize is the tokens of a page of an SGLang engine's cache, and Bigram says that its pages are of pairs of tokens, as with EAGLE.
	// Only an indexer that knows pages by SGLang's own hashes needs them.
	PageSize load.Count
	Bigram   bool
	// Version is what the engine says of itself, for people.
	Version string
}

// Equal tells whether two specs say the same.
func (s Spec) Equal(o Spec) bool {
	return s.ID == o.ID && s.URL == o.URL && s.Kind == o.Kind && s.Stage == o.Stage && slices.Equal(s.Models, o.Models) && slices.Equal(s.Adapters, o.Adapters) &&
		s.Ranks == o.Ranks && s.MaxContext == o.MaxContext && s.BootstrapPort == o.BootstrapPort && s.PageSize == o.PageSize && s.Bigram == o.Bigram &&
		s.Version == o.Version
}

// Worker is one registered engine. What it says of itself never changes: an engine that registers with other facts is a
// new Worker, which takes over the load record and the breaker of the old one.
type Worker struct {
	Spec
	// Load is the engine's load record.
	Load *load.Engine
	// No is the engine's number: the same as long as its id stays registered, and never given to another. From 1.
	No uint32
	// Kept is what the path of requests has found for the engine and would look up again for each of them; its owner alone knows what.
	Kept atomic.Value

	breaker *breaker
	slot    int // dense number within the registry, for O(1) membership tests
}

// Serves tells whether the engine serves the model.
func (w *Worker) Serves(model string) bool { return slices.Contains(w.Models, model) }

// Base returns the id of the base model: the first that is no adapter, empty where there is none.
func (s *Spec) Base() string {
	for _, m := range s.Models {
		if !slices.Contains(s.Adapters, m) {
			return m
		}
	}
	return ""
}

// String returns the worker's id.
func (w *Worker) String() string { return w.ID }
