package book

import (
	"cmp"
	"maps"
	"slices"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/managerwire"
)

// Book is what was told. The zero value has told nothing and is ready.
type Book struct {
	entries map[name]*entry
	told    map[managerwire.Namespace]int // names
	engines map[uint64]Engine
	walk    uint32  // of the last Snapshot
	notes   []noted // scratch, as are the next two
	touched []*entry
	climb   []*entry
}

type noted struct {
	key
	change
}

// name is a block's in a namespace.
type name struct {
	namespace managerwire.Namespace
	name      chain.Key
}

// entry is one of which some group is visible.
type entry struct {
	space   *Space
	parent  chain.Key
	name    chain.Key
	blocks  []uint32 // that have the name, by group
	told    bool
	touched bool
	walk    uint32 // the last that was here
}

func (e *entry) whole() bool { return !slices.Contains(e.blocks, 0) }

func (e *entry) empty() bool {
	return !slices.ContainsFunc(e.blocks, func(n uint32) bool { return n > 0 })
}

// Names returns how many names are told and not taken back.
func (b *Book) Names() (n int) {
	for _, of := range b.told {
		n += of
	}
	return n
}

// Engine returns an attached one.
func (b *Book) Engine(instance uint64) (Engine, bool) {
	e, ok := b.engines[instance]
	return e, ok
}

// Apply takes the notes, which are empty then, and returns what is to be told: engines that left, engines that came, names that went, names that
// came; of the last, parents before children if they became visible so.
func (b *Book) Apply(p *Pending) []managerwire.Event {
	if b.entries == nil {
		b.entries, b.told, b.engines = map[name]*entry{}, map[managerwire.Namespace]int{}, map[uint64]Engine{}
	}
	events := b.applyEngines(p, nil)
	b.touch(p)
	var stored runs
	gone := map[managerwire.Namespace][]chain.Key{}
	for _, e := range b.touched {
		e.touched = false
		n := e.space.Namespace
		switch whole := e.whole(); {
		case whole && !e.told:
			e.told = true
			b.told[n]++
			stored.add(e)
		case !whole && e.told:
			e.told = false
			b.told[n]--
			gone[n] = append(gone[n], e.name)
		}
		if e.empty() {
			delete(b.entries, name{n, e.name})
		}
	}
	clear(b.touched)
	b.touched = b.touched[:0]
	return append(b.gone(events, gone), stored.events...)
}

func (b *Book) applyEngines(p *Pending, events []managerwire.Event) []managerwire.Event {
	for _, instance := range slices.Sorted(maps.Keys(p.detached)) {
		if e, there := b.engines[instance]; there {
			delete(b.engines, instance)
			events = append(events, managerwire.Event{Kind: managerwire.Detached, Engine: e.URL, Instance: instance})
		}
	}
	for _, instance := range slices.Sorted(maps.Keys(p.attached)) {
		b.engines[instance] = p.attached[instance]
		events = append(events, attached(instance, p.attached[instance]))
	}
	clear(p.detached)
	clear(p.attached)
	return events
}

// attached says that an engine can restore from the Manager's memory, which is all that there is so far.
func attached(instance uint64, e Engine) managerwire.Event {
	return managerwire.Event{
		Kind: managerwire.Attached, Engine: e.URL, Rank: e.Rank, Namespace: e.Space.Namespace, Instance: instance, Media: 1 << managerwire.CPU,
	}
}

// touch brings the entries up to date, and lists those that changed in the order in which they did.
func (b *Book) touch(p *Pending) {
	for k, c := range p.blocks {
		b.notes = append(b.notes, noted{k, c})
	}
	slices.SortFunc(b.notes, func(x, y noted) int { return cmp.Compare(x.order, y.order) })
	for i := range b.notes {
		k, c := &b.notes[i].key, &b.notes[i].change
		at := name{k.namespace, k.name}
		e := b.entries[at]
		if e == nil {
			if c.delta < 0 {
				continue // it could not be told when it came
			}
			e = &entry{space: c.space, parent: c.parent, name: k.name, blocks: make([]uint32, c.space.Groups)}
			b.entries[at] = e
		}
		if int(k.group) >= len(e.blocks) {
			continue
		}
		e.blocks[k.group] = uint32(max(0, int(e.blocks[k.group])+c.delta))
		if !e.touched {
			e.touched = true
			b.touched = append(b.touched, e)
		}
	}
	// Both keep the room of their largest day: what was large is let go.
	if len(p.blocks) > managerwire.ChunkBlocks {
		p.blocks, b.notes = nil, nil
	}
	clear(p.blocks)
	clear(b.notes)
	b.notes = b.notes[:0]
}

// gone says which names went; of a namespace of which nothing is left, that it is cleared.
func (b *Book) gone(events []managerwire.Event, gone map[managerwire.Namespace][]chain.Key) []managerwire.Event {
	spaces := slices.SortedFunc(maps.Keys(gone), func(x, y managerwire.Namespace) int { return slices.Compare(x[:], y[:]) })
	for _, n := range spaces {
		if b.told[n] == 0 {
			delete(b.told, n)
			events = append(events, managerwire.Event{Kind: managerwire.AllBlocksCleared, Namespace: n})
			continue
		}
		for part := range slices.Chunk(gone[n], managerwire.ChunkBlocks) {
			events = append(events, managerwire.Event{Kind: managerwire.BlockRemoved, Namespace: n, Chain: part, Medium: managerwire.CPU})
		}
	}
	return events
}
