package book

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/perigee-llm/perigee/internal/managerwire"
)

// A price is a line through the last restores of an engine: seconds = fixed + tokens × per token, by least squares.
const (
	// priceSamples is how many restores: enough for a line through noise, and few enough that a minute of load shows.
	priceSamples = 64
	// priceLife is how long one counts: what a restore took before a pause says little of the host after it.
	priceLife = 5 * time.Minute
)

type sample struct {
	at              time.Duration
	tokens, seconds float64
	off             float64 // from what was predicted, as a share of that; NaN: nothing was
}

// Prices is what restores were measured to take, by engine. The zero value knows none: an engine of which nothing was measured is told
// no price, since unknown is not free.
type Prices struct{ samples map[uint64][]sample }

// Restored takes a restore down, from the first Start to the last Copied.
func (p *Prices) Restored(instance uint64, at time.Duration, tokens int, took time.Duration) {
	if tokens <= 0 || took < 0 {
		return
	}
	if p.samples == nil {
		p.samples = map[uint64][]sample{}
	}
	s := p.samples[instance]
	one := sample{at: at, tokens: float64(tokens), seconds: took.Seconds(), off: math.NaN()}
	if fixed, per := line(s); len(s) > 0 && fixed+per*one.tokens > 0 {
		guess := fixed + per*one.tokens
		one.off = math.Abs(one.seconds-guess) / guess
	}
	if len(s) >= priceSamples {
		s = slices.Delete(s, 0, 1)
	}
	p.samples[instance] = append(s, one)
}

// Forget drops an engine's.
func (p *Prices) Forget(instance uint64) { delete(p.samples, instance) }

// Events returns a Cost for each engine that the book has and of which something was measured lately.
func (p *Prices) Events(now time.Duration, b *Book) (out []managerwire.Event) {
	for _, instance := range slices.Sorted(maps.Keys(p.samples)) {
		s := slices.DeleteFunc(p.samples[instance], func(s sample) bool { return now-s.at > priceLife })
		if p.samples[instance] = s; len(s) == 0 {
			delete(p.samples, instance)
			continue
		}
		e, there := b.Engine(instance)
		if !there {
			continue
		}
		fixed, per := line(s)
		out = append(out, managerwire.Event{
			Kind: managerwire.Cost, Engine: e.URL, Instance: instance, Medium: managerwire.CPU, Fixed: fixed, PerToken: per,
			Samples: uint32(len(s)), Error: meanError(s), Age: max(0, now-s[len(s)-1].at).Seconds(),
		})
	}
	return out
}

// line fits one. Restores of one length give no slope: then all of it is taken to go with the tokens, as it does where pages are copied.
func line(s []sample) (fixed, per float64) {
	var n, x, y, xx, xy float64
	for _, v := range s {
		n, x, y, xx, xy = n+1, x+v.tokens, y+v.seconds, xx+v.tokens*v.tokens, xy+v.tokens*v.seconds
	}
	if n == 0 {
		return 0, 0
	}
	if d := n*xx - x*x; d > 1e-9*n*xx {
		per = (n*xy - x*y) / d
		fixed = (y - per*x) / n
	}
	switch {
	case fixed > 0 && per < 0: // longer ones were faster: noise of what is fixed
		return y / n, 0
	case fixed <= 0 || per <= 0: // through the origin
		return 0, xy / xx
	}
	return fixed, per
}

// meanError is over the samples that were predicted; 1 with none: as far off as all of it.
func meanError(s []sample) float64 {
	n, sum := 0, 0.0
	for _, v := range s {
		if !math.IsNaN(v.off) {
			n, sum = n+1, sum+v.off
		}
	}
	if n == 0 {
		return 1
	}
	return sum / float64(n)
}
