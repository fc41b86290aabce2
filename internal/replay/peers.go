package replay

import (
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// restateEvery is how often a gateway tells the others everything, as the gateway's peers do.
const restateEvery = time.Second

// peers is what one gateway tells the others, and what it has heard of them.
type peers struct {
	gateway  *gateway
	places   map[*load.Engine]int
	loads    []*load.Engine
	accounts []*load.Account // by gateway; its own stays empty
	told     uint64
}

// word is one thing that a gateway tells. It is shared by those who hear it and never changed.
type word struct {
	from   int
	engine int // -1: prompts are all that it has
	prompt load.Prompt
	gone   bool
	at     time.Time // of gone
	all    []placed
}

// placed is a prompt and its engine's place.
type placed struct {
	engine int
	load.Prompt
}

// meet makes g one of the gateways that tell each other what they send.
func (g *gateway) meet() {
	g.peers = &peers{gateway: g, places: map[*load.Engine]int{}}
	g.tracker.Observer = g.peers
	for range g.sim.o.Gateways {
		g.peers.accounts = append(g.peers.accounts, load.NewAccount(0))
	}
	// Each has its own phase.
	phase := time.Duration(keyed(g.sim.o.Seed, forPeers, uint64(g.index)) % uint64(restateEvery))
	g.sim.events.push(event{at: phase, kind: restate, gateway: int32(g.index)})
}

// Sent implements load.Observer.
func (p *peers) Sent(e *load.Engine, prompt load.Prompt) {
	p.tell(&word{from: p.gateway.index, engine: p.places[e], prompt: prompt})
}

// Gone implements load.Observer.
func (p *peers) Gone(e *load.Engine, id uint64, at time.Time) {
	p.tell(&word{from: p.gateway.index, engine: p.places[e], prompt: load.Prompt{ID: id}, gone: true, at: at})
}

// restate tells everything, and schedules the next time.
func (g *gateway) restate() {
	s := g.sim
	s.events.push(event{at: s.now + restateEvery, kind: restate, gateway: int32(g.index)})
	w := &word{from: g.index, engine: -1}
	var list []load.Prompt
	for i, e := range g.peers.loads {
		list = e.Prompts(list[:0])
		for _, p := range list {
			w.all = append(w.all, placed{i, p})
		}
	}
	g.peers.tell(w)
}

// tell sends w to all others, each on its own way.
func (p *peers) tell(w *word) {
	s := p.gateway.sim
	p.told++
	for i := range s.o.Gateways {
		if i == w.from {
			continue
		}
		if s.o.PeerLoss > 0 && unit(keyed(s.o.Seed, forPeers, uint64(w.from), uint64(i), p.told)) < s.o.PeerLoss {
			continue
		}
		s.events.push(event{at: s.now + max(s.o.PeerDelay, 0), kind: heard, gateway: int32(i), word: w})
	}
}

// heard takes in what another told.
func (g *gateway) heard(w *word) {
	p, a := g.peers, g.peers.accounts[w.from]
	a.Heard(wall(g.sim.now))
	switch {
	case w.engine < 0:
		list := make([]load.Told, len(w.all))
		for i, x := range w.all {
			list[i] = load.Told{Engine: p.loads[x.engine], Prompt: x.Prompt}
		}
		a.All(list)
	case w.gone:
		a.Gone(w.prompt.ID, w.at)
	default:
		a.Sent(load.Told{Engine: p.loads[w.engine], Prompt: w.prompt})
	}
}

// expire drops what those told who have fallen silent.
func (p *peers) expire(now time.Time) {
	if p == nil {
		return
	}
	for _, a := range p.accounts {
		a.Expire(now, load.DefaultSilence)
	}
}

// knows notes an engine of the gateway's, in their order.
func (p *peers) knows(e *load.Engine) {
	if p != nil {
		p.places[e] = len(p.loads)
		p.loads = append(p.loads, e)
	}
}
