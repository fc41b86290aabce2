package policy

import (
	"math/bits"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/splitmix"
)

// draw is the generator of one pick's random choices: SplitMix64, started from (seed, request, stage). It lives on the stack and costs a few multiplications.
type draw struct{ state uint64 }

func newDraw(seed, key uint64, stage fleet.Stage) draw {
	d := draw{state: seed}
	d.mix(key)
	d.mix(uint64(stage))
	return d
}

// mix takes v into the state. It is two statements since in `d.state ^= d.next()` the language leaves open whether the
// state is read before or after the call that changes it: another compiler could draw other numbers.
func (d *draw) mix(v uint64) {
	x := d.next()
	d.state ^= x ^ v
}

func (d *draw) next() (out uint64) {
	d.state, out = splitmix.Step(d.state)
	return out
}

// intN returns a uniform number in [0, n), n > 0, by multiplication; the rejection makes it exact (Lemire 2019).
func (d *draw) intN(n int) int {
	hi, lo := bits.Mul64(d.next(), uint64(n))
	if lo < uint64(n) {
		for floor := -uint64(n) % uint64(n); lo < floor; {
			hi, lo = bits.Mul64(d.next(), uint64(n))
		}
	}
	return int(hi)
}
