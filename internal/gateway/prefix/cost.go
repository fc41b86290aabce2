package prefix

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// CostRecord says what it costs an engine to bring a prefix from a lower tier to its device, as it was measured.
type CostRecord struct {
	// Fixed is in seconds a restore, PerToken in seconds a token.
	Fixed, PerToken float64
	// Samples is how many restores it stands on, Error how far they typically were from it, as a share.
	Samples int
	Error   float64
	// At is when it came, in the gateway's clock.
	At time.Time
}

// CostFreshness is how long a record counts, from its arrival. A Manager sends them about once a second: ten that are lost in a row mean
// that nobody is there. A load report has five seconds; but a queue is another after a second, while a restore costs what the
// machine's memory and disk cost, and when records lapse the credit of every engine of the Manager goes at once. Twenty would hide that a
// Manager measures no more; that it is gone shows within a second, by its stream.
const CostFreshness = 10 * time.Second

// Restore returns the seconds that it takes to restore so many tokens, at the upper end of what was measured. It returns false where
// the record is older than [CostFreshness], stands on nothing or is no cost: then there is no credit for what the tier holds.
func (c CostRecord) Restore(tokens int64, now time.Time) (seconds float64, ok bool) {
	seconds = (c.Fixed + c.PerToken*float64(tokens)) * (1 + c.Error)
	ok = c.Samples > 0 && now.Sub(c.At) <= CostFreshness && c.Fixed >= 0 && c.PerToken >= 0 && c.Error >= 0 && !math.IsInf(seconds, 0)
	return seconds, ok && seconds == seconds
}

// Costs is what restores cost, engine by engine and tier by tier, as each source of prices says: an engine may be attached to more than one
// Manager, as while it moves, and what the one says or takes back is nothing of the other's. All methods may be called at once. The zero value
// knows nothing.
type Costs struct {
	changes atomic.Uint64
	mu      sync.RWMutex
	source  uint64 // the last that was given out
	engines map[uint32]*engineCosts
}

// engineCosts is one engine's.
type engineCosts struct {
	said []saidCost         // a few: in the order in which sources came
	all  *[Tiers]CostRecord // what follows from them; never changed, but replaced
}

// saidCost is what one source says of an engine.
type saidCost struct {
	source  uint64
	records [Tiers]CostRecord
}

// Source returns the number of a new source of prices, above 0: one incarnation of a Manager.
func (c *Costs) Source() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.source++
	return c.source
}

// Changes returns a number that grows whenever something was said or taken back, and is 0 before.
func (c *Costs) Changes() uint64 { return c.changes.Load() }

// Set takes in a source's record; the device needs none. The zero record takes it back.
func (c *Costs) Set(source uint64, engine uint32, t Tier, r CostRecord) {
	if t >= Tiers {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.engines == nil {
		c.engines = map[uint32]*engineCosts{}
	}
	e := c.engines[engine]
	if e == nil {
		e = &engineCosts{}
		c.engines[engine] = e
	}
	i := slices.IndexFunc(e.said, func(s saidCost) bool { return s.source == source })
	if i < 0 {
		i = len(e.said)
		e.said = append(e.said, saidCost{source: source})
	}
	e.said[i].records[t] = r
	e.join()
	c.changes.Add(1)
}

// Withdraw takes back all that a source has said of an engine.
func (c *Costs) Withdraw(source uint64, engine uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.engines[engine]
	if e == nil {
		return
	}
	e.said = slices.DeleteFunc(e.said, func(s saidCost) bool { return s.source == source })
	if e.join(); len(e.said) == 0 {
		delete(c.engines, engine)
	}
	c.changes.Add(1)
}

// join works out what the sources say together. Whose memory a block is in a look-up does not tell, so that no figure is below any of theirs. What
// had lapsed when the youngest came has no say: its source has stopped measuring.
func (e *engineCosts) join() {
	all := new([Tiers]CostRecord)
	for t := range all {
		var youngest time.Time
		for i := range e.said {
			if r := &e.said[i].records[t]; r.Samples > 0 && r.At.After(youngest) {
				youngest = r.At
			}
		}
		for i := range e.said {
			r, a := e.said[i].records[t], &all[t]
			switch {
			case r.Samples <= 0 || youngest.Sub(r.At) > CostFreshness:
			case a.Samples == 0:
				*a = r
			default:
				*a = CostRecord{
					Fixed: max(a.Fixed, r.Fixed), PerToken: max(a.PerToken, r.PerToken), Samples: min(a.Samples, r.Samples),
					Error: max(a.Error, r.Error), At: youngest,
				}
			}
		}
	}
	e.all = all
}

// Forget drops what is known of an engine that has left.
func (c *Costs) Forget(engine uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.engines, engine)
	c.changes.Add(1)
}

// Of returns the engine's records, by tier: where several sources have one, the upper end of what they say. c may be nil.
func (c *Costs) Of(engine uint32) (out [Tiers]CostRecord) {
	if c == nil {
		return out
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if e := c.engines[engine]; e != nil {
		out = *e.all
	}
	return out
}
