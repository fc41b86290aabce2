package replay

import (
	"context"
	"math"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
)

// affinityBlocks is how many blocks of a prompt decide under prefix_affinity: those of the public simulations that we compare
// with.
const affinityBlocks = 2

// prefixAffinity sends equal beginnings of prompts to the same engine, whatever its load: the floor that a policy with a view
// of caches has to clear. It takes the candidate with the highest hash of (beginning, engine) (rendezvous hashing, Thaler and
// Ravishankar 1998), so that an engine that fails moves its own requests only.
type prefixAffinity struct{ sim *sim }

func (*prefixAffinity) Name() string { return PrefixAffinity }

func (p *prefixAffinity) Pick(_ context.Context, c *fleet.Set, r *policy.Request) (policy.Pick, error) {
	if c.Len() == 0 {
		return policy.Pick{}, &policy.PickError{Class: policy.NoCandidates, Stage: r.Stage}
	}
	key := p.sim.current.affinity(p.sim.o.Seed)
	var best *fleet.Worker
	var most uint64
	for w := range c.All() {
		if h := keyed(key, uint64(p.sim.engineOf(w))); best == nil || h > most {
			best, most = w, h
		}
	}
	return policy.Pick{Engine: best, Rank: policy.NoRank, Reason: "prefix_hash"}, nil
}

// affinity is what requests that begin alike have in common: the first blocks that are full, or the whole of a shorter prompt.
func (r *request) affinity(seed uint64) uint64 {
	n := min(affinityBlocks, len(r.Blocks))
	if n == 0 {
		return keyed(seed, forAffinity, r.number)
	}
	// The hashes form a chain, so the last one stands for all before it.
	last := r.Blocks[n-1]
	return keyed(seed, forAffinity, last.Hi, last.Lo)
}

// twoByWork draws two engines and takes the one that is free first or has been for longer, by perfect knowledge of what they have queued: what public
// simulations of routers call power of two choices. The gateway's power_of_two sees counts of requests, or reports that are
// up to a second old.
type twoByWork struct {
	sim  *sim
	seed uint64
}

func (*twoByWork) Name() string { return PowerOfTwoWork }

func (p *twoByWork) Pick(_ context.Context, c *fleet.Set, r *policy.Request) (policy.Pick, error) {
	n := uint64(c.Len())
	switch n {
	case 0:
		return policy.Pick{}, &policy.PickError{Class: policy.NoCandidates, Stage: r.Stage}
	case 1:
		return policy.Pick{Engine: c.At(0), Rank: policy.NoRank, Reason: policy.ReasonOnly}, nil
	}
	i, j := keyed(p.seed, forChoice, r.Key)%n, keyed(p.seed, forOther, r.Key)%(n-1)
	if j >= i {
		j++
	}
	a, b := c.At(int(i)), c.At(int(j))
	if p.free(b) < p.free(a) {
		a = b
	}
	return policy.Pick{Engine: a, Rank: policy.NoRank, Reason: "less_work"}, nil
}

// free returns when the engine has computed, or had computed, what it has queued.
func (p *twoByWork) free(w *fleet.Worker) time.Duration {
	switch e := p.sim.engines[p.sim.engineOf(w)]; {
	case e.core == nil:
		return math.MaxInt64
	case e.working:
		return p.sim.now + e.estimate(p.sim.now, 0)
	default:
		return e.since
	}
}

// oracle knows every engine's queue and cache at this very moment, over all gateways, and takes the engine where the request
// would have its first token first if nothing else came: the least sum of queued and own uncached work. It is greedy, so
// it bounds what a policy can reach that does not know the future, and no more than that.
type oracle struct{ sim *sim }

func (*oracle) Name() string { return Oracle }

func (p *oracle) Pick(_ context.Context, c *fleet.Set, r *policy.Request) (policy.Pick, error) {
	if c.Len() == 0 {
		return policy.Pick{}, &policy.PickError{Class: policy.NoCandidates, Stage: r.Stage}
	}
	var best *fleet.Worker
	var least time.Duration
	var spare time.Duration
	for w := range c.All() {
		e := p.sim.engines[p.sim.engineOf(w)]
		if e.core == nil {
			continue
		}
		wait := e.estimate(p.sim.now, e.uncached(p.sim.current))
		// Equal waits: the engine that has worked less, then the first. Without it an idle fleet would send all to one.
		if best == nil || wait < least || (wait == least && e.busy < spare) {
			best, least, spare = w, wait, e.busy
		}
	}
	if best == nil {
		best = c.At(0) // all are down: let the dispatch find out
	}
	return policy.Pick{Engine: best, Rank: policy.NoRank, Reason: "least_cost"}, nil
}

// pending is what the oracle knows of an engine beyond its cache: the blocks of prompts that have no first token yet, each with
// the number of those prompts, and the prompts that wait, with the tokens that they will have to compute.
type pending struct {
	blocks  map[engine.BlockHash]int
	tokens  int // of waiting prompts
	waiting int // prompts
}

// add takes in a prompt that waits. uncached is what it will have to compute: what is neither cached nor on its way there.
func (p *pending) add(r *request, uncached int) {
	if p.blocks == nil {
		p.blocks = map[engine.BlockHash]int{}
	}
	for _, b := range r.Blocks {
		p.blocks[b]++
	}
	p.tokens += uncached
	p.waiting++
	r.planned, r.waits, r.pending = uncached, true, true
}

// admit takes a prompt off the queue: the engine's core knows now what is left to do.
func (p *pending) admit(r *request) {
	if r.waits {
		p.tokens -= r.planned
		p.waiting--
		r.waits = false
	}
}

// remove forgets a prompt, when it has its first token.
func (p *pending) remove(r *request) {
	p.admit(r)
	if !r.pending {
		return
	}
	r.pending = false
	for _, b := range r.Blocks {
		if p.blocks[b]--; p.blocks[b] == 0 {
			delete(p.blocks, b)
		}
	}
}

// match returns how many leading blocks of a chain are in pending prompts: a prefix, so bisection finds its end.
func (p *pending) match(chain []engine.BlockHash) int {
	lo, hi := 0, len(chain)
	for lo < hi {
		mid := (lo + hi) / 2
		if p.blocks[chain[mid]] > 0 {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// uncached returns how many prompt tokens the engine would have to compute for r, if nothing is evicted until then.
func (e *simEngine) uncached(r *request) int {
	bs := e.core.Config().BlockSize
	chain := r.Blocks[:(r.InputTokens-1)/bs] // the last token is always computed
	return r.InputTokens - bs*max(e.core.Cached(chain), e.pending.match(chain))
}

// estimate returns how long a prompt with so many uncached tokens would wait for its first token, if nothing else came.
func (e *simEngine) estimate(now time.Duration, uncached int) time.Duration {
	c, t := e.core.Config(), e.core.Timing()
	left, free := e.core.Backlog()
	tokens := left + e.pending.tokens + uncached
	steps := e.pending.waiting // one prompt a step
	if uncached > 0 {
		steps++
	}
	if c.MaxRunning > 1 {
		steps = (tokens + c.MaxBatchTokens - 1) / c.MaxBatchTokens
	}
	decoding := len(e.requests) - e.pending.waiting
	wait := time.Duration(tokens)*t.PrefillPerToken + time.Duration(steps)*(t.StepFixed+time.Duration(decoding)*t.DecodePerSeq)
	return max(free-now, 0) + time.Duration(float64(wait)/t.Speed)
}
