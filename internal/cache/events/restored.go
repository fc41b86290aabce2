package events

import (
	"time"

	"github.com/perigee-llm/perigee/internal/cache/events/book"
)

// measured is a restore that has ended.
type measured struct {
	instance uint64
	tokens   int
	at, took time.Duration
}

// Restored tells how long an engine's restore took, from its first Start to its last Copied.
func (p *Publisher) Restored(instance uint64, tokens int, took time.Duration) {
	p.restored.Lock()
	defer p.restored.Unlock()
	if len(p.restored.all) < mostMeasured {
		p.restored.all = append(p.restored.all, measured{instance, tokens, now(), took})
	}
}

// mostMeasured bounds what waits for the next price: what is beyond is left out, which costs a price nothing, since it is drawn from 64.
const mostMeasured = 1024

// takeMeasured hands what was measured to the prices.
func (p *Publisher) takeMeasured(to *book.Prices) {
	p.restored.Lock()
	defer p.restored.Unlock()
	for _, m := range p.restored.all {
		to.Restored(m.instance, m.at, m.tokens, m.took)
	}
	p.restored.all = p.restored.all[:0]
}
