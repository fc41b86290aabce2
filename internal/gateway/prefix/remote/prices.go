package remote

import (
	"math"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/indexer/indexpb"
)

// anyPrices is the price edition of a request that wants prices and has none.
const anyPrices = 1

// oldestPrice is an age in milliseconds that no price has: a service leaves out what is older than [prefix.CostFreshness].
const oldestPrice = 60_000

// price is one of an answer.
type price struct {
	engine uint32 // the gateway's number
	tier   prefix.Tier
	prefix.CostRecord
}

// readPrices reads the prices of an answer. Engines of which it says what cannot be are distrusted, and have none.
func (a *answer) readPrices(w []*indexpb.Price) error {
	if len(w) == 0 {
		return nil
	}
	if len(w) > (prefix.Tiers-1)*len(a.model.engines) {
		return contradiction("more prices than engines can have")
	}
	now := time.Now()
	said := make(map[uint32]uint8, len(w)) // tiers, by engine
	for _, p := range w {
		no, there := a.number(p.Engine)
		if !there {
			continue
		}
		r, ok := recordOf(p, now)
		if ok = ok && said[no]>>p.Tier&1 == 0; !ok {
			a.distrusted = append(a.distrusted, no)
			continue
		}
		said[no] |= 1 << p.Tier
		a.prices = append(a.prices, price{no, prefix.Tier(p.Tier), r})
	}
	if len(a.distrusted) > 0 {
		slices.Sort(a.distrusted)
		a.distrusted = slices.Compact(a.distrusted)
		a.prices = slices.DeleteFunc(a.prices, func(p price) bool { return a.distrusts(p.engine) })
	}
	return nil
}

// distrusts tells whether the answer's prices of an engine contradicted themselves.
func (a *answer) distrusts(engine uint32) bool {
	_, there := slices.BinarySearch(a.distrusted, engine)
	return there
}

// recordOf reads one price, which is a cost of a lower tier, or nothing that could be.
func recordOf(p *indexpb.Price, now time.Time) (r prefix.CostRecord, ok bool) {
	for _, v := range [...]float64{p.FixedSeconds, p.SecondsPerToken, p.ErrorShare} {
		if !(v >= 0 && v <= math.MaxFloat64) { // nor is it if it is no number
			return r, false
		}
	}
	if p.Tier < uint32(prefix.Host) || p.Tier >= prefix.Tiers || p.Samples == 0 || p.AgeMs > oldestPrice {
		return r, false
	}
	return prefix.CostRecord{
		Fixed: p.FixedSeconds, PerToken: p.SecondsPerToken, Samples: int(min(p.Samples, 1<<30)), Error: p.ErrorShare,
		At: now.Add(-time.Duration(p.AgeMs) * time.Millisecond),
	}, true
}

// prices brings what services say of restores into the gateway's prefix.Costs, as one source of prices. All methods may be called at once.
//
// What counts is what one endpoint has said, the one whose answer came last: the first answer of another takes back all that the one before has
// said, and the first of a model brings all that it has. An engine that is not in its model's prices any more has none. A service that
// is away takes nothing back: without an answer nobody credits an engine, and what a price says counts for 10 s after the service heard
// of it (prefix.CostFreshness), not after it came here.
type prices struct {
	costs  *prefix.Costs // nil: nobody wants prices
	source uint64
	mu     struct {
		sync.RWMutex
		closed bool
		from   *endpoint         // nil: nobody has said any
		models map[string]priced // what it has said of models, as requests name them
		told   map[uint32]string // engines that have prices from here, and the model with which they came
	}
}

// priced is what a service has said of a model.
type priced struct {
	edition uint64
	model   *model            // whose places the prices were of
	engines map[string]uint32 // the gateway's then
}

func (p *prices) init(costs *prefix.Costs) {
	if p.costs = costs; costs != nil {
		p.source = costs.Source()
		p.mu.models, p.mu.told = map[string]priced{}, map[uint32]string{}
	}
}

// has returns the edition of what an endpoint has said of a model, for its next request.
func (p *prices) has(e *endpoint, name string, a *answer) uint64 {
	if p.costs == nil {
		return 0
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.mu.from == e {
		if k, there := p.mu.models[name]; there && k.model == a.model && same(k.engines, a.engines) {
			return k.edition
		}
	}
	return anyPrices
}

// same tells whether both are one map, which nobody changes.
func same(a, b map[string]uint32) bool {
	return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}

// take takes in what an answer to a request with the edition has said of a model.
func (p *prices) take(e *endpoint, name string, a *answer, has, edition uint64) {
	if p.costs == nil || edition == has && has != anyPrices || edition == 0 && p.none(e, name) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return
	}
	if p.mu.from != e {
		p.withdrawLocked()
		p.mu.from = e
	}
	p.replaceLocked(name, a)
	if edition == 0 {
		delete(p.mu.models, name)
		return
	}
	if len(a.distrusted) > 0 {
		edition = anyPrices // so that it is said again, and those engines are blind in the next answer too
	}
	if len(p.mu.models) >= maxModels {
		clear(p.mu.models)
	}
	p.mu.models[name] = priced{edition, a.model, a.engines}
}

// none tells whether the endpoint has said nothing of the model, and nobody else has said anything.
func (p *prices) none(e *endpoint, name string) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	_, said := p.mu.models[name]
	return p.mu.from == nil || p.mu.from == e && !said
}

// replaceLocked puts what an answer says of a model in the place of what was said of its engines before.
func (p *prices) replaceLocked(name string, a *answer) {
	var of map[uint32]*[prefix.Tiers]prefix.CostRecord
	if len(a.prices) > 0 {
		of = map[uint32]*[prefix.Tiers]prefix.CostRecord{}
	}
	for i := range a.prices {
		r := &a.prices[i]
		if of[r.engine] == nil {
			of[r.engine] = new([prefix.Tiers]prefix.CostRecord)
		}
		of[r.engine][r.tier] = r.CostRecord
	}
	listed := map[uint32]bool{}
	for place := range a.model.engines {
		if no, there := a.number(uint32(place)); there {
			listed[no] = true
		}
	}
	for no, with := range p.mu.told {
		if of[no] == nil && (with == name || listed[no]) {
			p.costs.Withdraw(p.source, no)
			delete(p.mu.told, no)
		}
	}
	for no, records := range of {
		for t := prefix.Host; t < prefix.Tiers; t++ {
			p.costs.Set(p.source, no, t, records[t])
		}
		p.mu.told[no] = name
	}
}

// withdrawLocked takes all back.
func (p *prices) withdrawLocked() {
	for no := range p.mu.told {
		p.costs.Withdraw(p.source, no)
	}
	clear(p.mu.told)
	clear(p.mu.models)
}

// close takes all back for good.
func (p *prices) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.closed = true
	p.withdrawLocked()
}
