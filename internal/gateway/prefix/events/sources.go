package events

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// Sources is where an engine publishes, rank by rank. Ranks differ.
type Sources struct{ Ranks []Source }

// Source is where one rank of an engine publishes. Endpoints are as ZeroMQ writes them, tcp://host:port or ipc://path; empty: there is
// none.
type Source struct {
	Rank int32
	// Events is the socket of its KV events. If Listen is set the engine dials, and Events is where we listen; engines that
	// dial one place are told apart by their topics.
	Events string
	Listen bool
	// Topic is the beginning of its messages' first frame.
	Topic string
	// Replay is where lost batches are asked for.
	Replay string
	// Load and LoadTopic are the same for load reports.
	Load, LoadTopic string
}

func (s *Sources) equal(o *Sources) bool { return slices.Equal(s.Ranks, o.Ranks) }

// Config is an engine's `kv_events:` block, for engines that do not say where they publish, or say it as only they can reach it. A port
// is that of rank 0; rank r has port + r, as in both engine families.
type Config struct {
	// Endpoint is where the engine's publisher listens, as tcp://host:port; a host of * is the engine's own.
	Endpoint string
	// Listen is where we listen for an engine whose publisher dials (an endpoint without a wildcard, in vLLM). One of both is set.
	Listen string
	// Topic is what the engine puts before its messages; empty: anything.
	Topic string
	// ReplayEndpoint is where lost batches are asked for, as Endpoint; empty: nowhere, so that a loss costs all claims.
	ReplayEndpoint string
	// LoadEndpoint and LoadTopic are SGLang's load stream; an empty topic is "load".
	LoadEndpoint, LoadTopic string
	// Ranks is how many data-parallel ranks the engine has; 0: as many as it says, else one.
	Ranks int
}

// Sources returns what the block says of an engine at a URL, which says itself that it has so many ranks (0: it does not). The errors
// name the field.
func (c *Config) Sources(engineURL string, ranks int) (*Sources, error) {
	host, err := hostOf(engineURL)
	if err != nil {
		return nil, err
	}
	var errs []error
	if (c.Endpoint == "") == (c.Listen == "") && c.LoadEndpoint == "" || c.Endpoint != "" && c.Listen != "" {
		errs = append(errs, errors.New("endpoint, listen: one of both is needed"))
	}
	if c.Ranks != 0 {
		ranks = c.Ranks
	}
	if ranks > load.MaxRanks || ranks < 0 {
		errs = append(errs, fmt.Errorf("ranks: %d, at most %d", ranks, load.MaxRanks))
		ranks = 1
	}
	s := &Sources{}
	for r := range int32(max(ranks, 1)) {
		at := func(field, endpoint, host string) string {
			e, err := endpointOf(endpoint, host, r)
			if err != nil && r == 0 {
				errs = append(errs, fmt.Errorf("%s: %w", field, err))
			}
			return e
		}
		src := Source{Rank: r, Topic: c.Topic, Replay: at("replay_endpoint", c.ReplayEndpoint, host), Load: at("load_endpoint", c.LoadEndpoint, host)}
		src.Events = at("endpoint", c.Endpoint, host)
		if c.Listen != "" {
			src.Events, src.Listen = at("listen", c.Listen, "*"), true
		}
		if src.Load != "" {
			if src.LoadTopic = c.LoadTopic; src.LoadTopic == "" {
				src.LoadTopic = "load"
			}
		}
		s.Ranks = append(s.Ranks, src)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return s, nil
}

// endpointOf returns an endpoint that can be dialled, of a rank: the wildcard is the host, the port is shifted.
func endpointOf(endpoint, host string, rank int32) (string, error) {
	if endpoint == "" || strings.HasPrefix(endpoint, "ipc://") && rank == 0 {
		return endpoint, nil
	}
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	h, p, err := net.SplitHostPort(rest)
	if !ok || err != nil {
		return "", fmt.Errorf("%q: want tcp://host:port", endpoint)
	}
	port, err := strconv.Atoi(p)
	if err != nil || port < 1 || port+int(rank) > 65535 {
		return "", fmt.Errorf("%q: no such port for rank %d", endpoint, rank)
	}
	if isWildcard(h) {
		h = host
	}
	return "tcp://" + net.JoinHostPort(h, strconv.Itoa(port+int(rank))), nil
}

// isWildcard tells whether an engine that says this host means any of its own.
func isWildcard(host string) bool {
	return host == "" || host == "*" || host == "0.0.0.0" || host == "::" || host == "[::]"
}

func hostOf(engineURL string) (string, error) {
	u, err := url.Parse(engineURL)
	if err != nil || u.Hostname() == "" {
		return "", fmt.Errorf("the engine's URL %q has no host", engineURL)
	}
	return u.Hostname(), nil
}
