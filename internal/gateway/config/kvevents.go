package config

import (
	"net"
	"strconv"
	"strings"
)

// KVEvents says where an engine publishes, for one that does not say so itself or says it as only it can reach it. A port is that of
// rank 0; rank r has port + r.
type KVEvents struct {
	// Endpoint is where the engine's publisher listens, Listen where the gateway does for a publisher that dials. One of both is set.
	Endpoint, Listen string
	Topic            string
	ReplayEndpoint   string // empty: what is lost cannot be had again
	LoadEndpoint     string // empty: the load is polled
	LoadTopic        string
	Ranks            int // 0: as many as the engine says, else one
}

func (k *KVEvents) fields() []field {
	return []field{
		{key: "endpoint", val: textIn(&k.Endpoint, "", checkEndpoint), doc: "Where the engine's publisher listens, as `tcp://10.0.0.1:5557`; `tcp://*:5557` is the host of its URL. This or `listen`."},
		{key: "listen", val: textIn(&k.Listen, "", checkEndpoint),
			doc: "Where the gateway listens for an engine whose publisher dials, which is what vLLM does with an endpoint that has no wildcard. Engines that dial one place need different topics."},
		{key: "topic", val: text(&k.Topic, ""), doc: "What the engine puts before its messages; any when not given."},
		{key: "replay_endpoint", val: textIn(&k.ReplayEndpoint, "", checkEndpoint), doc: "Where lost batches are asked for. Without it a loss costs all that is known of the engine's cache."},
		{key: "load_endpoint", val: textIn(&k.LoadEndpoint, "", checkEndpoint), doc: "SGLang's load stream; without it the load is polled."},
		{key: "load_topic", val: text(&k.LoadTopic, "load"), doc: "The load stream's topic.", why: "SGLang's"},
		{key: "ranks", val: whole(&k.Ranks, 0, 0, 1024), doc: "Data-parallel ranks; 0: as many as the engine says, else one."},
	}
}

// checkEndpoint holds an endpoint to what can be dialled or listened on: tcp with a port, or a unix socket's path.
func checkEndpoint(s string) (string, string) {
	const cure = "write tcp://host:port, or ipc:///path/of/a/socket"
	if path, ok := strings.CutPrefix(s, "ipc://"); ok {
		if path == "" {
			return quote(s) + " has no path", cure
		}
		return "", ""
	}
	rest, ok := strings.CutPrefix(s, "tcp://")
	if !ok {
		return quote(s) + " is not an endpoint", cure
	}
	host, port, err := net.SplitHostPort(rest)
	n, numErr := strconv.Atoi(port)
	if err != nil || numErr != nil || n < 1 || n > 65535 || host == "" {
		return quote(s) + " is not an endpoint", cure
	}
	return "", ""
}

// compareEvents holds a worker's block to one way of getting its events.
func (d *decoder) compareEvents(path string, k *KVEvents) {
	endpoint, listen := join(path, "endpoint"), join(path, "listen")
	if !d.ok(endpoint, listen) {
		return
	}
	switch {
	case k.Endpoint != "" && k.Listen != "":
		d.faultAt(listen, classValue, "the engine's publisher either listens or dials", "remove endpoint or listen")
	case k.Endpoint == "" && k.Listen == "" && k.LoadEndpoint == "":
		d.faultAt(path, classValue, "says nowhere where the events are", "add endpoint, listen or load_endpoint")
	}
}
