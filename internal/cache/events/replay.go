package events

import (
	"time"

	"github.com/perigee-llm/perigee/internal/cache/events/book"
	"github.com/perigee-llm/perigee/internal/managerwire"
	"github.com/perigee-llm/perigee/internal/zmtp"
)

// ring keeps the last batches.
type ring struct {
	batches, bytes int // bounds
	all            [][]byte
	size           int
}

func (r *ring) add(b []byte) {
	r.all = append(r.all, b)
	r.size += len(b)
	for len(r.all) > r.batches || r.size > r.bytes && len(r.all) > 1 {
		r.size -= len(r.all[0])
		r.all[0] = nil
		r.all = r.all[1:]
	}
}

// piece is how many batches a replay takes at a time: few enough that the lock is held for a moment.
const piece = 256

// takeFrom returns batches from a number on, the first of which may be a later one, and which it is. None: it has been told all.
func (p *Publisher) takeFrom(from uint64) (first uint64, all [][]byte) {
	s := &p.said
	s.Lock()
	defer s.Unlock()
	oldest := s.next - uint64(len(s.ring.all))
	first = max(from, oldest)
	if first >= s.next {
		return first, nil
	}
	rest := s.ring.all[first-oldest:]
	return first, append([][]byte(nil), rest[:min(len(rest), piece)]...)
}

// answerReplay serves one peer. A question that is none gets no answer, as with engines.
func (p *Publisher) answerReplay(c *zmtp.Conn) {
	var m zmtp.Message
	for c.Receive(&m) == nil {
		from, ok := managerwire.ReplayFrom(m.Frames)
		if !ok {
			continue
		}
		p.count.replays.Add(1)
		if p.sendReplay(c, from) != nil {
			return
		}
	}
}

func (p *Publisher) sendReplay(c *zmtp.Conn, from uint64) error {
	p.said.Lock()
	end := p.said.next // what is said later comes live
	p.said.Unlock()
	for from < end {
		first, all := p.takeFrom(from)
		for i, b := range all {
			if err := c.Send(managerwire.Replayed(first+uint64(i), b)...); err != nil {
				return err
			}
		}
		if len(all) == 0 {
			break
		}
		from = first + uint64(len(all))
	}
	return c.Send(managerwire.ReplayEnd()...)
}

// turn is how long a snapshot waits for its turn.
const turn = 5 * time.Second

// answerSnapshot serves one peer.
func (p *Publisher) answerSnapshot(c *zmtp.Conn) {
	var m zmtp.Message
	for c.Receive(&m) == nil {
		var err error
		switch {
		case !managerwire.IsSnapshotRequest(m.Frames):
			err = c.Send(managerwire.SnapshotError("want " + managerwire.SnapshotRequest)...)
		case !p.place():
			p.count.refused.Add(1)
			err = c.Send(managerwire.SnapshotError("too many at once: ask again")...)
		default:
			p.count.snapshots.Add(1)
			err = p.sendSnapshot(c)
			<-p.snapshots
		}
		if err != nil {
			return
		}
	}
}

// place waits for a place.
func (p *Publisher) place() bool {
	patience := time.NewTimer(turn)
	defer patience.Stop()
	select {
	case p.snapshots <- struct{}{}:
		return true
	case <-patience.C:
	case <-p.quit:
	}
	return false
}

func (p *Publisher) sendSnapshot(c *zmtp.Conn) error {
	resume, events := p.takeSnapshot()
	if err := c.Send(managerwire.SnapshotHeader(p.opt.Epoch, resume, uint64(len(events)))...); err != nil {
		return err
	}
	for part := range book.Batches(events) {
		if err := c.Send(managerwire.SnapshotChunk(managerwire.AppendBatch(nil, p.head(), part))...); err != nil {
			return err
		}
	}
	return c.Send(managerwire.SnapshotEnd()...)
}

// takeSnapshot returns what is so, and the number of the first batch that is not in it. The events share no memory with the book.
func (p *Publisher) takeSnapshot() (resume uint64, events []managerwire.Event) {
	s := &p.said
	s.Lock()
	defer s.Unlock()
	events = s.book.Snapshot()
	return s.next, append(events, s.prices.Events(now(), &s.book)...)
}
