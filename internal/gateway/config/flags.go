package config

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

// Flags are the flags of the gateway: sgl-router's, with their names and rules, and a few of ours. Embed it in a kong command.
//
// What a flag sets is told by its path tag, the key of the schema; for marks a setting of one policy, as the spelling:
//
//	text, num  as written            secs, ms  a whole number of seconds, milliseconds
//	not        a switch that turns the key off      list, terms  several values; terms are joined with commas
//	json       an object
//
// A flag with the tag dropped is known so that it can be refused with what replaces it.
type Flags struct {
	ConfigFile Once `name:"config" placeholder:"FILE" group:"Configuration" help:"Read the configuration from a YAML file. Flags of the groups Server, Logging and Breaker may be given too and take precedence; all others must be in the file."`

	ModelID                   Once `name:"model-id" path:"models.id" as:"text" placeholder:"ID" group:"Model" help:"The model to serve. Required without --config."`
	TokenizerPath             Once `name:"tokenizer-path" path:"models.tokenizer" as:"text" placeholder:"PATH" group:"Model" help:"The model's directory, or its tokenizer.json: prompts are then measured exactly (default: none; lengths are estimated)."`
	DisableInputIDsForwarding bool `name:"disable-input-ids-forwarding" path:"models.input_ids_forwarding" as:"not" group:"Model" help:"Send no token ids along with requests."`
	OverrideSamplingParams    Once `name:"override-sampling-params" path:"models.sampling.override" as:"json" placeholder:"JSON" group:"Model" help:"Sampling parameters to fix: one JSON object of numbers and {\"min\":..,\"max\":..} bands."`
	SamplingParamConflict     Once `name:"sampling-param-conflict" path:"models.sampling.conflict" as:"text" placeholder:"reject|allow" group:"Model" help:"What happens when a client contradicts them (default: reject)."`

	Host                    Once `name:"host" path:"server.host" as:"text" placeholder:"ADDR" group:"Server" help:"Address of the public listener (default: 127.0.0.1)."`
	Port                    Once `name:"port" path:"server.port" as:"num" placeholder:"N" group:"Server" help:"Port of the public listener; 0 takes any free one (default: 30000)."`
	TLSCertFile             Once `name:"tls-cert-file" path:"server.tls.cert_file" as:"text" placeholder:"FILE" group:"Server" help:"The certificate of the public listener (PEM); with --tls-key-file."`
	TLSKeyFile              Once `name:"tls-key-file" path:"server.tls.key_file" as:"text" placeholder:"FILE" group:"Server" help:"Its private key (PEM)."`
	APIKeysFile             Once `name:"api-keys-file" path:"server.api_keys.file" as:"text" placeholder:"FILE" group:"Server" help:"The API keys that clients need (default: none)."`
	AdminHost               Once `name:"admin-host" path:"server.admin.host" as:"text" placeholder:"ADDR" group:"Server" help:"Address of the admin listener (default: 127.0.0.1)."`
	AdminPort               Once `name:"admin-port" path:"server.admin.port" as:"num" placeholder:"N" group:"Server" help:"Port of the admin listener; off when not given."`
	PublicMetrics           bool `name:"public-metrics" path:"server.public_metrics" as:"yes" group:"Server" help:"Serve /metrics on the public listener too."`
	PublicFlushCache        bool `name:"public-flush-cache" path:"server.public_flush_cache" as:"yes" group:"Server" help:"Serve /flush_cache on the public listener too."`
	ShutdownDrainSecs       Once `name:"shutdown-drain-secs" path:"server.shutdown_drain" as:"secs" placeholder:"SECS" group:"Server" help:"How long to go on accepting after SIGTERM, 0 to 1800 (default: 30)."`
	TerminationGraceSecs    Once `name:"termination-grace-secs" path:"server.termination_grace" as:"secs" placeholder:"SECS" group:"Server" help:"What the platform grants after SIGTERM; only used to warn."`
	RequestTimeoutSecs      Once `name:"request-timeout-secs" path:"server.request_timeout" as:"secs" placeholder:"SECS" group:"Server" help:"How long an answer that is not streamed may take (default: 300)."`
	StreamIdleTimeoutSecs   Once `name:"stream-idle-timeout-secs" path:"server.stream_idle_timeout" as:"secs" placeholder:"SECS" group:"Server" help:"How long a stream may be silent (default: 180)."`
	StaleRequestTimeoutSecs Once `name:"stale-request-timeout-secs" path:"server.stale_request_timeout" as:"secs" placeholder:"SECS" group:"Server" help:"The longest life of a request (default: 600)."`
	MaxBodyBytes            Once `name:"max-body-bytes" path:"server.max_body_bytes" as:"num" placeholder:"SIZE" group:"Server" help:"The largest request body (default: 32MiB)."`
	MaxBufferedBytes        Once `name:"max-buffered-bytes" path:"server.max_buffered_bytes" as:"num" placeholder:"SIZE" group:"Server" help:"The request bodies held at once, all together (default: 1GiB)."`
	MaxAttempts             Once `name:"max-attempts" path:"server.max_attempts" as:"num" placeholder:"N" group:"Server" help:"Selections a request may get when engines cannot be reached, 1 to 3 (default: 3)."`
	ClientFields            Once `name:"client-fields" path:"client_fields.default" as:"text" placeholder:"refuse|strip" group:"Server" help:"What happens to request fields that clients may not set (default: refuse)."`
	AllowClientFields       List `name:"allow-client-fields" path:"client_fields.allow" as:"list" placeholder:"FIELD..." group:"Server" help:"Such fields that clients may set after all."`

	LogLevel  Once `name:"log-level" path:"log.level" as:"text" placeholder:"LEVEL" group:"Logging" help:"debug, info, warn or error (default: info)."`
	LogFormat Once `name:"log-format" path:"log.format" as:"text" placeholder:"text|json" group:"Logging" help:"How log lines are written (default: text)."`

	OTLPTracesEndpoint Once `name:"otlp-traces-endpoint" path:"tracing.endpoint" as:"text" placeholder:"URL" group:"Logging" help:"Make spans of requests and send them to this OpenTelemetry collector, by OTLP/HTTP (default: none)."`

	CBThreshold       Once `name:"cb-threshold" path:"breaker.threshold" as:"num" placeholder:"N" group:"Breaker" help:"Failures in a row that take an engine out (default: 3)."`
	HeaderTimeoutSecs Once `name:"header-timeout-secs" path:"server.clients.header_timeout" as:"secs" placeholder:"SECS" group:"Server" help:"How long a client may take over a request's head (default: 10)."`
	IdleTimeoutSecs   Once `name:"idle-timeout-secs" path:"server.clients.idle_timeout" as:"secs" placeholder:"SECS" group:"Server" help:"How long a client's connection is kept between requests (default: 120)."`
	BodyTimeoutSecs   Once `name:"body-timeout-secs" path:"server.clients.body_timeout" as:"secs" placeholder:"SECS" group:"Server" help:"How long a client may send nothing while its body comes (default: 30)."`
	SendTimeoutSecs   Once `name:"send-timeout-secs" path:"server.clients.send_timeout" as:"secs" placeholder:"SECS" group:"Server" help:"How long a client may take for the next part of an answer, of 64 KiB at most, on Linux of some 140 KiB (default: 120)."`
	MaxHeaderBytes    Once `name:"max-header-bytes" path:"server.clients.max_header_bytes" as:"num" placeholder:"SIZE" group:"Server" help:"The largest head of a request (default: 64KiB)."`
	MaxConnections    Once `name:"max-connections" path:"server.clients.max_connections" as:"num" placeholder:"N" group:"Server" help:"Clients' connections that are open at once, on each listener (default: 8192)."`
	MaxRequests       Once `name:"max-requests" path:"server.clients.max_requests" as:"num" placeholder:"N" group:"Server" help:"Clients' requests that are under way at once, on each listener (default: 8192)."`
	MaxStreams        Once `name:"max-streams" path:"server.clients.max_streams" as:"num" placeholder:"N" group:"Server" help:"Of those, how many one HTTP/2 connection may have (default: 250)."`

	CBFloor        Once `name:"cb-floor" path:"breaker.floor" as:"num" placeholder:"SHARE" group:"Breaker" help:"Share of a group's engines below which breakers stop counting for engines that are up (default: 0.5)."`
	CBCoolDownSecs Once `name:"cb-cool-down-secs" path:"breaker.cool_down" as:"secs" placeholder:"SECS" group:"Breaker" help:"How long it stays out; needs --cb-threshold (default: 30)."`

	WorkerURLs                List `name:"worker-urls" path:"discovery.static.workers" as:"list" placeholder:"URL..." group:"Discovery" help:"The engines: several after one flag, separated by commas, or the flag again."`
	EngineAPIKeyFile          Once `name:"engine-api-key-file" path:"discovery.static.api_key_file" as:"text" placeholder:"FILE" group:"Discovery" help:"A file with the key that engines ask for."`
	ServiceDiscovery          bool `name:"service-discovery" group:"Discovery" help:"Find the engines in Kubernetes' EndpointSlices."`
	ServiceDiscoveryNamespace Once `name:"service-discovery-namespace" path:"discovery.kubernetes.namespace" as:"text" placeholder:"NAME" group:"Discovery" help:"The namespace (default: all)."`
	Selector                  List `name:"selector" path:"discovery.kubernetes.selector" as:"terms" placeholder:"TERM..." group:"Discovery" help:"Labels of plain engines."`
	PrefillSelector           List `name:"prefill-selector" path:"discovery.kubernetes.prefill_selector" as:"terms" placeholder:"K=V..." group:"Discovery" help:"Labels of prefill engines; with --decode-selector."`
	DecodeSelector            List `name:"decode-selector" path:"discovery.kubernetes.decode_selector" as:"terms" placeholder:"K=V..." group:"Discovery" help:"Labels of decode engines; with --prefill-selector."`

	Policy       Once `name:"policy" path:"models.policy" as:"text" placeholder:"NAME" group:"Routing" help:"How a plain or prefill engine is picked (default: round_robin)."`
	DecodePolicy Once `name:"decode-policy" path:"models.decode_policy" as:"text" placeholder:"NAME" group:"Routing" help:"How a decode engine is picked (default: power_of_two)."`
	Filter       List `name:"filter" placeholder:"overloaded" group:"Routing" help:"overloaded refuses engines with --max-in-flight requests."`
	MaxInFlight  Once `name:"max-in-flight" path:"models.admission.max_inflight_requests" as:"num" placeholder:"N" group:"Routing" help:"Requests in flight to an engine at which it is refused; with --filter overloaded."`

	CachePrefixProvider           Once `name:"cache-prefix-provider" for:"cache_aware" path:"prefix_provider" as:"text" placeholder:"NAME" group:"Cache-aware" help:"radix_tree, indexer or perigee_index (default: indexer with an endpoint, else radix_tree)."`
	KVIndexerEndpoint             Once `name:"kv-indexer-endpoint" for:"cache_aware" path:"kv_indexer.endpoint" as:"text" placeholder:"URL" group:"Cache-aware" help:"A remote prefix indexer."`
	KVIndexerQueryTimeoutMs       Once `name:"kv-indexer-query-timeout-ms" for:"cache_aware" path:"kv_indexer.query_timeout" as:"ms" placeholder:"MS" group:"Cache-aware" help:"How long a look-up may take (default: 100)."`
	KVIndexerQueryMaxInflight     Once `name:"kv-indexer-query-max-inflight" for:"cache_aware" path:"kv_indexer.query_max_inflight" as:"num" placeholder:"N" group:"Cache-aware" help:"Look-ups that may be out at once (default: 32)."`
	CacheAffinityMinMatchedTokens Once `name:"cache-affinity-min-matched-tokens" for:"cache_aware" path:"min_matched_tokens" as:"num" placeholder:"N" group:"Cache-aware" help:"The shortest match that is a hit (default: 1024)."`
	CacheAffinityMinMatchRatio    Once `name:"cache-affinity-min-match-ratio" for:"cache_aware" path:"min_match_ratio" as:"num" placeholder:"SHARE" group:"Cache-aware" help:"The smallest share of the input that is a hit."`
	CacheCandidateMinWorkers      Once `name:"cache-candidate-min-workers" for:"cache_aware" path:"candidates.min_workers" as:"num" placeholder:"N" group:"Cache-aware" help:"Holders considered, at least (default: 8)."`
	CacheCandidateRatio           Once `name:"cache-candidate-ratio" for:"cache_aware" path:"candidates.ratio" as:"num" placeholder:"SHARE" group:"Cache-aware" help:"Holders considered, as a share of the group (default: 0.05)."`
	CacheCandidateMaxWorkers      Once `name:"cache-candidate-max-workers" for:"cache_aware" path:"candidates.max_workers" as:"num" placeholder:"N" group:"Cache-aware" help:"Holders considered, at most (default: 32)."`
	CacheSwitchMarginTokens       Once `name:"cache-switch-margin-tokens" for:"cache_aware" path:"switch_margin_tokens" as:"num" placeholder:"N" group:"Cache-aware" help:"How much more uncached work a less loaded holder may have (default: 1024)."`
	WorkerQueueLimit              Once `name:"worker-queue-limit" for:"cache_aware" path:"worker_queue_limit" as:"num" placeholder:"N" group:"Cache-aware" help:"Waiting requests at which a holder is passed over."`
	SaturationQueueFloor          Once `name:"saturation-queue-floor" for:"cache_aware" path:"saturation_queue_floor" as:"num" placeholder:"N" group:"Cache-aware" help:"Waiting requests below which an engine counts as idle; needs --worker-queue-limit."`
	MinLoadChoices                Once `name:"min-load-choices" for:"cache_aware" path:"min_load_choices" as:"num" placeholder:"N" group:"Cache-aware" help:"Engines sampled on a miss (default: 2)."`
	DisablePressureGuard          bool `name:"disable-pressure-guard" for:"cache_aware" path:"pressure_guard.enabled" as:"not" group:"Cache-aware" help:"Let the longest prefix win whatever the load."`
	PressureAbsThresholdTokens    Once `name:"pressure-abs-threshold-tokens" for:"cache_aware" path:"pressure_guard.abs_threshold_tokens" as:"num" placeholder:"N" group:"Cache-aware" help:"The difference in waiting tokens that counts as pressure (default: 1024)."`
	PressureAbsThresholdMs        Once `name:"pressure-abs-threshold-ms" for:"cache_aware" path:"pressure_guard.abs_threshold" as:"ms" placeholder:"MS" group:"Cache-aware" help:"The same as queue time."`
	PressureRelThreshold          Once `name:"pressure-rel-threshold" for:"cache_aware" path:"pressure_guard.rel_threshold" as:"num" placeholder:"X" group:"Cache-aware" help:"The factor that must be exceeded as well (default: 1.5)."`

	SessionIDHeader             Once `name:"session-id-header" for:"session_aware" path:"header" as:"text" placeholder:"NAME" group:"Affinity" help:"The header that names the session (default: x-session-id)."`
	SessionIdleSecs             Once `name:"session-idle-secs" for:"session_aware" path:"idle" as:"secs" placeholder:"SECS" group:"Affinity" help:"How long an unused session is kept (default: 600)."`
	SessionEvictionIntervalSecs Once `name:"session-eviction-interval-secs" for:"session_aware" path:"eviction_interval" as:"secs" placeholder:"SECS" group:"Affinity" help:"How often idle sessions are looked for (default: 60)."`
	AffinityMode                Once `name:"affinity-mode" placeholder:"strict" group:"Affinity" help:"strict: an admitted binding is reused, which is what happens anyway."`
	SessionAffinityMode         Once `name:"session-affinity-mode" placeholder:"bucket" group:"Affinity" help:"bucket: a session is bound inside each bucket, which is what happens anyway."`
	RoutingKeyHeader            Once `name:"routing-key-header" for:"sticky" path:"header" as:"text" placeholder:"NAME" group:"Affinity" help:"The header with the routing key (default: x-sgl-routing-key)."`
	StickyFallbackPolicy        Once `name:"sticky-fallback-policy" for:"sticky" path:"fallback_policy" as:"text" placeholder:"NAME" group:"Affinity" help:"The policy for new and missing keys (default: round_robin)."`
	StickyIdleSecs              Once `name:"sticky-idle-secs" for:"sticky" path:"idle" as:"secs" placeholder:"SECS" group:"Affinity" help:"How long an unused binding is kept (default: 600)."`
	StickyEvictionIntervalSecs  Once `name:"sticky-eviction-interval-secs" for:"sticky" path:"eviction_interval" as:"secs" placeholder:"SECS" group:"Affinity" help:"How often idle bindings are looked for (default: 60)."`

	Fuse                List `name:"fuse" hidden:"" dropped:"remove it: scores are not fused; --policy cache_aware weighs prefixes against load by itself"`
	StablePair          bool `name:"stable-pair" hidden:"" dropped:"remove it: both engines of a pair come from one bucket; write pd buckets in --config to keep engines together"`
	PrefixCacheMinShare Once `name:"prefix-cache-min-share" hidden:"" dropped:"use --cache-affinity-min-match-ratio, which decides what a hit is (the filter removed engines)"`
	BucketConfig        Once `name:"bucket-config" hidden:"" dropped:"write pd buckets in a YAML file for --config: which prefill and decode buckets belong together is never guessed"`
	ChatRouting         Once `name:"chat-routing" hidden:"" dropped:"remove it: there is one way to route, bucket by bucket"`
	SelectionEngine     Once `name:"selection-engine" hidden:"" dropped:"remove it: there is one way to route, bucket by bucket"`
	ReorgConfig         Once `name:"reorg-config" hidden:"" dropped:"write the buckets in a YAML file for --config"`
}

// Once is the value of a flag that may be given once. The zero value is a flag that was not given, which is not the same as one that
// was given its default. More than one value is kept so that the repetition can be refused instead of the last one winning.
type Once struct{ Given []string }

// Decode takes one value; kong calls it.
func (o *Once) Decode(ctx *kong.DecodeContext) error { return take(ctx, &o.Given) }

// List is the value of a flag that takes several values: after one flag until the next flag, and by repeating the flag. The zero
// value is a flag that was not given.
type List struct{ Given []string }

// Decode takes every value up to the next flag; kong calls it. A command that embeds Flags can therefore have no positional arguments.
func (l *List) Decode(ctx *kong.DecodeContext) error {
	if err := take(ctx, &l.Given); err != nil {
		return err
	}
	for next := ctx.Scan.Peek(); next.Type != kong.EOLToken && next.IsValue(); next = ctx.Scan.Peek() {
		if err := take(ctx, &l.Given); err != nil {
			return err
		}
	}
	return nil
}

func take(ctx *kong.DecodeContext, to *[]string) error {
	t, err := ctx.Scan.PopValue(ctx.Value.Name)
	if err != nil {
		return err
	}
	*to = append(*to, fmt.Sprint(t.Value))
	return nil
}

// values splits what was given at commas.
func (l List) values() []string {
	var out []string
	for _, s := range l.Given {
		for part := range strings.SplitSeq(s, ",") {
			out = append(out, strings.TrimSpace(part))
		}
	}
	return out
}

// text returns the flag's value and whether it was given.
func (o Once) text() (string, bool) {
	if len(o.Given) == 0 {
		return "", false
	}
	return o.Given[0], true
}
