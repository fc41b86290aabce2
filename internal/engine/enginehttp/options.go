package enginehttp

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/engine/offload"
)

// Flavor is the engine whose HTTP interface the server has.
type Flavor string

// The flavors.
const (
	VLLM   Flavor = "vllm"
	SGLang Flavor = "sglang"
)

// DefaultModel is the model id of an engine whose options name none.
const DefaultModel = "perigee-sim"

// Options shape a server. The zero value is a vLLM-shaped engine on a free port of 127.0.0.1.
type Options struct {
	Engine engine.Config
	Flavor Flavor   // empty: VLLM
	Models []string // served model ids; a request that names none gets the first; empty: DefaultModel

	Addr string // to listen on; empty: 127.0.0.1:0
	// Listener is used instead of Addr if it is set; the server closes it. With Listen unset, the faults that take the listener
	// down and up again then fail unless it is a TCP listener.
	Listener net.Listener
	// Listen opens a listener on an address: at the start, and when a fault ends that had closed the listener. nil: TCP.
	Listen func(addr string) (net.Listener, error)

	// HideCached leaves prompt_tokens_details null, as the real engines do unless they are started with
	// --enable-prompt-tokens-details or --enable-cache-report.
	HideCached bool
	// DevMode adds what vLLM serves with VLLM_SERVER_DEV_MODE=1: /server_info and /reset_prefix_cache.
	DevMode bool
	// EchoRequestID sends x-request-id back, as vLLM does with --enable-request-id-headers.
	EchoRequestID bool

	// KVEvents publishes what the prefix cache stores and evicts, over ZeroMQ. Nil: nothing is published.
	KVEvents *KVEvents

	// CacheManager has the engine publish its blocks to a Cache Manager, and restore from it what its own cache lacks. Nil: none is used. It
	// implies pages of DefaultPageBytes where the engine's configuration has none.
	CacheManager *CacheManager

	// Pair makes the engine the prefill or the decode half of separated pairs. Nil: it computes prompts and answers.
	Pair *Pair

	// Control serves the fault interface, /_control, on a listener of its own: it must stay reachable while the engine's is down.
	Control     bool
	ControlAddr string // empty: 127.0.0.1:0
}

// sglangHoldFor is how long SGLang's flavor holds KV that its decode engine does not take. A guess: a real one learns by heartbeats that the
// decode engine has died.
const sglangHoldFor = 300 * time.Second

// DefaultPageBytes is a page of an engine with a Cache Manager: the least that a Manager's slot holds. Real pages are megabytes; what is
// shown does not depend on it, as a restore takes the time that the timing model says.
const DefaultPageBytes = 4096

// CacheManager says which Manager an engine uses, and how long requests wait for it.
type CacheManager struct {
	// Socket is the Manager's; required.
	Socket string
	// LookupWait, RestoreWait and HangAfter are as in offload.Options; 0: its defaults.
	LookupWait, RestoreWait, HangAfter time.Duration
}

func (o Options) withDefaults() Options {
	if o.Flavor == "" {
		o.Flavor = VLLM
	}
	if len(o.Models) == 0 {
		o.Models = []string{DefaultModel}
	}
	if o.Addr == "" {
		o.Addr = "127.0.0.1:0"
	}
	o.KVEvents = o.KVEvents.withDefaults()
	o.Engine.KVEvents = o.KVEvents != nil || o.CacheManager != nil
	o.Engine.Restore = o.CacheManager != nil
	o.Pair = o.Pair.withDefaults(o.Flavor)
	if o.Pair != nil && o.Flavor == SGLang {
		o.Engine.Pairing = engine.Push
		o.Engine.NoReuse = o.Pair.Role == Decode // SGLang's decode engines have no prefix cache unless asked
		if o.Engine.HoldFor == 0 {
			o.Engine.HoldFor = sglangHoldFor
		}
	}
	if o.CacheManager != nil && o.Engine.PageBytes == 0 {
		o.Engine.PageBytes = DefaultPageBytes
	}
	if o.ControlAddr == "" {
		o.ControlAddr = "127.0.0.1:0"
	}
	return o
}

// Validate reports every option that is wrong, joined.
func (o Options) Validate() error {
	errs := []error{o.Engine.Validate(), o.Pair.validate(o)}
	if o.Flavor != "" && o.Flavor != VLLM && o.Flavor != SGLang {
		errs = append(errs, fmt.Errorf("engine flavor %q is neither vllm nor sglang", o.Flavor))
	}
	if slices.Contains(o.Models, "") {
		errs = append(errs, errors.New("a model id is empty"))
	}
	if m := o.CacheManager; m != nil {
		if m.Socket == "" || m.LookupWait < 0 || m.RestoreWait < 0 || m.HangAfter < 0 {
			errs = append(errs, errors.New("the Cache Manager's socket is missing, or a wait is negative"))
		}
		if o.Engine.BlockSize > offload.MaxBlockTokens {
			errs = append(errs, fmt.Errorf("a block of %d tokens: a Cache Manager takes %d at most", o.Engine.BlockSize, offload.MaxBlockTokens))
		}
	}
	if k := o.KVEvents; k != nil && k.BufferSteps < 0 {
		errs = append(errs, errors.New("the KV events' buffer steps are negative"))
	}
	return errors.Join(errs...)
}
