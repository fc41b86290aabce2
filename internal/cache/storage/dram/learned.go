package dram

import "math/bits"

// Learned evicts what is least likely to be asked for while it could stay. The zero value is ready, and is LRU until it has seen
// blocks come back.
//
// Blocks used once, twice, and more often are three classes, each in order of use. For each class it counts at which ages
// (times since the last use) blocks were asked for again, those included that had gone and are remembered. From that follows how
// likely a block of a class and an age is to be asked for within the time that a block stays now (blocks in memory / blocks that
// come in a second); the class whose oldest block has the lowest chance gives it up.
//
// So it has no half-life to choose. A decayed count needs one of minutes for conversations, and loses against LRU with it where
// prompts come back at once. Tried on the embedded trace and left out: classes by the depth in the prompt as well (better at 1,000
// blocks, worse at 30,000), a class more or less, and the chance a second instead of within the stay.
type Learned struct {
	came  [learnedClasses]float64             // uses that put a block in the class
	again [learnedClasses][ageBuckets]float64 // uses of blocks of the class, by age
	below [learnedClasses][ageBuckets]float64 // running sums of again: up to and without the bucket
	in    float64                             // blocks that came into memory
	since Time                                // over which time
	uses  int
}

const (
	learnedClasses = 3
	// ageBuckets: four for each doubling from a millisecond to 2^26 s, two years.
	ageBuckets = 4 * 36
	// fadeEvery uses everything learned counts fadeTo of what it did: half of what it knows is from the last 40,000 uses. With four times
	// as fast a fading the embedded trace's hit rates are 0.6 points lower at 10,000 blocks and no different at 30,000.
	fadeEvery = 20_000
	fadeTo    = 0.7
	// sumEvery uses the sums are made anew: 432 additions, a few nanoseconds a use.
	sumEvery = 256
)

// Classes is 3.
func (*Learned) Classes() int { return learnedClasses }

// Use scores by the time of use, in seconds.
func (l *Learned) Use(h History, now Time) (int, float64) {
	if h.Uses > 0 {
		b, _ := ageBucket(ageOf(h.Score, now))
		l.again[min(h.Uses, learnedClasses)-1][b]++
	}
	if h.Incoming {
		l.in++
	}
	class := min(h.Uses, learnedClasses-1)
	l.came[class]++
	if l.uses++; l.uses%sumEvery == 0 {
		l.sum()
	}
	if l.uses%fadeEvery == 0 {
		l.fade(now)
	}
	return class, now.Seconds()
}

// ageOf is the time since a use that scored so. A remembered score is rounded, and may lie a little ahead.
func ageOf(score float64, now Time) Time { return max(0, now-Time(score*1e9)) }

// ageBucket is the bucket of an age, and how far in it the age lies, from 0 to 1.
func ageBucket(age Time) (b int, within float64) {
	const quarter = Time(250_000) // nanoseconds: so that a millisecond is 4, the first number with two more bits
	n := max(4, uint64(age/quarter))
	top := bits.Len64(n) // 3 or more
	b = 4*(top-3) + int(n>>(top-3))&3
	if b >= ageBuckets {
		return ageBuckets - 1, 1
	}
	low := uint64(1)<<(top-3) - 1
	return b, float64(n&low) / float64(low+1)
}

// sum makes below anew.
func (l *Learned) sum() {
	for c := range l.again {
		sum := 0.0
		for b, n := range l.again[c] {
			l.below[c][b] = sum
			sum += n
		}
	}
}

func (l *Learned) fade(now Time) {
	for c := range l.again {
		l.came[c] *= fadeTo
		for b := range l.again[c] {
			l.again[c][b] *= fadeTo
		}
	}
	l.in *= fadeTo
	l.since += Time(float64(now-l.since) * (1 - fadeTo))
	l.sum()
}

// Rank is the chance that a block which was used at score is used again within the time that a block stays.
func (l *Learned) Rank(class int, score float64, blocks int, now Time) float64 {
	age := ageOf(score, now)
	stay := Time(float64(blocks) / max(l.in, 1) * float64(now-l.since))
	until := l.used(class, age)
	left := max(1, l.came[class]+1-until) // blocks that reach this age
	// Without any evidence the oldest goes, as in LRU: the last term is too small to matter otherwise.
	return (l.used(class, age+stay)-until)/left + score*1e-15
}

// used is how many uses of the class were at an age below.
func (l *Learned) used(class int, age Time) float64 {
	b, within := ageBucket(age)
	return l.below[class][b] + within*l.again[class][b]
}
