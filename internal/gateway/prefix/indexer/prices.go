package indexer

import (
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/indexer/indexpb"
)

// prices says when callers are told the prices of restores anew. All methods may be called at once.
type prices struct {
	costs *prefix.Costs // nil: there are none
	mu    struct {
		sync.Mutex
		changes uint64 // of costs, as of the edition
		since   time.Time
		edition uint64 // 0: none yet
	}
}

// pricesRest is the least time between two editions. A Manager sends each price once a second: what changes meanwhile is told with the next
// edition, and a caller who has one that is a second old has lost a tenth of [prefix.CostFreshness].
const pricesRest = time.Second

// anyEdition is what a caller has who wants prices, and knows none.
const anyEdition = 1

// tell adds to an answer what its caller, who has the prices of that edition, lacks.
func (p *prices) tell(has uint64, m *model, out *indexpb.LookupResponse) {
	if has == 0 || p.costs == nil || p.costs.Changes() == 0 {
		return
	}
	now := time.Now()
	if out.PriceEdition = p.now(now); out.PriceEdition != has {
		out.Prices = m.prices(p.costs, now)
	}
}

// now is the present edition. It begins somewhere by chance, so that nobody takes one of this process for one of another.
func (p *prices) now(now time.Time) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := &p.mu
	n := p.costs.Changes()
	switch {
	case at.edition == 0:
		at.edition = anyEdition + 1 + rand.Uint64N(math.MaxInt64)
	case n == at.changes || now.Sub(at.since) < pricesRest:
		return at.edition
	}
	at.edition++
	at.changes, at.since = n, now
	return at.edition
}

// prices are those of the model's engines that count now.
func (m *model) prices(costs *prefix.Costs, now time.Time) (out []*indexpb.Price) {
	for no, place := range m.places {
		records := costs.Of(no)
		for t := prefix.Host; t < prefix.Tiers; t++ {
			r := &records[t]
			if _, counts := r.Restore(0, now); !counts {
				continue
			}
			out = append(out, &indexpb.Price{
				Engine: place, Tier: uint32(t), FixedSeconds: r.Fixed, SecondsPerToken: r.PerToken,
				Samples: uint32(min(r.Samples, math.MaxInt32)), ErrorShare: r.Error, AgeMs: uint32(max(now.Sub(r.At), 0).Milliseconds()),
			})
		}
	}
	return out
}
