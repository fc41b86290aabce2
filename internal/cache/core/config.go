package core

import (
	"time"

	"github.com/perigee-llm/perigee/internal/cache/planning"
	"github.com/perigee-llm/perigee/internal/cache/storage/dram"
)

// Config is what a Core is made of. The zero value of each field is its default.
type Config struct {
	// Epoch is of this start of the daemon: drawn by the shell, never 0.
	Epoch uint64
	// Secret spreads blocks over their index, so that no client can choose names that meet there: drawn by the shell, and told nobody.
	Secret uint64
	// Tables is where what is kept of each block lies: nil is Go's heap. The Core never gives all of it back; whoever made it may take it when he lets go of the Core.
	Tables  dram.Memory
	Budgets Budgets
	Limits  Limits
	// Scopes are the tenants with budgets of their own; one that is not listed has DefaultScope's.
	Scopes       map[Scope]ScopeBudget
	DefaultScope ScopeBudget
	// Routes are those that whoever carries the actions out can take: 0 is planning.Built. What lies where none of them goes is not there, for any query.
	Routes planning.Routes
}

// Budgets bound, in bytes, what queries hold at once: what they have reserved for reading and what their leases cover. Each owner is charged
// for all that it holds, shared or not, so that one's end never puts another over its budget.
type Budgets struct {
	// Total is for all sessions. 0 is three quarters of the pool, as it is then: the rest can always be evicted, so publishing goes on.
	Total int64
	// Instance is for each session, which may register less. 0 is an equal part of Total for each of Instances.
	Instance int64
	// Speculative is for all Warm queries together, and a quarter of an instance's is for its own. 0 is a quarter of Total: what
	// somebody may want never displaces what somebody waits for.
	Speculative int64
	// Offered is for all memory that sessions offer together: what of engines' own pools the shell maps. 0 is no bound.
	Offered int64
	// Instances is how many sessions there are to be, for what Instance is by default. 0 is one.
	Instances int
}

// ScopeBudget bounds one tenant, in bytes. 0 is no bound.
type ScopeBudget struct {
	// Resident is what its blocks may occupy: a hard bound. Above it, its own blocks go for its new ones.
	Resident int64
	// Share is what the others leave to it: while a scope has more than its share, its blocks go first.
	Share int64
	// Query is what its queries may hold at once.
	Query int64
}

// Limits bound tables and times. The zero value of each is its default.
type Limits struct {
	// Queries a session may have open, and all together. 128 and 1,024: an engine admits a few dozen requests at a time, and each
	// waiting query costs its hashes, 16 KiB for 512 of them: see WaitingNames.
	SessionQueries, Queries int
	// WaitingNames is how many block names a session's queries may have that wait for bytes, and all sessions' eight times as many: above it
	// they are Busy. 65,536: 128 queries of 512 blocks or eight of the largest, 2 MiB.
	WaitingNames int
	// Looks is how many names of waiting queries one step looks up at most, but at least one query's. 16,384: two of the largest messages, a
	// millisecond.
	Looks int
	// Publishes a session may have open. 256: more than an engine has steps in flight.
	Publishes int
	// Blocks in one message. 8,192: a million tokens in blocks of 128, 256 KiB of hashes.
	Blocks int
	// Identity is how many bytes of identity records a session's unfinished blocks may have. 16 MiB: those of 4,000 blocks of 1,024
	// tokens, and a session that has so many open at once is given no room for more until some are sealed.
	Identity int
	// Copies between slots and offered memory that a session may have under way, and pieces of them all together. 256: two for
	// each of 64 ranks, twice over. 262,144: four of the largest messages, which take some ten MiB; of all
	// sessions together four times as many.
	Copies, Pieces int
	// SessionPools and Pools are how many pools of its own a session may offer, and all together. 128: two for each of 64 ranks. 512:
	// each is a descriptor and a map.
	SessionPools, Pools int
	// Names of namespaces in use, and of tenants: 1,024 of each. A host has a few of the first and at most some hundreds of the second.
	Names int
	// Sessions, alive or quarantined. 256: a host has fewer than ten; the rest is for crash loops.
	Sessions int
	// Wait is the longest waiting budget. 60 s: no engine lets a request wait longer for a cache.
	Wait time.Duration
	// LeaseTTL is how long a lease waits for its first consumer. 600 s: the engine's queue before it. It never ends a lease that
	// is being read.
	LeaseTTL time.Duration
	// Patience is how long a grant may be unsealed or a restore uncopied before its session is closed as hanging. 120 s: a
	// copy takes milliseconds, a stopped debugger minutes.
	Patience time.Duration
}

func (l Limits) withDefaults() Limits {
	def := func(p *int, n int) {
		if *p == 0 {
			*p = n
		}
	}
	def(&l.SessionQueries, 128)
	def(&l.Queries, 1024)
	def(&l.WaitingNames, 1<<16)
	def(&l.Looks, 1<<14)
	def(&l.Publishes, 256)
	def(&l.Blocks, 8192)
	def(&l.Identity, 16<<20)
	def(&l.Sessions, 256)
	def(&l.Names, maxNames)
	def(&l.Copies, 256)
	def(&l.Pieces, 1<<18)
	def(&l.SessionPools, 128)
	def(&l.Pools, 512)
	for _, d := range []struct {
		p *time.Duration
		n time.Duration
	}{{&l.Wait, 60 * time.Second}, {&l.LeaseTTL, 600 * time.Second}, {&l.Patience, 120 * time.Second}} {
		if *d.p == 0 {
			*d.p = d.n
		}
	}
	return l
}

// MaxParts is how many parts a block can have: ranks of tensor and pipeline parallelism. 64 fit one word of bits.
const MaxParts = 64
