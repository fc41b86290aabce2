package config

import (
	"math"
	"strconv"
	"time"
)

// field is one key of the schema: what it means and where its value goes. The reference page, the defaults and the checks of one
// value all come from it, so that they cannot disagree.
type field struct {
	key      string
	doc      string // what it does, a sentence
	unit     string // of a plain number
	why      string // why the default is what it is
	required bool
	fixed    bool // cannot change while the gateway runs; of an optional mapping: cannot come or go
	val      value
}

// value binds a key to a place in a struct.
type value interface {
	kind() string    // what is written, for the reference: "text", "duration" ...
	initial() string // the default, for the reference; empty when there is none
	limits() string  // the range, for the reference; empty when any value is legal
	nested() []field // the keys below this one
	reset()          // puts the default
	decode(d *decoder, path string, n *node)
	entries(at place, put func(entry)) // what is in force, for comparing two configurations
}

// record is a struct that is written as a mapping.
type record interface{ fields() []field }

// shorthand is a record that may also be written as one word.
type shorthand interface {
	word(d *decoder, path string, n *node)
}

const noMax = math.MaxInt64 // no upper bound beyond what the type holds

// byteUnits are the suffixes of a size; only powers of 1024, because a limit that means two things is no limit.
var byteUnits = []struct {
	suffix string
	bytes  int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

func (c *Config) fields() []field {
	return []field{
		{key: "models", required: true, val: records(&c.Models, func(m *Model) record { return m }),
			doc: "The models that are served, each with the buckets that serve it."},
		{key: "discovery", required: true, val: sub(&c.Discovery),
			doc: "Where the engines come from: exactly one source."},
		{key: "managers", val: records(&c.Managers, func(m *Manager) record { return m }),
			doc: "The Cache Managers that are followed: what they can restore counts for the engines attached to them. A gateway follows them only where a policy looks prefixes up in its own index; where policies ask a service, `perigee index --config` does. See [what a Manager tells](manager-events.md)."},
		{key: "peers", fixed: true, val: optional(&c.Peers, itself),
			doc: "The other gateways that serve the same engines. Those that tell each other what they send are not blind to each other between two load reports; the `cost` policy counts it. See [several gateways](operations.md#several-gateways)."},
		{key: "prefix_index", val: sub(&c.PrefixIndex),
			doc: "What the gateway's own index gives to others and takes from them. See [the prefix index as a service](prefix-index-service.md#snapshots-at-the-start)."},
		{key: "server", val: sub(&c.Server), doc: "The listeners, their time-outs and limits."},
		{key: "client_fields", val: sub(&c.ClientFields),
			doc: "Request fields that steer an engine's internals (" + guardedList() + ") and that a client may therefore not set unless allowed."},
		{key: "breaker", val: sub(&c.Breaker), doc: "The circuit breaker of each engine; it is always on."},
		{key: "load", val: sub(&c.Load), doc: "How engines are asked for their load."},
		{key: "log", val: sub(&c.Log), doc: "Logging; it goes to stderr."},
		{key: "tracing", val: optional(&c.Tracing, itself),
			doc: "Spans of requests, for an OpenTelemetry collector; none when not given. `tracing: {}` leaves everything to the environment and the defaults. See [traces](operations.md#traces)."},
	}
}

func (m *Model) fields() []field {
	return []field{
		{key: "id", required: true, val: textIn(&m.ID, "", checkName), doc: "The name that clients send and that engines report."},
		{key: "aliases", val: words(&m.Aliases, "text", checkName, false), doc: "Other names for the same model; unique over all models."},
		{key: "tokenizer", val: textIn(&m.Tokenizer, "", checkName),
			doc: "The model's directory, or its tokenizer.json, with tokenizer_config.json and chat_template.jinja beside it. Prompts are then measured exactly; without it their length is estimated from their bytes."},
		{key: "engine_tokenize", val: flag(&m.EngineTokenize, false),
			doc: "Whether an engine is asked to count a prompt that the gateway cannot count itself: exact where the engine renders messages, at the price of a question a request.",
			why: "an estimate costs nothing and is good enough for wide buckets"},
		{key: "input_ids_forwarding", val: flag(&m.InputIDsForwarding, true),
			doc: "Whether token ids made by the gateway may be sent along, so that the engine does not tokenise again.",
			why: "saves the engine the work where the ids are known to be the same"},
		{key: "sampling", val: sub(&m.Sampling), doc: "The operator's contract on sampling parameters."},
		{key: "policy", val: policyOf(&m.Policy, false),
			doc: "The policy of plain and prefill groups that name none. `round_robin` when not given.",
			why: "needs no signal from an engine"},
		{key: "decode_policy", val: policyOf(&m.DecodePolicy, true),
			doc: "The policy of decode groups that name none. `power_of_two` when not given.",
			why: "decode steps are long, so the load at the start matters most"},
		{key: "admission", val: sub(&m.Admission), doc: "Caps for every group of the model; a group's own cap takes the place of the same cap here."},
		{key: "buckets", val: records(&m.Buckets, func(b *Bucket) record { return b }),
			doc: "Ranges of request lengths, each with its engines. When not given: a bucket `plain` (rank 0) and a bucket `pd` (rank 1) that take every length."},
	}
}

func (s *Sampling) fields() []field {
	return []field{
		{key: "override", val: overrides{&s.Override},
			doc: "Sampling parameter: a number (put into requests that leave it out, and held) or a band `{min, max}` (held only). Parameters: " + samplingList() + "."},
		{key: "conflict", val: enum(&s.Conflict, ConflictReject, ConflictReject, ConflictAllow),
			doc: "What happens when a client's value contradicts `override`: 400, or the client's value passes. `allow` cannot be joined with a band.",
			why: "an operator who fixes a value means it"},
	}
}

func (b *Bucket) fields() []field {
	return []field{
		{key: "id", required: true, val: textIn(&b.ID, "", checkName), doc: "The bucket's name in logs, metrics and bindings; unique in the model."},
		{key: "rank", val: whole(&b.Rank, 0, 0, math.MaxUint32), doc: "Among buckets of the same capacity the smaller rank is tried first."},
		{key: "min_input_tokens", unit: "tokens", val: whole(&b.MinInputTokens, 0, 0, noMax), doc: "The shortest input, inclusive."},
		{key: "max_input_tokens", unit: "tokens", val: optWhole(&b.MaxInputTokens, 1, noMax), doc: "The longest input, inclusive; unbounded when not given."},
		{key: "max_context_tokens", unit: "tokens", val: optWhole(&b.MaxContextTokens, 1, noMax),
			doc: "The most that input and requested output may be together, inclusive; unbounded when not given. Without a requested output the input alone is compared."},
		{key: "plain", val: optional(&b.Plain, func(g *Group) record { return group{g, false} }),
			doc: "The engines that do both stages. A bucket has this or `pd`, not both."},
		{key: "pd", val: optional(&b.PD, itself),
			doc: "The engines of separated prefill and decode; both are picked from this bucket or none is."},
	}
}

func (p *PD) fields() []field {
	return []field{
		{key: "prefill", required: true, val: sub(group{&p.Prefill, false}), doc: "The engines that read the prompt; written like `plain`."},
		{key: "decode", required: true, val: sub(group{&p.Decode, true}), doc: "The engines that make the answer; written like `plain`. `cache_aware` and `cost` cannot serve here."},
	}
}

// group is a Group and its stage: a decode group may not use every policy.
type group struct {
	*Group
	decode bool
}

func (g group) fields() []field {
	return []field{
		{key: "policy", val: policyOf(&g.Policy, g.decode), doc: "How one engine is picked: a name, or a mapping of `name` and settings. The model's when not given."},
		{key: "workers", val: words(&g.Workers, "text", checkName, true),
			doc: "The discovery ids of the group's engines (of a static engine: its `id`, else its URL exactly as written). Not given: every engine of the model and stage. `[]`: none."},
		{key: "admission", val: sub(&g.Admission), doc: "Caps on each engine of the group, with the keys of `models[].admission`; an engine at a cap is refused and the next bucket is tried."},
	}
}

func (a *Admission) fields() []field {
	const unknown = " Not checked when not given; unknown passes; 0 refuses whenever the number is known."
	const sglang = " Only SGLang reports this: on vLLM engines the cap never acts, and the gateway warns of it."
	return []field{
		{key: "max_running_requests", unit: "requests", val: optWhole(&a.MaxRunningRequests, 0, noMax), doc: "An engine passes while it reports fewer running requests." + unknown},
		{key: "max_waiting_requests", unit: "requests", val: optWhole(&a.MaxWaitingRequests, 0, noMax), doc: "An engine passes while it reports fewer waiting requests." + unknown},
		{key: "max_kv_tokens", unit: "tokens", val: optWhole(&a.MaxKVTokens, 0, noMax), doc: "An engine passes while it reports fewer KV tokens, used and queued." + unknown + sglang},
		{key: "max_pending_prefill_tokens", unit: "tokens", val: optWhole(&a.MaxPendingPrefillTokens, 0, noMax), doc: "An engine passes while it reports fewer waiting uncached tokens." + unknown + sglang},
		{key: "max_inflight_requests", unit: "requests", val: optWhole(&a.MaxInflightRequests, 0, noMax), doc: "An engine passes while this gateway has fewer requests in flight to it; always known, so 0 refuses every request."},
	}
}

func (c *CacheAwareSettings) fields() []field {
	return []field{
		{key: "prefix_provider", val: enum(&c.PrefixProvider, "", RadixTree, Indexer, PerigeeIndex),
			doc: "Who knows the prefixes: the gateway's own index (`radix_tree`), a `perigee index` service (`perigee_index`), or an indexer of SGLang's (`indexer`, kv_indexer.v1). `indexer` when `kv_indexer.endpoint` is given, else `radix_tree`."},
		{key: "kv_indexer", val: sub(&c.KVIndexer), doc: "The remote indexer."},
		{key: "min_matched_tokens", unit: "tokens", val: whole(&c.MinMatchedTokens, 1024, 0, noMax), doc: "A shorter match is no hit.", why: "below it prefill costs less than a worse balance"},
		{key: "min_match_ratio", val: optShare(&c.MinMatchRatio), doc: "A match that is a smaller share of the input is no hit; not checked when not given."},
		{key: "candidates", val: sub(&c.Candidates), doc: "How many prefix holders are considered: `ratio` of the group, at least `min_workers`, at most `max_workers`."},
		{key: "switch_margin_tokens", unit: "tokens", val: whole(&c.SwitchMarginTokens, 1024, 0, noMax), doc: "How many more uncached tokens a less loaded holder may have and still win.", why: "the same size as the smallest hit"},
		{key: "worker_queue_limit", unit: "requests", val: optWhole(&c.WorkerQueueLimit, 1, noMax), doc: "A holder with this many waiting requests, summed over its ranks, is passed over while others are open; off when not given."},
		{key: "saturation_queue_floor", unit: "requests", val: optWhole(&c.SaturationQueueFloor, 1, noMax), doc: "When no engine is known to have fewer waiting requests, the request stays with a holder; needs `worker_queue_limit` and is at most that. Off when not given."},
		{key: "min_load_choices", unit: "engines", val: whole(&c.MinLoadChoices, 2, 1, noMax), doc: "How many engines are sampled on a miss; the least loaded wins.", why: "two choices give most of the gain"},
		{key: "pressure_guard", val: sub(&c.PressureGuard), doc: "Keeps a prefix hit from winning against a materially less loaded holder."},
	}
}

func (c *CostSettings) fields() []field {
	return []field{
		{key: "prefix_provider", val: enum(&c.PrefixProvider, "", RadixTree, Indexer, PerigeeIndex),
			doc: "Who knows the prefixes: the gateway's own index (`radix_tree`), a `perigee index` service (`perigee_index`), or an indexer of SGLang's (`indexer`, kv_indexer.v1). `indexer` when `kv_indexer.endpoint` is given, else `radix_tree`."},
		{key: "kv_indexer", val: sub(&c.KVIndexer), doc: "The remote indexer."},
		{key: "prefill_rate", unit: "tokens/s", val: optWhole(&c.PrefillRate, 1, 1e9), doc: "How fast an engine prefills, as long as none has shown it; engines that report their prefill work correct it by themselves. 8000 when not given. It matters only where a restore from a lower tier is weighed against prefill."},
	}
}

func (c *Candidates) fields() []field {
	return []field{
		{key: "min_workers", unit: "engines", val: whole(&c.MinWorkers, 8, 1, noMax), doc: "The smallest bound; at most `max_workers`.", why: "small groups are considered whole"},
		{key: "ratio", val: share(&c.Ratio, 0.05), doc: "The bound as a share of the group.", why: "grows with large groups"},
		{key: "max_workers", unit: "engines", val: whole(&c.MaxWorkers, 32, 1, noMax), doc: "The largest bound.", why: "keeps a pick cheap in the largest groups"},
	}
}

func (g *PressureGuard) fields() []field {
	return []field{
		{key: "enabled", val: flag(&g.Enabled, true), doc: "Whether the guard works.", why: "without it one hot prefix can bury an engine"},
		{key: "abs_threshold_tokens", unit: "tokens", val: whole(&g.AbsThresholdTokens, 1024, 0, noMax), doc: "The difference in waiting uncached tokens above which an engine is materially more loaded.", why: "the same size as the smallest hit"},
		{key: "abs_threshold", val: optSpan(&g.AbsThreshold, 0, 0), doc: "The same as queue time, used where both engines give an estimate; not compared when not given."},
		{key: "rel_threshold", val: above(&g.RelThreshold, 1.5, 1), doc: "The factor that must be exceeded as well.", why: "so that a small difference between two busy engines decides nothing"},
	}
}

func (s *SessionAwareSettings) fields() []field {
	return []field{
		{key: "header", val: textIn(&s.Header, "x-session-id", checkHeader), doc: "The request header that names the session."},
		{key: "idle", val: span(&s.Idle, 600*time.Second, time.Nanosecond, 0), doc: "How long an unused binding is kept.", why: "longer than a person pauses in a conversation"},
		{key: "eviction_interval", val: span(&s.EvictionInterval, 60*time.Second, time.Nanosecond, 0), doc: "How often idle bindings are looked for.", why: "a tenth of the idle time is exact enough"},
	}
}

func (s *StickySettings) fields() []field {
	return []field{
		{key: "header", val: textIn(&s.Header, "x-sgl-routing-key", checkHeader), doc: "The request header that carries the routing key."},
		{key: "fallback_policy", val: enum(&s.FallbackPolicy, RoundRobin, RoundRobin, Random, PowerOfTwo, LoadBased), doc: "The policy for new and missing keys.", why: "needs no signal from an engine"},
		{key: "idle", val: span(&s.Idle, 600*time.Second, time.Nanosecond, 0), doc: "How long an unused binding is kept.", why: "the same as a session's"},
		{key: "eviction_interval", val: span(&s.EvictionInterval, 60*time.Second, time.Nanosecond, 0), doc: "How often idle bindings are looked for.", why: "the same as a session's"},
	}
}

func (d *Discovery) fields() []field {
	return []field{
		{key: "static", fixed: true, val: optional(&d.Static, itself), doc: "A fixed list."},
		{key: "file", fixed: true, val: optional(&d.File, itself), doc: "A file that is watched."},
		{key: "kubernetes", fixed: true, val: optional(&d.Kubernetes, itself),
			doc: "EndpointSlices: `selector` for plain engines, or both of `prefill_selector` and `decode_selector`."},
		{key: "etcd", fixed: true, val: optional(&d.Etcd, itself), doc: "Keys in etcd."},
	}
}

func (s *Static) fields() []field {
	return []field{
		{key: "workers", required: true, val: records(&s.Workers, func(w *Worker) record { return w }),
			doc: "The engines, each a URL or a mapping. A trailing slash makes no difference: two entries that differ only there are the same engine twice."},
		{key: "api_key_file", val: textIn(&s.APIKeyFile, "", checkName),
			doc: "A file with the key that the gateway presents to each engine that has no `api_key_file` of its own: one line, without `Bearer`. The client's Authorization goes no further then."},
	}
}

func (w *Worker) fields() []field {
	return []field{
		{key: "url", required: true, val: textIn(&w.URL, "", checkWorkerURL), doc: "The engine's address, http or https."},
		{key: "id", val: textIn(&w.ID, "", checkName), doc: "What groups call it. The URL exactly as written when not given."},
		{key: "role", val: enum(&w.Role, "", RolePlain, RolePrefill, RoleDecode), doc: "What it does. The engine is asked when not given."},
		{key: "api_key_file", val: textIn(&w.APIKeyFile, "", checkName), doc: "A file with the key that the gateway presents to this engine. That of `discovery.static` when not given."},
		{key: "kv_events", val: optional(&w.KVEvents, itself), doc: "Where the engine publishes what its prefix cache holds. It is asked when not given: SGLang's /server_info, vLLM's /kv_event_sources."},
	}
}

// word takes a worker that is written as its URL alone.
func (w *Worker) word(d *decoder, path string, n *node) { w.fields()[0].val.decode(d, path, n) }

func (f *FileDiscovery) fields() []field {
	return []field{{key: "path", required: true, val: textIn(&f.Path, "", checkName), doc: "The file."}}
}

func (k *Kubernetes) fields() []field {
	return []field{
		{key: "namespace", val: text(&k.Namespace, ""), doc: "The namespace; all of them when empty or not given."},
		{key: "selector", val: optText(&k.Selector), doc: "A label selector for plain engines, in the full grammar of Kubernetes; empty matches everything."},
		{key: "prefill_selector", val: optText(&k.PrefillSelector), doc: "The labels of prefill engines, `k=v` joined with commas."},
		{key: "decode_selector", val: optText(&k.DecodeSelector), doc: "The labels of decode engines, `k=v` joined with commas."},
	}
}

func (e *Etcd) fields() []field {
	return []field{
		{key: "endpoints", required: true, val: words(&e.Endpoints, "text", checkName, false), doc: "The members of the cluster."},
		{key: "prefix", val: text(&e.Prefix, "/perigee/engines/"), doc: "The keys below which engines are registered."},
	}
}

func (s *Server) fields() []field {
	return []field{
		{key: "host", fixed: true, val: textIn(&s.Host, "127.0.0.1", checkHost), doc: "The address of the public listener.", why: "nobody is served by accident"},
		{key: "port", fixed: true, val: whole(&s.Port, 30000, 0, 65535), doc: "The port of the public listener; 0 takes any free one and prints it.", why: "sgl-router's"},
		{key: "tls", fixed: true, val: optional(&s.TLS, itself), doc: "TLS on the public listener, 1.2 or later, HTTP/2 included; plain HTTP when not given. The files are read anew when they change."},
		{key: "api_keys", val: optional(&s.APIKeys, itself), doc: "The keys that clients need, for everything but /healthz and /readyz; none when not given. See [operations](operations.md#api-keys)."},
		{key: "admin", val: sub(&s.Admin), doc: "The listener for operators: metrics, flush, decisions, workers. Off unless it has a port."},
		{key: "shutdown_drain", val: span(&s.ShutdownDrain, 30*time.Second, 0, 1800*time.Second), doc: "How long the gateway still accepts after SIGTERM while it reports not ready.", why: "load balancers need about that long to notice"},
		{key: "termination_grace", val: optSpan(&s.TerminationGrace, 0, 0), doc: "What the platform grants between SIGTERM and SIGKILL. Only used to warn when the drain does not fit into it."},
		{key: "request_timeout", val: span(&s.RequestTimeout, 300*time.Second, time.Nanosecond, 0), doc: "How long an engine may take for a whole answer that is not streamed.", why: "long answers of large models take minutes"},
		{key: "stream_idle_timeout", val: span(&s.StreamIdleTimeout, 180*time.Second, time.Nanosecond, 0), doc: "How long an engine may be silent inside a stream.", why: "covers a long prefill before the first token"},
		{key: "stale_request_timeout", val: span(&s.StaleRequestTimeout, 600*time.Second, time.Nanosecond, 0), doc: "The longest life of a request, streaming included; then it is ended and its accounting released.", why: "twice the request time-out"},
		{key: "max_buffered_bytes", val: size(&s.MaxBufferedBytes, 1<<30, 1<<20, 1<<40), doc: "The request bodies, and the answers held back, that are in memory at once, all together; one more body is refused with 503. A body is held whole until its answer begins to pass, since another engine may have to get it; while it grows it is there twice, so this is at least twice `max_body_bytes`. See [operations](operations.md#memory).", why: "some 10,000 requests of 100 KB, or 32 of the largest; without a bound clients could fill the memory"},
		{key: "max_body_bytes", val: size(&s.MaxBodyBytes, 32<<20, 1<<10, 1<<30), doc: "The largest request body.", why: "holds a million tokens of text with room for an image"},
		{key: "max_attempts", val: whole(&s.MaxAttempts, 3, 1, 3), doc: "How many selections a request may get when nothing of an answer has come and the engine could not be reached; 1 never tries again.", why: "two failed engines are bad luck, three are an outage that more tries make worse"},
		{key: "clients", val: sub(&s.Clients), doc: "What clients' connections are held to, on each listener for itself."},
		{key: "public_metrics", val: flag(&s.PublicMetrics, false), doc: "Whether the public listener has /metrics too.", why: "metrics name engines"},
		{key: "public_flush_cache", val: flag(&s.PublicFlushCache, false), doc: "Whether the public listener has /flush_cache too.", why: "anybody could empty every engine's cache"},
	}
}

func (c *ClientLimits) fields() []field {
	return []field{
		{key: "header_timeout", fixed: true, val: span(&c.HeaderTimeout, 10*time.Second, time.Millisecond, 0), doc: "How long a client may take over a request's head, and over TLS's handshake.", why: "a head comes in one packet or two; who trickles one holds a connection for nothing"},
		{key: "idle_timeout", fixed: true, val: span(&c.IdleTimeout, 120*time.Second, time.Millisecond, 0), doc: "How long a connection is kept between requests.", why: "load balancers use a connection again within a minute"},
		{key: "body_timeout", val: span(&c.BodyTimeout, 30*time.Second, time.Millisecond, 0), doc: "How long a client may send nothing while its body comes; then it gets a 408.", why: "a client on a poor line still sends something every half minute; one that does not holds a connection and its memory for nothing"},
		{key: "send_timeout", val: span(&c.SendTimeout, 120*time.Second, time.Millisecond, 0), doc: "How long a client may take for the next part of an answer, of 64 KiB at most, on Linux of some 140 KiB; then its connection is closed.", why: "sgl-router's: long enough for a laptop that changes its network. [What a slow reader costs](operations.md#memory)"},
		{key: "max_header_bytes", fixed: true, val: size(&c.MaxHeaderBytes, 64<<10, 4<<10, 16<<20), doc: "The largest head of a request.", why: "eight times what large cookies need"},
		{key: "max_connections", fixed: true, unit: "connections", val: whole(&c.MaxConnections, 8192, 1, math.MaxInt32), doc: "The connections that are open at once; one more takes the place of the one that has waited longest for its next request, and is closed at once where none waits, over plain HTTP with a 503.", why: "with a stream on each some 270 MiB, and with their engines' connections 16,384 descriptors"},
		{key: "max_requests", fixed: true, unit: "requests", val: whole(&c.MaxRequests, 8192, 1, math.MaxInt32), doc: "The requests that are under way at once, on all connections; one more gets a 503. It matters to HTTP/2, which has many on one connection.", why: "as many as connections"},
		{key: "max_streams", fixed: true, unit: "requests", val: whole(&c.MaxStreams, 250, 1, math.MaxInt32), doc: "The requests that are under way at once on one HTTP/2 connection; clients are told, and wait or open another.", why: "Go's; clients of one process seldom have more, and 33 such connections reach `max_requests`"},
	}
}

func (a *Admin) fields() []field {
	return []field{
		{key: "host", fixed: true, val: textIn(&a.Host, "127.0.0.1", checkHost), doc: "The address of the admin listener.", why: "operators are on the machine or come through a tunnel"},
		{key: "port", fixed: true, val: optWhole(&a.Port, 0, 65535), doc: "The port of the admin listener; 0 takes any free one and prints it. Off when not given: a default would collide when two gateways share a machine."},
		{key: "tls", fixed: true, val: optional(&a.TLS, itself), doc: "TLS on the admin listener, written like `server.tls`; plain HTTP when not given."},
		{key: "api_keys", val: optional(&a.APIKeys, func(k *APIKeys) record { return adminKeys{k} }), doc: "The keys that operators need, for everything but /healthz and /readyz; none when not given."},
	}
}

func (t *TLS) fields() []field {
	return []field{
		{key: "cert_file", val: textIn(&t.CertFile, "", checkName), doc: "A PEM file with the certificate, followed by those that lead to the root; with `key_file`."},
		{key: "key_file", val: textIn(&t.KeyFile, "", checkName), doc: "A PEM file with the certificate's private key; with `cert_file`."},
	}
}

func (k *APIKeys) fields() []field {
	return []field{
		{key: "file", required: true, val: textIn(&k.File, "", checkName), doc: "The file with the keys; it is read anew when it changes."},
		{key: "forward_authorization", val: flag(&k.ForwardAuthorization, false),
			doc: "Whether the client's Authorization is passed on to engines that have no `api_key_file`.", why: "it is a key of this gateway, which engines have no business to know"},
	}
}

// adminKeys are the keys of the admin listener, which passes nothing on.
type adminKeys struct{ *APIKeys }

func (k adminKeys) fields() []field { return k.APIKeys.fields()[:1] }

func (c *ClientFields) fields() []field {
	return []field{
		{key: "allow", val: words(&c.Allow, "text", checkGuarded, false), doc: "The fields that clients may set after all. With `rid`: SGLang takes an abort to mean every request whose id begins with the one given, so the gateway aborts by a client's id only if it has 32 characters or more; a request with a shorter one may go on at the engine when its client has left."},
		{key: "default", val: enum(&c.Default, RefuseField, RefuseField, StripField), doc: "What happens to the others: a 400 that names the field, or removal.", why: "a field that disappears silently is harder to find than a refusal"},
	}
}

func (b *Breaker) fields() []field {
	return []field{
		{key: "threshold", fixed: true, unit: "failures", val: whole(&b.Threshold, 3, 1, math.MaxUint32), doc: "How many failures in a row take an engine out.", why: "one may be chance"},
		{key: "cool_down", fixed: true, val: span(&b.CoolDown, 30*time.Second, time.Nanosecond, 0), doc: "How long it stays out before one request probes it.", why: "an engine needs about that long to restart its process"},
		{key: "floor", fixed: true, val: share(&b.Floor, 0.5), doc: "The share of a group's engines below which breakers stop counting for engines whose load reports are fresh: engines that answer polls are up, and what fails are the requests. 0: breakers always count.", why: "when more than half have failed, the requests are the likelier cause, and those that are left would get twice their load"},
	}
}

func (l *Load) fields() []field {
	return []field{
		{key: "poll_interval", fixed: true, val: span(&l.PollInterval, time.Second, 10*time.Millisecond, 0), doc: "How often each engine is asked.", why: "engines publish an unchanged load once a second"},
		{key: "freshness", fixed: true, val: span(&l.Freshness, 5*time.Second, 10*time.Millisecond, 0), doc: "How old a report may be; an older one is unknown. More than `poll_interval`.", why: "survives a few lost polls"},
	}
}

func (l *Log) fields() []field {
	return []field{
		{key: "level", val: enum(&l.Level, LogInfo, LogDebug, LogInfo, LogWarn, LogError), doc: "The least severe level that is logged."},
		{key: "format", fixed: true, val: enum(&l.Format, LogText, LogText, LogJSON), doc: "How a line is written."},
	}
}

func resetAll(fields []field) {
	for _, f := range fields {
		f.val.reset()
	}
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
