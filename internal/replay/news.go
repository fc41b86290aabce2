package replay

import (
	"context"
	"slices"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// news is what an engine publishes of its cache after one step. It is shared by all gateways and never changed.
type news struct {
	events []engine.KVEvent
	chains [][]engine.BlockHash // of the prompt that each event is of; nil where it is of none
}

// collect takes the engine's KV events out of the step's actions, and sends them to every gateway.
func (e *simEngine) collect() {
	var n *news
	for i := range e.sim.actions {
		a := &e.sim.actions[i]
		if a.Kind != engine.KV {
			continue
		}
		if n == nil {
			n = new(news)
		}
		var chain []engine.BlockHash
		if r := e.requests[a.ID]; r != nil && a.Event.Kind == engine.BlockStored {
			chain = r.Blocks
		}
		n.events, n.chains = append(n.events, *a.Event), append(n.chains, chain)
	}
	if n == nil {
		return
	}
	s := e.sim
	for _, g := range s.gateways {
		l := &g.links[e.index]
		l.sent++
		s.res.EventsSent++
		lost := s.o.EventLoss > 0 && unit(keyed(s.o.Seed, forNews, uint64(g.index), uint64(e.index), l.sent)) < s.o.EventLoss
		l.inbox = append(l.inbox, letter{number: l.sent, news: n, lost: lost})
		if lost {
			s.res.EventsLost++
			continue
		}
		s.events.push(event{at: s.now + s.o.EventDelay, kind: told, gateway: int32(g.index), engine: int32(e.index), stamp: l.sent})
	}
}

// link is what one gateway has heard of one engine's cache, in the order in which it was published.
type link struct {
	sent    uint64 // the number of the last news
	inbox   []letter
	holds   map[engine.BlockHash]struct{}
	mending bool // it waits for what it missed
	blind   bool // it missed what never comes: the engine holds what is known, and maybe more
}

// letter is news on its way.
type letter struct {
	number uint64
	news   *news
	lost   bool // and nobody has missed it yet
	here   bool
}

// arrived takes news in, and tells whether that showed that some are missing.
func (l *link) arrived(number uint64) (gap bool) {
	i, there := slices.BinarySearchFunc(l.inbox, number, func(x letter, n uint64) int { return int(int64(x.number - n)) })
	if !there {
		return false // the engine has restarted since
	}
	l.inbox[i].here = true
	for _, x := range l.inbox[:i] {
		gap = gap || x.lost
	}
	l.read()
	return gap
}

// read applies what has arrived without a hole before it.
func (l *link) read() {
	n := 0
	for n < len(l.inbox) && l.inbox[n].here {
		l.apply(l.inbox[n].news)
		n++
	}
	l.inbox = slices.Delete(l.inbox, 0, n)
}

func (l *link) apply(n *news) {
	for i := range n.events {
		ev := &n.events[i]
		if ev.Kind == engine.AllBlocksCleared {
			clear(l.holds)
			l.blind = false
			continue
		}
		for _, h := range ev.Hashes {
			if ev.Kind == engine.BlockRemoved {
				delete(l.holds, h)
				continue
			}
			l.holds[h] = struct{}{}
		}
		if ev.Kind == engine.BlockStored && ev.HasParent {
			l.prove(n.chains[i], ev.Parent)
		}
	}
}

// prove credits the blocks before a block that was stored: the engine has just shown that it holds them. It matters after a loss only.
func (l *link) prove(chain []engine.BlockHash, parent engine.BlockHash) {
	for i := slices.Index(chain, parent); i >= 0; i-- {
		if _, there := l.holds[chain[i]]; there {
			return
		}
		l.holds[chain[i]] = struct{}{}
	}
}

// mend ends the wait for what was missed: it is there, or, where it never comes, what was known before it is withdrawn.
func (l *link) mend(there bool) {
	l.mending = false
	last := 0
	for i, x := range l.inbox {
		if x.here {
			last = i
		}
	}
	kept := l.inbox[:0]
	for i, x := range l.inbox {
		switch {
		case i >= last || !x.lost:
		case there:
			x.here = true
		default:
			clear(l.holds)
			l.blind = true
			continue
		}
		kept = append(kept, x)
	}
	clear(l.inbox[len(kept):])
	l.inbox = kept
	l.read()
}

// forget is what a gateway does when the engine's stream breaks.
func (l *link) forget() {
	clear(l.holds)
	l.inbox, l.mending, l.blind = nil, false, false
}

// match returns how many leading blocks of a chain the engine holds, as far as the gateway has heard.
func (l *link) match(chain []engine.BlockHash) int {
	n := 0
	for n < len(chain) {
		if _, there := l.holds[chain[n]]; !there {
			break
		}
		n++
	}
	return n
}

// told delivers news to the gateway.
func (g *gateway) told(e *simEngine, number uint64) {
	l := &g.links[e.index]
	if !l.arrived(number) || l.mending {
		return
	}
	if g.sim.o.EventRepair < 0 {
		l.mend(false)
		return
	}
	l.mending = true
	g.sim.events.push(event{at: g.sim.now + g.sim.o.EventRepair, kind: mended, gateway: int32(g.index), engine: int32(e.index), stamp: uint64(e.born)})
}

// source is a gateway's prefix source. It reads the prompt of the request that is being selected: a trace has hashes of blocks, no
// tokens.
type source struct{ gateway *gateway }

// Name implements prefix.Source.
func (*source) Name() string { return "replay" }

// Lookup implements prefix.Source. While nothing that engines tell is late or lost it asks the engines' own caches.
func (s *source) Lookup(_ context.Context, _ *prefix.Query, into *prefix.Match) error {
	g := s.gateway
	r := g.sim.current
	size := g.sim.o.Engine.BlockSize
	chain := r.Blocks[:r.InputTokens/size]
	for i, e := range g.sim.engines {
		n := 0
		switch {
		case g.sim.o.perfectNews() && e.core != nil:
			n = e.core.Cached(chain)
		case !g.sim.o.perfectNews():
			n = g.links[i].match(chain)
		}
		if d := int32(n * size); d > 0 {
			into.Held = append(into.Held, prefix.Held{Engine: g.numbers[i], Depth: prefix.Depth{d, d, d, d}})
		}
		if g.links[i].blind {
			into.Blind = append(into.Blind, g.numbers[i])
		}
	}
	return nil
}

// perfectNews tells whether every gateway knows every cache at every moment.
func (o *Options) perfectNews() bool { return o.EventDelay == 0 && o.EventLoss == 0 }

// DefaultEventRepair is the bound within which a gateway gets what it missed, or withdraws what it knew.
const DefaultEventRepair = time.Second
