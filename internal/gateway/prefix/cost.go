package prefix

import (
	"math"
	"sync"
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

// Costs is what restores cost, engine by engine and tier by tier. All methods may be called at once. The zero value knows nothing.
type Costs struct {
	mu      sync.RWMutex
	records map[uint32]*[Tiers]CostRecord
}

// Set takes in a record; the device needs none. The zero record takes it back.
func (c *Costs) Set(engine uint32, t Tier, r CostRecord) {
	if t >= Tiers {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.records == nil {
		c.records = map[uint32]*[Tiers]CostRecord{}
	}
	if c.records[engine] == nil {
		c.records[engine] = new([Tiers]CostRecord)
	}
	c.records[engine][t] = r
}

// Forget drops what is known of an engine that has left.
func (c *Costs) Forget(engine uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.records, engine)
}

// Of returns the engine's records, by tier. c may be nil.
func (c *Costs) Of(engine uint32) (out [Tiers]CostRecord) {
	if c == nil {
		return out
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if r := c.records[engine]; r != nil {
		out = *r
	}
	return out
}
