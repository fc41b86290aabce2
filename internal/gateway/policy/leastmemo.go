package policy

import (
	"math"
	"math/bits"
	"sync"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// leastMemo remembers what load_based has seen of each candidate, and of each block of them: the least loaded, by the reports and by what is in flight here,
// and how many share that. It is good while nothing of the block has changed, nor who is a candidate, and until the first of its reports lapses. So a pick reads
// the load records of the two or three engines that got or ended a request or gave a report since the pick before, looks through what it remembers of their blocks, and at
// one word of the others. Nothing else of a thousand engines is read: their records are all over memory, what is remembered of them lies side by side.
type leastMemo struct {
	mu struct {
		sync.Mutex
		view   *fleet.View
		seen   []leastSeen // by places
		blocks []leastBlock
		told   leastTold
	}
}

// leastSeen is what was seen of one candidate.
type leastSeen struct {
	known, ok, refused bool // ok: it has a fresh report
	changes            uint64
	until              int64 // on the clock of the load records: the report lapses then
	byReport, here     int64 // requests, by the report where it has one
}

type leastBlock struct {
	members, changes uint64 // of what was seen
	known            bool
	until            int64 // the first report lapses then
	reported         bool  // all have a fresh one
	byReport, here   leastSoFar
}

// leastTold is what the decision log was last told of the first candidates, by whether all were reported and for how much room. It is good while their blocks are.
type leastTold struct {
	list     []Considered
	blocks   int // that the list's engines are in, from the first on
	reported bool
	room     int
}

// pick returns the candidate whose turn it is among the least loaded, and false where admission refuses all.
func (m *leastMemo) pick(p *LeastLoad, k *leastLoadPick) (scored, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.view != k.c.View() {
		m.forget(k.c)
	}
	blocks := m.mu.blocks
	for i := range blocks {
		b := &blocks[i]
		if members, changes := k.c.Block(i); !b.known || b.members != members || b.changes != changes || k.now > b.until {
			b.members, b.changes = members, changes
			m.look(p, k, i)
		}
		k.reported = k.reported && b.reported
	}
	var best leastSoFar
	for i := range blocks {
		best.merge(blocks[i].least(k.reported))
	}
	if best.ties == 0 {
		return scored{}, false
	}
	m.trace(k)
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
			return m.nth(k, i, skip, best.least), true
		}
		skip -= b.ties
	}
	return best.least, true
}

// forget begins anew with another view.
func (m *leastMemo) forget(c *fleet.Set) {
	m.mu.view = c.View()
	m.mu.blocks = append(m.mu.blocks[:0], make([]leastBlock, c.Blocks())...)
	m.mu.seen = append(m.mu.seen[:0], make([]leastSeen, m.mu.view.Len())...)
	m.mu.told = leastTold{}
}

func (b *leastBlock) least(reported bool) leastSoFar {
	if reported {
		return b.byReport
	}
	return b.here
}

// look takes in what has changed in a block.
func (m *leastMemo) look(p *LeastLoad, k *leastLoadPick, i int) {
	b := &m.mu.blocks[i]
	b.known, b.reported, b.until = true, true, math.MaxInt64
	b.byReport, b.here = leastSoFar{}, leastSoFar{}
	for w := b.members; w != 0; w &= w - 1 {
		at := i*fleet.BlockSize + bits.TrailingZeros64(w)
		s := &m.mu.seen[at]
		if changes := k.c.Changes(at); !s.known || s.changes != changes || k.now > s.until {
			s.changes = changes
			s.read(p, k, at)
		}
		b.until, b.reported = min(b.until, s.until), b.reported && s.ok
		if !s.refused {
			b.here.add(s.score(at, false))
			b.byReport.add(s.score(at, true))
		}
	}
	if i < m.mu.told.blocks {
		m.mu.told = leastTold{list: m.mu.told.list}
	}
}

// read reads one candidate anew.
func (s *leastSeen) read(p *LeastLoad, k *leastLoadPick, at int) {
	e := k.c.Load(at)
	s.known, s.here = true, e.Active()
	s.byReport = s.here
	var n int64
	if n, s.until, s.ok = e.RequestsUntil(k.now); s.ok {
		s.byReport = n
	}
	s.refused = p.check(k.c.Worker(at), k.r) != NoLimit
}

func (s *leastSeen) score(at int, reported bool) scored {
	if reported {
		return scored{at: at, load: s.byReport, inFlight: s.here}
	}
	return scored{at: at, load: s.here, inFlight: s.here}
}

// nth returns the block's member that is number n of those with the least load.
func (m *leastMemo) nth(k *leastLoadPick, i, n int, least scored) scored {
	for w := m.mu.blocks[i].members; w != 0; w &= w - 1 {
		at := i*fleet.BlockSize + bits.TrailingZeros64(w)
		seen := &m.mu.seen[at]
		if s := seen.score(at, k.reported); seen.refused || s.load != least.load || s.inFlight != least.inFlight {
			continue
		} else if n == 0 {
			return s
		}
		n--
	}
	panic("policy: fewer have the least load than were counted")
}

// trace takes down the first candidates, as many as there is room for.
func (m *leastMemo) trace(k *leastLoadPick) {
	t := k.r.Trace
	if t == nil {
		return
	}
	told, room := &m.mu.told, cap(t.Considered)-len(t.Considered)
	if told.blocks == 0 || told.reported != k.reported || told.room != room {
		clear(told.list)
		*told = leastTold{list: told.list[:0], reported: k.reported, room: room}
		told.blocks = k.c.Blocks() // while there is room for more
		for i, e := range k.c.Loads() {
			if len(told.list) == room {
				told.blocks = i/fleet.BlockSize + 1
				break
			}
			s := m.mu.seen[i].score(i, k.reported)
			told.list = append(told.list, Considered{Engine: k.c.Worker(i), Report: e.Report(k.r.Now), InFlight: s.inFlight, Score: load.Known(s.load)})
		}
	}
	t.Considered = append(t.Considered, told.list...)
	t.Omitted += k.c.Len() - len(told.list)
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
