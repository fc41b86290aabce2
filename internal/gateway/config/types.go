package config

import "time"

// Config is a whole gateway. Its zero value is not usable: take one from Parse, Flags.Config or Default.
type Config struct {
	Models       []Model // at least one
	Discovery    Discovery
	Managers     []Manager // nil: none is followed
	PrefixIndex  PrefixIndex
	Peers        *Peers // nil: this gateway tells no other what it sends, and hears of none
	Server       Server
	ClientFields ClientFields
	Breaker      Breaker
	Load         Load
	Log          Log
	Tracing      *Tracing // nil: no spans are made
}

// Model is one base model that the gateway serves.
type Model struct {
	ID        string   // the name that clients send; unique among ids and aliases
	Aliases   []string // other names for the same model; nil when none
	Tokenizer string   // a directory or a tokenizer.json; empty: there is none
	// EngineTokenize has an engine count prompts where there is no tokenizer.
	EngineTokenize bool
	// InputIDsForwarding says whether token ids made here may replace an engine's own tokenising.
	InputIDsForwarding bool
	Sampling           Sampling
	// Policy is the default of plain and prefill groups, DecodePolicy that of decode groups, and Admission fills the caps that
	// a group leaves unset. They are already merged into Buckets; selection reads only Buckets.
	Policy       Policy
	DecodePolicy Policy
	Admission    Admission
	// Buckets is never empty: a model written without any has two that take every length, "plain" (rank 0) and "pd" (rank 1).
	Buckets []Bucket
}

// Bucket is a range of request lengths and the engines that serve it. Exactly one of Plain and PD is set.
type Bucket struct {
	ID               string // unique within the model
	Rank             int    // 0 or more; the smaller is tried first among equal capacities
	MinInputTokens   int    // inclusive; 0: no lower bound
	MaxInputTokens   *int   // inclusive, 1 or more; nil: unbounded
	MaxContextTokens *int   // input plus requested output, inclusive, 1 or more; nil: unbounded
	Plain            *Group
	PD               *PD
}

// PD is the two groups of a bucket that separates prefill from decode.
type PD struct {
	Prefill Group
	Decode  Group
}

// Group is the engines of one stage of one bucket, and how one of them is picked.
type Group struct {
	Policy Policy
	// Workers holds discovery ids. Nil means every engine of the model and stage; empty but not nil means none.
	Workers   []string
	Admission Admission
}

// Admission is a set of caps on one engine. A cap admits while the engine's metric is known and below it, or unknown.
// Nil is not checked; 0 rejects whenever the metric is known. The zero value admits everything.
type Admission struct {
	MaxRunningRequests      *int // requests that the engine reports as running
	MaxWaitingRequests      *int // requests that the engine reports as waiting
	MaxKVTokens             *int // KV tokens, used and queued, that the engine reports
	MaxPendingPrefillTokens *int // waiting uncached tokens that the engine reports
	MaxInflightRequests     *int // requests that this gateway has in flight to the engine; always known
}

// PolicyName names a selection policy.
type PolicyName string

// The policies. Which of them this version can run is told by notBuilt.
const (
	RoundRobin   PolicyName = "round_robin"
	Random       PolicyName = "random"
	PowerOfTwo   PolicyName = "power_of_two"
	LoadBased    PolicyName = "load_based"
	CacheAware   PolicyName = "cache_aware"
	Cost         PolicyName = "cost"
	SessionAware PolicyName = "session_aware"
	Sticky       PolicyName = "sticky"
)

// Policy is a policy and its settings. At most one of the pointers is set: the one that Name names.
type Policy struct {
	Name         PolicyName
	CacheAware   *CacheAwareSettings
	Cost         *CostSettings
	SessionAware *SessionAwareSettings
	Sticky       *StickySettings
}

// PrefixProvider says who knows which engine holds which prefix.
type PrefixProvider string

// The prefix providers.
const (
	RadixTree PrefixProvider = "radix_tree" // this gateway's own index
	Indexer   PrefixProvider = "indexer"    // a remote indexer of SGLang's, kv_indexer.v1
	// PerigeeIndex is a remote `perigee index`, perigee.index.v1.
	PerigeeIndex PrefixProvider = "perigee_index"
)

// CacheAwareSettings tunes cache_aware. Counts of tokens, requests and engines are plain numbers; shares are in [0, 1].
type CacheAwareSettings struct {
	PrefixProvider       PrefixProvider // never empty after parsing
	KVIndexer            KVIndexer
	MinMatchedTokens     int
	MinMatchRatio        *float64 // nil: not checked
	Candidates           Candidates
	SwitchMarginTokens   int
	WorkerQueueLimit     *int // nil: off
	SaturationQueueFloor *int // nil: off
	MinLoadChoices       int
	PressureGuard        PressureGuard
}

// CostSettings tunes cost.
type CostSettings struct {
	PrefixProvider PrefixProvider // never empty after parsing
	KVIndexer      KVIndexer
	PrefillRate    *int // tokens a second; nil: the policy's own
}

// Candidates bounds how many prefix holders are considered.
type Candidates struct {
	MinWorkers int
	Ratio      float64
	MaxWorkers int
}

// PressureGuard keeps a prefix hit from winning against a much less loaded engine.
type PressureGuard struct {
	Enabled            bool
	AbsThresholdTokens int
	AbsThreshold       *time.Duration // nil: queue time is not compared
	RelThreshold       float64
}

// SessionAwareSettings tunes session_aware.
type SessionAwareSettings struct {
	Header           string
	Idle             time.Duration
	EvictionInterval time.Duration
}

// StickySettings tunes sticky.
type StickySettings struct {
	Header           string
	FallbackPolicy   PolicyName
	Idle             time.Duration
	EvictionInterval time.Duration
}

// Conflict says what happens to a request whose sampling parameter contradicts the operator's.
type Conflict string

// What happens on a conflict.
const (
	ConflictReject Conflict = "reject" // 400
	ConflictAllow  Conflict = "allow"  // the client's value passes
)

// Sampling is the contract on sampling parameters. The zero value has none.
type Sampling struct {
	Override []SamplingRule // sorted by Param; nil when none
	Conflict Conflict       // never empty after parsing
}

// SamplingRule fixes one parameter to a value, or to a band.
type SamplingRule struct {
	Param string
	// Exact is the value as a JSON number, injected where the request leaves Param out; empty for a band.
	Exact    string
	Min, Max float64 // inclusive; both are the value itself when Exact is set
}

// Role is what an engine does.
type Role string

// The roles. The empty role means that the engine is asked.
const (
	RolePlain   Role = "plain"
	RolePrefill Role = "prefill"
	RoleDecode  Role = "decode"
)

// Discovery is where engines come from. Exactly one is set.
type Discovery struct {
	Static     *Static
	File       *FileDiscovery
	Kubernetes *Kubernetes
	Etcd       *Etcd
}

// Static is a fixed list of engines.
type Static struct {
	Workers    []Worker // at least one
	APIKeyFile string   // of every worker that has none of its own; already merged into Workers. Empty: none
}

// Worker is one engine of a static list.
type Worker struct {
	URL  string // http or https, without a trailing slash
	ID   string // what groups refer to: the given id, or else the URL exactly as written
	Role Role
	// APIKeyFile has the key that the gateway presents to the engine. Empty: it has none to present.
	APIKeyFile string
	// KVEvents says where it publishes; nil: it is asked.
	KVEvents *KVEvents
}

// FileDiscovery reads the engines from a file that is watched.
type FileDiscovery struct {
	Path string
}

// Kubernetes reads the engines from EndpointSlices.
type Kubernetes struct {
	Namespace       string  // empty: all namespaces
	Selector        *string // plain mode; the empty selector is legal and matches everything
	PrefillSelector *string
	DecodeSelector  *string
}

// Etcd reads the engines from etcd.
type Etcd struct {
	Endpoints []string
	Prefix    string
}

// Server is the public listener, the admin listener and their limits.
type Server struct {
	Host                string
	Port                int      // 0: any free port, printed at start
	TLS                 *TLS     // nil: plain HTTP
	APIKeys             *APIKeys // nil: everybody may use the gateway
	Admin               Admin
	ShutdownDrain       time.Duration
	TerminationGrace    *time.Duration // advice only; nil: not told
	RequestTimeout      time.Duration
	StreamIdleTimeout   time.Duration
	StaleRequestTimeout time.Duration
	MaxBodyBytes        int64
	MaxBufferedBytes    int64 // of all request bodies and answers held at once; at least twice MaxBodyBytes
	MaxAttempts         int
	Clients             ClientLimits
	PublicMetrics       bool
	PublicFlushCache    bool
}

// ClientLimits are what clients' connections are held to, on each listener for itself.
type ClientLimits struct {
	HeaderTimeout  time.Duration // for a request's whole head
	IdleTimeout    time.Duration // between requests
	BodyTimeout    time.Duration // of silence while a body comes
	SendTimeout    time.Duration // for the next part of an answer: of up to 64 KiB, or a third of a socket's buffer where that is more
	MaxHeaderBytes int64
	MaxConnections int
	MaxRequests    int // at once, over all connections
	MaxStreams     int // of one HTTP/2 connection
}

// Admin is the listener for operators.
type Admin struct {
	Host string
	Port *int // nil: no admin listener; 0: any free port, printed at start
	// TLS and APIKeys are like the public listener's; ForwardAuthorization means nothing here.
	TLS     *TLS
	APIKeys *APIKeys
}

// TLS is the certificate of a listener. Both are PEM files, and neither name is empty after parsing.
type TLS struct {
	CertFile string // the certificate, followed by those that lead to the root
	KeyFile  string // its private key
}

// APIKeys are the keys that clients need.
type APIKeys struct {
	File string // what ReadKeys reads; never empty after parsing
	// ForwardAuthorization passes the client's Authorization header on to engines although it is a key of this gateway.
	ForwardAuthorization bool
}

// FieldAction says what happens to a field that a client may not set.
type FieldAction string

// What happens to such a field.
const (
	RefuseField FieldAction = "refuse" // 400 that names the field
	StripField  FieldAction = "strip"  // the field is removed and the request goes on
)

// ClientFields is the rule for request fields that steer an engine's internals.
type ClientFields struct {
	Allow   []string // names out of GuardedFields; nil when none
	Default FieldAction
}

// Breaker is the circuit breaker of each engine.
type Breaker struct {
	Threshold int // consecutive failures
	CoolDown  time.Duration
	Floor     float64 // share of a group's engines; 0: breakers always count
}

// Load is how engines are asked for their load.
type Load struct {
	PollInterval time.Duration
	Freshness    time.Duration // an older report is unknown, never zero
}

// LogLevel is the least severe level that is logged.
type LogLevel string

// The levels.
const (
	LogDebug LogLevel = "debug"
	LogInfo  LogLevel = "info"
	LogWarn  LogLevel = "warn"
	LogError LogLevel = "error"
)

// LogFormat is how a log line is written.
type LogFormat string

// The formats.
const (
	LogText LogFormat = "text"
	LogJSON LogFormat = "json"
)

// Log is logging, always to stderr.
type Log struct {
	Level  LogLevel
	Format LogFormat
}
