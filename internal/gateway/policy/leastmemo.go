package policy

import (
	"math"
	"math/bits"
	"sync"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
)

// leastMemo remembers what load_based has seen of each block of candidates: the least loaded of them, by the reports and by what is in flight here,
// and how many share that. It is good while nothing of the block has changed, nor who is a candidate, and until the first of its reports lapses. So a pick looks
// at the two or three blocks whose engines got or ended a request or gave a report since the pick before, and at one word of the others.
type leastMemo struct {
	mu struct {
		sync.Mutex
		view   *fleet.View
		blocks []leastBlock
	}
}

type leastBlock struct {
	members, changes uint64 // of what was seen
	known            bool
	until            int64 // on the clock of the load records: the first report lapses then
	reported         bool  // all have a fresh one
	byReport, here   leastSoFar
}

// pick returns the candidate whose turn it is among the least loaded, and false where admission refuses all.
func (m *leastMemo) pick(p *LeastLoad, k *leastLoadPick) (scored, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.view != k.c.View() {
		m.mu.view = k.c.View()
		m.mu.blocks = append(m.mu.blocks[:0], make([]leastBlock, k.c.Blocks())...)
	}
	blocks := m.mu.blocks
	for i := range blocks {
		members, changes := k.c.Block(i)
		if b := &blocks[i]; !b.known || b.members != members || b.changes != changes || k.now > b.until {
			b.members, b.changes = members, changes
			b.look(p, k, i*fleet.BlockSize)
		}
		k.reported = k.reported && blocks[i].reported
	}
	var best leastSoFar
	for i := range blocks {
		best.merge(blocks[i].least(k.reported))
	}
	if best.ties == 0 {
		return scored{}, false
	}
	if best.ties == 1 {
		return best.least, true
	}
	skip := int((p.turn.Add(1) - 1) % uint64(best.ties))
	for i := range blocks {
		b := blocks[i].least(k.reported)
		if b.ties == 0 || best.least.less(b.least) {
			continue
		}
		if skip < b.ties {
			return blocks[i].nth(p, k, i*fleet.BlockSize, skip, best.least), true
		}
		skip -= b.ties
	}
	return best.least, true
}

func (b *leastBlock) least(reported bool) leastSoFar {
	if reported {
		return b.byReport
	}
	return b.here
}

// look looks at the block's members, the first of which is at a place of the view.
func (b *leastBlock) look(p *LeastLoad, k *leastLoadPick, first int) {
	b.known, b.reported, b.until = true, true, math.MaxInt64
	b.byReport, b.here = leastSoFar{}, leastSoFar{}
	for w := b.members; w != 0; w &= w - 1 {
		at := first + bits.TrailingZeros64(w)
		e := k.c.Load(at)
		s := scored{at: at, inFlight: e.Active()}
		s.load = s.inFlight
		t := s
		n, until, ok := e.RequestsUntil(k.now)
		b.until, b.reported = min(b.until, until), b.reported && ok
		if ok {
			t.load = n
		}
		if b.here.ties > 0 && b.here.least.less(s) && (!b.reported || b.byReport.ties > 0 && b.byReport.least.less(t)) {
			continue
		}
		if p.check(k.c.Worker(at), k.r) == NoLimit {
			b.here.add(s)
			b.byReport.add(t)
		}
	}
}

// nth returns the block's member that is number n of those with the least load, or the first such if it has changed meanwhile.
func (b *leastBlock) nth(p *LeastLoad, k *leastLoadPick, first, n int, least scored) scored {
	for w := b.members; w != 0; w &= w - 1 {
		at := first + bits.TrailingZeros64(w)
		s := k.score(at, k.c.Load(at))
		if s.load != least.load || s.inFlight != least.inFlight || p.check(k.c.Worker(at), k.r) != NoLimit {
			continue
		}
		if n == 0 {
			return s
		}
		n--
	}
	return least
}

// merge adds what another has seen.
func (l *leastSoFar) merge(o leastSoFar) {
	switch {
	case o.ties == 0 || l.ties > 0 && l.least.less(o.least):
	case l.ties == 0 || o.least.less(l.least):
		*l = o
	default:
		l.ties += o.ties
	}
}
