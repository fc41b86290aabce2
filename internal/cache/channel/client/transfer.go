package client

import (
	"context"
	"errors"

	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/chain"
)

// Restore copies a consumer's pages: each is shown to take, in the order of the query's blocks, all parts of a block together if there is one
// consumer. The bytes are good during the call of take only, and are not to be written. It returns nil if all consumers have all of
// their pages; after any error none of them may be used. An error of take ends the restore and is returned.
//
// Pages come as the Manager has verified them, so that copying the one hides the verifying of the next.
func (s *Session) Restore(ctx context.Context, l *Lease, consumer uint32, take func(i int, page []byte) error) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.work.Done()
	ctx, cancel := s.both(ctx)
	defer cancel()
	c, err := s.query.ask(&wire.Start{Lease: l.ID, Consumer: consumer}, nil)
	if err != nil {
		return err
	}
	defer s.query.forget(c)
	started, err := s.copyPages(ctx, c, take)
	if !started {
		return s.lost(err)
	}
	end := &wire.Copied{Lease: l.ID, Consumer: consumer}
	if err != nil {
		end.Outcome = core.Failed
	}
	if said := s.query.say(c.ref, end); said != nil || err != nil {
		return s.lost(errors.Join(err, said))
	}
	for { // pages may still be on their way if take has ended it
		a, err := c.next(ctx)
		if err != nil {
			return s.lost(err)
		}
		if r, ok := a.m.(*wire.Restored); ok {
			if !r.OK {
				return ErrFailed
			}
			return nil
		}
	}
}

// copyPages takes the pages of a plan as they come. started says that the Manager waits for a Copied.
func (s *Session) copyPages(ctx context.Context, c *call, take func(i int, page []byte) error) (started bool, err error) {
	for {
		a, err := c.next(ctx)
		if err != nil {
			// A refusal is the answer to Start: nothing has begun. If it was only we who stopped waiting, it may have.
			return ClassOf(err) == 0, err
		}
		switch m := a.m.(type) {
		case *wire.Spoiled:
			return true, ErrSpoiled
		case *wire.Plan:
			for i := range m.Slots {
				p := &m.Slots[i]
				arena, err := s.reading(ctx, p.Slot.Arena)
				if err != nil {
					return true, err
				}
				if p.Slot.Index >= arena.Slots || p.Bytes > arena.SlotBytes {
					return true, ErrProtocol
				}
				if err := take(int(m.First)+i, arena.slot(p.Slot.Index, p.Bytes)); err != nil {
					return true, err
				}
			}
			if int(m.First)+len(m.Slots) == int(m.Total) {
				return true, nil
			}
		default:
			return true, ErrProtocol
		}
	}
}

// Publish is blocks to be published, one part of each.
type Publish struct {
	Part        uint32
	Scope       core.Scope
	Root        wire.Root
	ParentChain chain.Key
	Blocks      []wire.Block
}

// Published is what became of a Publish.
type Published struct {
	// Sealed blocks were written, Present ones were there already, Dropped ones came to nothing.
	Sealed, Present, Dropped uint32
	// Chain is for the ParentChain of what follows in the same prompt.
	Chain chain.Key
}

// sealEvery is how many bytes are written before they are told: the Manager makes their checksums while the next are written, and a frame for
// each mebibyte costs less than a hundredth of it.
const sealEvery = 1 << 20

// Publish publishes. write is shown each slot that is to be written, with the block's place in Blocks; it fills all of it. It returns
// when the Manager has everything. When the context ends first, or a write fails, what is not yet written is given up; the caller's pages are his own
// again in any case, since nobody but write reads them. An error of write is returned.
func (s *Session) Publish(ctx context.Context, p *Publish, write func(block int, slot []byte) error) (Published, error) {
	if err := s.begin(); err != nil {
		return Published{}, err
	}
	defer s.work.Done()
	ctx, cancel := s.both(ctx)
	defer cancel()
	c, granted, err := s.grants(ctx, p)
	if err != nil {
		return Published{}, err
	}
	defer s.publish.forget(c)
	out := Published{Chain: granted.Chain}
	for _, g := range granted.Slots {
		if g.Disposition == core.Present {
			out.Present++
		}
	}
	failed := s.fill(ctx, c, p, granted, write)
	for {
		a, err := c.next(ctx)
		if ClassOf(err) == wire.StaleSlot {
			continue // a block was given up meanwhile, by a flush say: it counts as dropped
		}
		if err != nil {
			return out, s.lost(errors.Join(failed, err))
		}
		if m, ok := a.m.(*wire.Published); ok {
			out.Sealed, out.Dropped = m.Sealed, m.Dropped
			return out, s.lost(failed)
		}
	}
}

// grants asks for slots, one a block. The call is the caller's to forget unless there is an error. What is granted after the context has ended is
// given back.
func (s *Session) grants(ctx context.Context, p *Publish) (*call, *wire.Granted, error) {
	m := &wire.Publish{Part: p.Part, Scope: p.Scope, Root: p.Root, ParentChain: p.ParentChain, Blocks: p.Blocks}
	c, err := s.publish.ask(m, func() { s.pubs++; m.Op = s.pubs })
	if err != nil {
		return nil, nil, err
	}
	a, err := c.next(ctx)
	if err != nil && ctx.Err() != nil && s.ctx.Err() == nil {
		s.work.Add(1) // Close, which waits for it, waits for this call as well
		go s.giveUp(c)
		return nil, nil, err
	}
	granted, ok := a.m.(*wire.Granted)
	if err == nil && (!ok || len(granted.Slots) != len(p.Blocks)) {
		s.publish.uc.Close()
		err = ErrProtocol
	}
	if err != nil {
		s.publish.forget(c)
		return nil, nil, s.lost(err)
	}
	return c, granted, nil
}

// giveUp takes the answer to a Publish whose caller has left, and gives back what it grants. A Manager that never answers is left alone with it:
// the goroutine ends with the session.
func (s *Session) giveUp(c *call) {
	defer s.work.Done()
	defer s.publish.forget(c)
	if a, err := c.next(s.ctx); err == nil {
		if granted, ok := a.m.(*wire.Granted); ok {
			s.abandon(c, granted.Slots)
		}
	}
}

// fill has the slots written and seals them, some at a time.
func (s *Session) fill(ctx context.Context, c *call, p *Publish, granted *wire.Granted, write func(int, []byte) error) error {
	var done []wire.Sealed
	bytes := uint32(0)
	seal := func() error {
		if len(done) == 0 {
			return nil
		}
		err := s.publish.say(c.ref, &wire.Seal{Slots: done})
		done, bytes = done[:0], 0
		return err
	}
	for i, g := range granted.Slots {
		if g.Disposition != core.Write {
			continue
		}
		n := s.parts[p.Blocks[i].Group][p.Part]
		err := ctx.Err()
		s.mu.Lock()
		arena := s.mu.own[g.Slot.Arena]
		s.mu.Unlock()
		if arena == nil || g.Slot.Index >= arena.Slots || n > arena.SlotBytes {
			err = ErrProtocol
		}
		if err == nil {
			err = write(i, arena.slot(g.Slot.Index, n))
		}
		if err != nil {
			return errors.Join(err, seal(), s.abandon(c, granted.Slots[i:]))
		}
		done = append(done, wire.Sealed{Slot: g.Slot})
		if bytes += n; bytes >= sealEvery {
			if err := seal(); err != nil {
				return err
			}
		}
	}
	return seal()
}

func (s *Session) abandon(c *call, rest []wire.GrantedSlot) error {
	m := &wire.Abandon{}
	for _, g := range rest {
		if g.Disposition == core.Write {
			m.Slots = append(m.Slots, g.Slot)
		}
	}
	return s.publish.say(c.ref, m)
}
