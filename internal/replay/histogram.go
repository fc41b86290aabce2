package replay

import (
	"math"
	"math/bits"
	"time"
)

// subBits sets a histogram's precision: each power of two is cut into 1<<subBits classes, so that a quantile is at most 1/1024
// too high. It costs 8 KiB for each power of two that occurs.
const subBits = 10

// Histogram counts durations in a bounded space. The zero value is empty.
type Histogram struct {
	counts []uint64
	n      uint64
	sum    float64 // ns; each addition rounds the same way on every machine
	max    time.Duration
}

// classOf returns the class of d; negative durations are counted as zero.
func classOf(d time.Duration) int {
	v := uint64(max(d, 0))
	shift := max(bits.Len64(v)-subBits-1, 0)
	return shift<<subBits + int(v>>shift)
}

// upper returns the largest duration of a class.
func upper(class int) time.Duration {
	shift := max(class>>subBits-1, 0)
	v := uint64(class - shift<<subBits)
	return time.Duration((v+1)<<shift - 1)
}

// Add counts d.
func (h *Histogram) Add(d time.Duration) {
	c := classOf(d)
	if c >= len(h.counts) {
		h.counts = append(h.counts, make([]uint64, (c>>subBits+1)<<subBits-len(h.counts))...)
	}
	h.counts[c]++
	h.n++
	h.sum += float64(d)
	h.max = max(h.max, d)
}

// Count returns how many durations were counted.
func (h *Histogram) Count() uint64 { return h.n }

// Max returns the largest, exactly; 0 if there is none.
func (h *Histogram) Max() time.Duration { return h.max }

// Mean returns the mean, exactly but for rounding, and false if there is none.
func (h *Histogram) Mean() (time.Duration, bool) {
	if h.n == 0 {
		return 0, false
	}
	return time.Duration(math.Round(h.sum / float64(h.n))), true
}

// Quantile returns the nearest-rank quantile, 0 < q ≤ 1, at most 1/1024 too high, and false if nothing was counted.
func (h *Histogram) Quantile(q float64) (time.Duration, bool) {
	if h.n == 0 {
		return 0, false
	}
	rank := max(uint64(math.Ceil(q*float64(h.n))), 1)
	for c, n := range h.counts {
		if n >= rank {
			return min(upper(c), h.max), true
		}
		rank -= n
	}
	return h.max, true
}

// timelineSlots bounds a Timeline: more than the pixels of a plot.
const timelineSlots = 1024

// Timeline is a quantity over time, as means of slots of equal width. When the slots do not suffice their width doubles. The
// zero value begins at 0 with the quantity 0.
type Timeline struct {
	width time.Duration // of a slot; 0: firstWidth
	slots []float64     // the integral over each slot, in units · ns
	now   time.Duration
	value int
	peak  int
}

const firstWidth = 100 * time.Millisecond

// Set says that the quantity is v from now on. now does not go backwards.
func (t *Timeline) Set(now time.Duration, v int) {
	t.advance(now)
	t.value = v
	t.peak = max(t.peak, v)
}

// advance integrates the present value up to now.
func (t *Timeline) advance(now time.Duration) {
	if t.width == 0 {
		t.width = firstWidth
	}
	for t.now < now {
		i := int(t.now / t.width)
		if i >= timelineSlots {
			t.halve()
			continue
		}
		for len(t.slots) <= i {
			t.slots = append(t.slots, 0)
		}
		end := min(now, time.Duration(i+1)*t.width)
		t.slots[i] += float64(int64(t.value) * int64(end-t.now))
		t.now = end
	}
}

// halve joins the slots in pairs.
func (t *Timeline) halve() {
	t.width *= 2
	half := (len(t.slots) + 1) / 2
	for i := range half {
		sum := t.slots[2*i]
		if 2*i+1 < len(t.slots) {
			sum += t.slots[2*i+1]
		}
		t.slots[i] = sum
	}
	t.slots = t.slots[:half]
}

// Mean returns the quantity's mean over the time so far, 0 if there is none.
func (t *Timeline) Mean() float64 {
	if t.now == 0 {
		return 0
	}
	sum := 0.0
	for _, s := range t.slots {
		sum += s
	}
	return sum / float64(t.now)
}

// Peak returns the largest value that was set.
func (t *Timeline) Peak() int { return t.peak }

// Slots returns the mean of each slot and their width. The last one may be shorter.
func (t *Timeline) Slots() ([]float64, time.Duration) {
	out := make([]float64, len(t.slots))
	for i, s := range t.slots {
		length := min(t.width, t.now-time.Duration(i)*t.width)
		out[i] = s / float64(length)
	}
	return out, t.width
}
