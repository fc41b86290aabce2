package wire

import (
	"math"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/managerwire"
)

// whole tells whether the event has what its kind needs.
func (d *ManagerDecoder) whole() (Class, bool) {
	e, f := &d.Event, &d.f
	ok := true
	switch {
	case !f.typed:
		return BadField, false
	case !f.known:
		return UnknownType, false
	}
	switch e.Kind {
	case managerwire.BlockStored:
		if f.strange {
			return UnknownMedium, false
		}
		ok = f.namespace && f.chain && f.model && f.medium && e.BlockSize > 0
	case managerwire.BlockRemoved:
		ok = f.namespace && f.chain
		if f.strange {
			e.Medium = managerwire.NoMedium // gone from all: it claims too little
		}
	case managerwire.Attached:
		ok = f.engine && f.instance && f.namespace
	case managerwire.Detached:
		ok = f.engine && f.instance
	case managerwire.Cost:
		if f.strange {
			return UnknownMedium, false
		}
		ok = f.engine && f.instance && f.medium && f.fixedCost && f.tokenCost && isCost(e.Fixed, e.PerToken, e.Error, e.Age)
	}
	return BadField, ok
}

// isCost holds figures to what can be reckoned with: finite, and not negative.
func isCost(figures ...float64) bool {
	for _, v := range figures {
		if !(v >= 0) || math.IsInf(v, 0) {
			return false
		}
	}
	return true
}

// fixed reads bytes of just this length.
func (d *ManagerDecoder) fixed(into []byte) bool {
	b, _, ok := d.r.text()
	if !ok || len(b) != len(into) {
		return false
	}
	copy(into, b)
	return true
}

func (d *ManagerDecoder) text(into *string, most int, there *bool) (Class, bool) {
	b, _, ok := d.r.text()
	switch {
	case !ok || len(b) == 0:
		return BadField, false
	case len(b) > most:
		return Oversized, false
	}
	*into, *there = string(b), true
	return 0, true
}

func (d *ManagerDecoder) number(most uint64, set func(uint64)) (Class, bool) {
	v, ok := d.r.count()
	switch {
	case !ok:
		return BadField, false
	case v > most:
		return Oversized, false
	}
	set(v)
	return 0, true
}

func (d *ManagerDecoder) chain() (Class, bool) {
	n, ok := d.r.array()
	switch {
	case !ok:
		return BadField, false
	case n > managerwire.MaxBlocks:
		return Oversized, false
	}
	d.f.chain = true
	d.Event.Chain = d.Event.Chain[:0]
	for ; n > 0; n-- {
		var raw [chain.Size]byte
		if !d.fixed(raw[:]) {
			return BadField, false
		}
		d.Event.Chain = append(d.Event.Chain, chain.FromBytes(raw))
	}
	return 0, true
}

// medium reads one by the names that engines use too. Strange is one that nobody knows, or the device, which is not a Manager's.
func (d *ManagerDecoder) medium() (m managerwire.Medium, strange, ok bool) {
	b, _, ok := d.r.text()
	if !ok {
		return 0, false, false
	}
	tier, known := tierOf(b)
	if !known || tier == prefix.Device {
		return 0, true, true
	}
	return managerwire.Medium(tier), false, true // both count host, disk, external from 1
}

// media reads a set. What is unknown in it is none of ours.
func (d *ManagerDecoder) media() (Class, bool) {
	n, ok := d.r.array()
	if !ok {
		return BadField, false
	}
	d.Event.Media = 0
	for ; n > 0; n-- {
		m, strange, ok := d.medium()
		if !ok {
			return BadField, false
		}
		if !strange {
			d.Event.Media |= 1 << m
		}
	}
	return 0, true
}
