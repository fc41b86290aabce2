package fleet

import (
	"iter"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// View is the workers of one moment, sorted by id. It never changes, but for the breakers of its workers; and one that is
// no longer the registry's does not learn that a breaker opened, which [Registry.Claim] then refuses.
type View struct {
	reg     *Registry
	workers []*Worker
	loads   []*load.Engine          // theirs, for those that read nothing else of most
	bySlot  []int32                 // slot → position in workers; past the end: none
	watches []load.Watch            // of the load records, while the view is the registry's
	changes []atomic.Uint64         // of BlockSize workers each, counted by their watches
	numbers func() map[uint32]int32 // number → position in workers, made when it is first asked for
	tripped []atomic.Uint64         // bit i: worker i's breaker is not closed, so its state must be asked
}

// Len returns the number of workers.
func (v *View) Len() int { return len(v.workers) }

// All returns the workers in the order of their ids.
func (v *View) All() iter.Seq[*Worker] {
	return func(yield func(*Worker) bool) {
		for _, w := range v.workers {
			if !yield(w) {
				return
			}
		}
	}
}

// Get returns the worker of that id, or nil.
func (v *View) Get(id string) *Worker {
	lo, hi := 0, len(v.workers)
	for lo < hi {
		m := int(uint(lo+hi) >> 1)
		if v.workers[m].ID < id {
			lo = m + 1
		} else {
			hi = m
		}
	}
	if lo < len(v.workers) && v.workers[lo].ID == id {
		return v.workers[lo]
	}
	return nil
}

// index returns the position of this very worker, or -1 if the view has another one or none under its id.
func (v *View) index(w *Worker) int {
	if w.slot >= len(v.bySlot) {
		return -1
	}
	if i := int(v.bySlot[w.slot]); i < len(v.workers) && v.workers[i] == w {
		return i
	}
	return -1
}

// Mask is a set of positions in one view: which workers could be candidates if they are live. Work it out once a view and keep it.
type Mask struct {
	view  *View
	words []uint64
}

// Mask returns the workers for which keep is true.
func (v *View) Mask(keep func(*Worker) bool) Mask {
	m := Mask{view: v, words: make([]uint64, words(len(v.workers)))}
	for i, w := range v.workers {
		if keep(w) {
			m.words[i/64] |= 1 << (i % 64)
		}
	}
	return m
}

// View returns the view that the mask belongs to.
func (m Mask) View() *View { return m.view }

// Len returns the number of workers in the mask, live or not.
func (m Mask) Len() int { return popcount(m.words) }

// markLocked sets or clears the worker's tripped bit; the registry's mutex is held.
func (v *View) markLocked(slot int, b *breaker) {
	if slot >= len(v.bySlot) {
		return
	}
	i := int(v.bySlot[slot])
	if i >= len(v.workers) || v.workers[i].breaker != b {
		return // it has left
	}
	if b.get() == Closed {
		v.tripped[i/64].And(^uint64(1 << (i % 64)))
	} else {
		v.tripped[i/64].Or(1 << (i % 64))
	}
}

// inlineWords holds 1,024 workers without an allocation, the largest fleet that our benchmarks hold a bound for.
const inlineWords = 16

// Set is a set of workers of one view, in the order of their ids. The zero value is empty. It must not be copied once used.
type Set struct {
	view    *View
	words   []uint64
	n       int
	floored bool
	inline  [inlineWords]uint64
}

// Fill makes s the workers of the mask whose breakers would let a dispatch through at now, less those with an excluded id.
//
// Where that would be less than the floor's share of the mask, breakers do not count for engines that are up: those that have a fresh load
// report and were not found absent since. A dispatch to one is claimed by [Registry.ClaimAnyway]. Engines that are down stay out, however
// few are left, and so do those that give no reports. All that are up are in, not just enough to reach the floor: which of them are fit
// nobody knows, and a part of them would get all the traffic that took the others out.
func (s *Set) Fill(m Mask, now time.Time, exclude []string) {
	s.view = m.view
	if len(m.words) <= inlineWords {
		s.words = s.inline[:len(m.words)]
	} else if cap(s.words) >= len(m.words) {
		s.words = s.words[:len(m.words)]
	} else {
		s.words = make([]uint64, len(m.words))
	}
	s.n, s.floored = 0, false
	members := 0
	for i, w := range m.words {
		members += bits.OnesCount64(w)
		tripped := w & m.view.tripped[i].Load()
		w &^= tripped
		for ; tripped != 0; tripped &= tripped - 1 {
			b := bits.TrailingZeros64(tripped)
			if m.view.reg.Admits(m.view.workers[i*64+b], now) {
				w |= 1 << b
			}
		}
		s.words[i] = w
		s.n += bits.OnesCount64(w)
	}
	if s.n < members && float64(s.n) < m.view.reg.breakers.Floor*float64(members) {
		s.addUp(m, now)
	}
	for _, id := range exclude {
		s.Remove(m.view.Get(id))
	}
}

// addUp adds the workers of the mask whose breakers refuse although they are up.
func (s *Set) addUp(m Mask, now time.Time) {
	r := m.view.reg
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, w := range m.words {
		for out := w &^ s.words[i]; out != 0; out &= out - 1 {
			b := bits.TrailingZeros64(out)
			x := m.view.workers[i*64+b]
			if x.Load.Report(now) == nil || x.breaker.gone {
				continue
			}
			s.words[i] |= 1 << b
			s.n++
			s.floored = true
		}
	}
}

// Floored tells whether the set has workers whose breakers would refuse.
func (s *Set) Floored() bool { return s.floored }

// Len returns the number of workers in the set.
func (s *Set) Len() int { return s.n }

// At returns the i-th worker in the order of ids, 0 ≤ i < Len.
func (s *Set) At(i int) *Worker {
	if s.n == len(s.view.workers) {
		return s.view.workers[i]
	}
	for k, w := range s.words {
		c := bits.OnesCount64(w)
		if i < c {
			return s.view.workers[k*64+selectBit(w, i)]
		}
		i -= c
	}
	panic("fleet: Set.At beyond the set")
}

// All returns the workers in the order of their ids.
func (s *Set) All() iter.Seq[*Worker] {
	return func(yield func(*Worker) bool) {
		for k, w := range s.words {
			for ; w != 0; w &= w - 1 {
				if !yield(s.view.workers[k*64+bits.TrailingZeros64(w)]) {
					return
				}
			}
		}
	}
}

// Loads returns the load records of the set, each with what Worker takes, in the order of ids.
func (s *Set) Loads() iter.Seq2[int, *load.Engine] {
	return func(yield func(int, *load.Engine) bool) {
		for k, w := range s.words {
			for ; w != 0; w &= w - 1 {
				if i := k*64 + bits.TrailingZeros64(w); !yield(i, s.view.loads[i]) {
					return
				}
			}
		}
	}
}

// View returns the view that the set's workers are of, nil for the zero set. Watched tells whether Changes counts: while the view is the registry's.
func (s *Set) View() *View { return s.view }

// Watched tells whether the changes of the set's load records are counted.
func (s *Set) Watched() bool { return s.view != nil && s.view.reg.View() == s.view }

// BlockSize is how many places one count of changes is for, a part of a word. Who remembers what it saw of a block looks through its members' own counts when one has
// changed: with 64 a pick among 1,000 engines, before which two or three have changed, looked through 200.
const BlockSize = 16

// Blocks returns how many blocks of [BlockSize] places the set's view has, and Block what the set has of one, as bits, with the count of the changes of their load
// records: if it is the same as before, none has changed.
func (s *Set) Blocks() int { return len(s.view.changes) }

// Block returns a block's members and the changes of it.
func (s *Set) Block(k int) (members, changes uint64) {
	return s.words[k*BlockSize/64] >> (k * BlockSize % 64) & (1<<BlockSize - 1), s.view.changes[k].Load()
}

// Changes returns the count of the changes of the load record at a place of the view. It is read before the record, and after the block's.
func (s *Set) Changes(i int) uint64 { return s.view.watches[i].Count.Load() }

// Load returns the load record of the worker at a place of the view.
func (s *Set) Load(i int) *load.Engine { return s.view.loads[i] }

// Worker returns the worker whose load record Loads gave with i.
func (s *Set) Worker(i int) *Worker { return s.view.workers[i] }

// Nanos returns t on the clock of the set's load records.
func (s *Set) Nanos(t time.Time) int64 { return s.view.reg.clock.Nanos(t) }

// Numbered returns the place of the worker of that number, and false where it is not in the set.
func (s *Set) Numbered(no uint32) (i int, ok bool) {
	if s.view == nil || s.view.numbers == nil {
		return 0, false
	}
	at, ok := s.view.numbers()[no]
	return int(at), ok && s.words[at/64]&(1<<(at%64)) != 0
}

// Has tells whether this very worker is in the set; another one under the same id is not.
func (s *Set) Has(w *Worker) bool {
	if w == nil || s.view == nil {
		return false
	}
	i := s.view.index(w)
	return i >= 0 && s.words[i/64]&(1<<(i%64)) != 0
}

// Remove takes the worker out if it is in, and tells whether it was.
func (s *Set) Remove(w *Worker) bool {
	if !s.Has(w) {
		return false
	}
	i := s.view.index(w)
	s.words[i/64] &^= 1 << (i % 64)
	s.n--
	return true
}

// Reset empties the set and lets go of its view.
func (s *Set) Reset() { s.view, s.words, s.n, s.floored = nil, s.words[:0], 0, false }

func words(n int) int { return (n + 63) / 64 }

func popcount(w []uint64) (n int) {
	for _, x := range w {
		n += bits.OnesCount64(x)
	}
	return n
}

// selectBit returns the position of the i-th set bit of w, halving the word six times.
func selectBit(w uint64, i int) int {
	pos := 0
	for half := 32; half > 0; half >>= 1 {
		c := bits.OnesCount64(w & (1<<half - 1))
		if i >= c {
			i -= c
			w >>= half
			pos += half
		} else {
			w &= 1<<half - 1
		}
	}
	return pos
}
