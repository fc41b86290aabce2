package events

import (
	"github.com/perigee-llm/perigee/internal/managerwire"
)

// Stats is what a publisher has done since its start.
type Stats struct {
	// Batches is how many were said, Events how many of each kind.
	Batches uint64
	Events  [managerwire.Kinds]uint64
	// Names is how many are told and not taken back, Waiting how many blocks' changes are noted and not said.
	Names, Waiting int
	// Unnamed counts blocks that became visible and cannot be told, Unaddressed engines that gave no base URL.
	Unnamed, Unaddressed uint64
	// Subscribers is how many there are now, Dropped the batches that one of them did not take.
	Subscribers int
	Dropped     uint64
	// Replays and Snapshots are how often one was asked for; Refused are snapshots that had no turn.
	Replays, Snapshots, Refused uint64
	// ReplayBytes is what is kept for replays.
	ReplayBytes int
}

// Stats returns the counts.
func (p *Publisher) Stats() Stats {
	pub := p.pub.Stats()
	s := Stats{
		Subscribers: pub.Subscribers, Dropped: pub.Dropped, Unnamed: p.count.unnamed.Load(), Unaddressed: p.count.unaddressed.Load(),
		Replays: p.count.replays.Load(), Snapshots: p.count.snapshots.Load(), Refused: p.count.refused.Load(),
	}
	for k := range s.Events {
		s.Events[k] = p.count.events[k].Load()
	}
	p.said.Lock()
	s.Batches, s.Names, s.ReplayBytes = p.said.next, p.said.book.Names(), p.said.ring.size
	p.said.Unlock()
	p.note.Lock()
	s.Waiting = p.note.Len()
	p.note.Unlock()
	return s
}
