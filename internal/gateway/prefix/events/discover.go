package events

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/ask"
	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// ErrNoEvents means that the engine answered, and publishes nothing: it has to be started with its events switched on.
var ErrNoEvents = errors.New("the engine publishes no KV events")

// maxAnswer bounds an engine's answer, in bytes; SGLang's /server_info has 30 KiB.
const maxAnswer = 1 << 20

// Discover asks an engine where it publishes: SGLang by /server_info, vLLM (from 0.32 on) by /kv_event_sources. The errors are the classes
// of package ask, and [ErrNoEvents].
//
// vLLM dials if its endpoint has no wildcard, and listens at its own address if it was told to choose a port: what it says looks
// the same. It is dialled; if nobody is there, the engine is the one that dials, and a [Config] has to say where we listen.
func Discover(ctx context.Context, client *http.Client, w *fleet.Worker) (*Sources, error) {
	host, err := hostOf(w.URL)
	if err != nil {
		return nil, err
	}
	path, parse := "/server_info", parseServerInfo
	switch w.Kind {
	case fleet.SGLang:
	case fleet.VLLM:
		path, parse = "/kv_event_sources", parseEventSources
	default:
		return nil, ErrNoEvents
	}
	var s *Sources
	err = ask.Get(ctx, client, w.URL+path, "application/json", maxAnswer, func(b []byte) (err error) {
		s, err = parse(b, host)
		return err
	})
	if ask.Absent(err) {
		return nil, ErrNoEvents
	}
	return s, err
}

// descriptor is SGLang's kv_events in /server_info, as far as we read it.
type descriptor struct {
	Publisher  string `json:"publisher"`
	Host       string `json:"endpoint_host"`
	Port       int    `json:"endpoint_port_base"`
	Topic      string `json:"topic"`
	Ranks      int    `json:"dp_size"`
	LoadPort   *int   `json:"load_endpoint_port_base"`
	LoadTopic  string `json:"load_topic"`
	ReplayPort *int   `json:"replay_endpoint_port_base"`
}

// parseServerInfo reads where an SGLang engine publishes. The replay socket is in the descriptor, or in the configuration that the engine was
// started with, which /server_info has as text.
func parseServerInfo(body []byte, host string) (*Sources, error) {
	var info struct {
		Events *descriptor `json:"kv_events"`
		Config *string     `json:"kv_events_config"`
	}
	if err := json.Unmarshal(body, &info); err != nil {
		return nil, ask.Malformed("server_info: %v", err)
	}
	d := info.Events
	if d == nil || d.Publisher != "" && d.Publisher != "zmq" {
		return nil, ErrNoEvents
	}
	d.Ranks = max(d.Ranks, 1)
	if d.Ranks > load.MaxRanks {
		return nil, ask.Malformed("server_info: kv_events: %d ranks", d.Ranks)
	}
	if !isWildcard(d.Host) {
		host = d.Host
	}
	replay := ""
	if info.Config != nil {
		var c struct {
			Replay string `json:"replay_endpoint"`
		}
		if json.Unmarshal([]byte(*info.Config), &c) == nil { // else we know of none
			replay = c.Replay
		}
	}
	if d.ReplayPort != nil {
		replay = tcp(host, *d.ReplayPort)
	}
	s := &Sources{}
	for r := range int32(d.Ranks) {
		if d.Port < 1 || d.Port+int(r) > 65535 {
			break // as sgl-router: what has no port is not followed
		}
		src := Source{Rank: r, Events: tcp(host, d.Port+int(r)), Topic: d.Topic}
		src.Replay, _ = endpointOf(replay, host, r) // one that cannot be used is none
		if d.LoadPort != nil && d.LoadTopic != "" && *d.LoadPort > 0 && *d.LoadPort+int(r) <= 65535 {
			src.Load, src.LoadTopic = tcp(host, *d.LoadPort+int(r)), d.LoadTopic
		}
		s.Ranks = append(s.Ranks, src)
	}
	if len(s.Ranks) == 0 {
		return nil, ask.Malformed("server_info: kv_events: port %d", d.Port)
	}
	return s, nil
}

func tcp(host string, port int) string { return "tcp://" + net.JoinHostPort(host, strconv.Itoa(port)) }

// publisherConfig is what vLLM says of one rank's publisher. Its endpoints have the rank's ports already.
type publisherConfig struct {
	Enabled  *bool   `json:"enable_kv_cache_events"`
	Kind     *string `json:"publisher"`
	Endpoint string  `json:"endpoint"`
	Replay   *string `json:"replay_endpoint"`
	Topic    string  `json:"topic"`
	Rank     *int32  `json:"data_parallel_rank"`
}

// parseEventSources reads where a vLLM engine publishes: an object by rank (0.32), or a list (later).
func parseEventSources(body []byte, host string) (*Sources, error) {
	var list []publisherConfig
	var byRank map[string]publisherConfig
	if json.Unmarshal(body, &byRank) == nil {
		for key, c := range byRank {
			if n, err := strconv.ParseInt(key, 10, 32); err == nil && c.Rank == nil {
				rank := int32(n)
				c.Rank = &rank
			}
			list = append(list, c)
		}
	} else if err := json.Unmarshal(body, &list); err != nil {
		return nil, ask.Malformed("kv_event_sources: %v", err)
	}
	s := &Sources{}
	for _, c := range list {
		if c.Endpoint == "" || c.Enabled != nil && !*c.Enabled || c.Kind != nil && *c.Kind != "zmq" {
			continue
		}
		src, err := c.source(host)
		if err != nil {
			return nil, err
		}
		s.Ranks = append(s.Ranks, src)
	}
	if len(s.Ranks) == 0 {
		return nil, ErrNoEvents
	}
	slices.SortFunc(s.Ranks, func(a, b Source) int { return cmp.Compare(a.Rank, b.Rank) })
	for i, r := range s.Ranks {
		if r.Rank < 0 || r.Rank >= load.MaxRanks || i > 0 && r.Rank == s.Ranks[i-1].Rank {
			return nil, ask.Malformed("kv_event_sources: rank %d", r.Rank)
		}
	}
	return s, nil
}

func (c *publisherConfig) source(host string) (src Source, err error) {
	if c.Rank != nil {
		src.Rank = *c.Rank
	}
	src.Topic = c.Topic
	if src.Events, err = endpointOf(c.Endpoint, host, 0); err != nil {
		return src, ask.Malformed("kv_event_sources: %v", err)
	}
	if c.Replay != nil {
		src.Replay, _ = endpointOf(*c.Replay, host, 0) // one that cannot be used is none
	}
	return src, nil
}
