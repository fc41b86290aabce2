package book

import (
	"iter"
	"maps"
	"slices"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/managerwire"
)

// runs makes BlockStored events: one for each run of blocks of which each follows the one before it.
type runs struct{ events []managerwire.Event }

func (r *runs) add(e *entry) {
	if n := len(r.events); n > 0 {
		last := &r.events[n-1]
		if last.Namespace == e.space.Namespace && last.Model == e.space.Model && !e.parent.IsZero() && last.Chain[len(last.Chain)-1] == e.parent &&
			len(last.Chain) < managerwire.ChunkBlocks {
			last.Chain = append(last.Chain, e.name)
			return
		}
	}
	r.events = append(r.events, managerwire.Event{
		Kind: managerwire.BlockStored, Namespace: e.space.Namespace, Model: e.space.Model, BlockSize: e.space.BlockSize,
		Chain: []chain.Key{e.name}, Parent: e.parent, Medium: managerwire.CPU,
	})
}

// Snapshot returns what is so: attached engines, then names, parents before children. It takes some 0.7 µs a name.
func (b *Book) Snapshot() []managerwire.Event {
	var out runs
	for _, instance := range slices.Sorted(maps.Keys(b.engines)) {
		out.events = append(out.events, attached(instance, b.engines[instance]))
	}
	var stored runs
	b.walk++
	for _, e := range b.entries {
		b.climb = b.climb[:0]
		// A chain cannot bite its tail unless somebody made two names collide; the mark ends that too.
		for up := e; up != nil && up.walk != b.walk; up = b.entries[name{up.space.Namespace, up.parent}] {
			up.walk = b.walk
			b.climb = append(b.climb, up)
		}
		for _, up := range slices.Backward(b.climb) {
			if up.told {
				stored.add(up)
			}
		}
	}
	clear(b.climb)
	return append(out.events, stored.events...)
}

// Batches cuts events into batches of at most managerwire.ChunkBlocks blocks, an event without blocks counting as one. No event has more.
func Batches(events []managerwire.Event) iter.Seq[[]managerwire.Event] {
	return func(yield func([]managerwire.Event) bool) {
		from, n := 0, 0
		for i := range events {
			weight := max(1, len(events[i].Chain))
			if n > 0 && n+weight > managerwire.ChunkBlocks {
				if !yield(events[from:i]) {
					return
				}
				from, n = i, 0
			}
			n += weight
		}
		if from < len(events) {
			yield(events[from:])
		}
	}
}
