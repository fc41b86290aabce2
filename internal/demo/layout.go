package demo

import (
	"fmt"
	"strings"
	"time"

	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
)

// The gateway's beat, in seconds of the trace: its defaults, which are divided by the speed like everything else.
const (
	pollInterval = time.Second
	freshness    = 5 * time.Second
)

// shortest are the bounds below which the configuration accepts no time.
const shortest = 10 * time.Millisecond

// shortTokens parts the buckets: two thirds of the trace's first prompts are shorter, and they hold a sixth of its tokens.
const shortTokens = 16384

// Bucket is one bucket of the demo.
type Bucket struct {
	ID string `json:"id"`
	// MaxInputTokens is the longest input; 0: any.
	MaxInputTokens int `json:"max_input_tokens,omitempty"`
	// Engines are the ids of its engines.
	Engines []string `json:"engines"`
}

// Engine is one engine of the demo.
type Engine struct {
	ID     string            `json:"id"`
	Flavor enginehttp.Flavor `json:"flavor"`
	URL    string            `json:"url"`
}

// flavor alternates.
func flavor(i int) enginehttp.Flavor {
	if i%2 == 0 {
		return enginehttp.VLLM
	}
	return enginehttp.SGLang
}

// layout shares n engines out to the buckets: short prompts may go to any engine, long ones to all but a quarter, which is
// kept free for the short.
func layout(n int) []Bucket {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = engineID(i)
	}
	return []Bucket{
		{ID: "short", MaxInputTokens: shortTokens, Engines: ids},
		{ID: "long", Engines: ids[n/4:]},
	}
}

// engineID names the i-th engine, from 0.
func engineID(i int) string { return fmt.Sprintf("engine-%d", i+1) }

// managerID is what the gateway calls the Cache Manager.
const managerID = "cache-manager"

// managerEndpoints are a Manager's, for gateways.
type managerEndpoints struct{ events, replay, snapshot string }

// configuration writes the gateway's configuration as an operator would; m is nil where there is no Cache Manager.
func configuration(policy string, speed float64, buckets []Bucket, engines []Engine, m *managerEndpoints) string {
	var b strings.Builder
	scaled := func(d time.Duration) time.Duration { return max(time.Duration(float64(d)/speed), shortest) }
	fmt.Fprintf(&b, "models:\n  - id: %s\n    policy: %s\n    buckets:\n", Model, policy)
	for _, x := range buckets {
		fmt.Fprintf(&b, "      - id: %s\n", x.ID)
		if x.MaxInputTokens > 0 {
			fmt.Fprintf(&b, "        max_input_tokens: %d\n", x.MaxInputTokens)
		}
		fmt.Fprintf(&b, "        plain:\n          workers: [%s]\n", strings.Join(x.Engines, ", "))
	}
	b.WriteString("discovery:\n  static:\n    workers:\n")
	for _, e := range engines {
		fmt.Fprintf(&b, "      - {id: %s, url: %q}\n", e.ID, e.URL)
	}
	if m != nil {
		fmt.Fprintf(&b, "managers:\n  - {id: %s, events: %q, replay: %q, snapshot: %q}\n", managerID, m.events, m.replay, m.snapshot)
	}
	b.WriteString("server:\n  port: 0\n  admin: {port: 0}\n")
	poll := scaled(pollInterval)
	fmt.Fprintf(&b, "load:\n  poll_interval: %v\n  freshness: %v\n", poll, max(scaled(freshness), 5*poll))
	return b.String()
}
