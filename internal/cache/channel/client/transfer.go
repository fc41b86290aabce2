package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
)

// Restore copies a consumer's pages: each is shown to take, in the order of the query's blocks, all parts of a block together if there is one
// consumer. The bytes are good during the call of take only, and are not to be written. It returns nil if all consumers have all of
// their pages; after any error none of them may be used. An error of take ends the restore and is returned; a panic of it ends it, and goes on.
//
// Pages come as the Manager has verified them, so that copying the one hides the verifying of the next. What their publisher's process writes into one between
// that look and take is not found: RestoreTo compares what it has copied.
func (s *Session) Restore(ctx context.Context, l *Lease, consumer uint32, take func(i int, page []byte) error) error {
	return s.restore(ctx, l, consumer, &wire.Start{Lease: l.ID, Consumer: consumer}, func(_ context.Context, first int, pages [][]byte, _ []core.PlanSlot) error {
		for i := range pages {
			if err := take(first+i, pages[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// RestoreTo is Restore for a caller whose pages are where it wants them when they are copied: to returns where page i, of so many bytes, goes, in memory
// that no other page of the restore goes to. They are copied, and compared with their checksums, here, in one pass and by Options.Copiers goroutines; to is
// called by one, in the pages' order, some ahead of the copying. It is the quicker one, and the Manager's processors have nothing to do for it.
func (s *Session) RestoreTo(ctx context.Context, l *Lease, consumer uint32, to func(i, bytes int) ([]byte, error)) error {
	at := moves.Get().(*[]move)
	list := *at
	defer func() { keep(at, list) }()
	return s.restore(ctx, l, consumer, &wire.Take{Lease: l.ID, Consumer: consumer}, func(ctx context.Context, first int, pages [][]byte, slots []core.PlanSlot) error {
		list = sizedMoves(list, len(pages))
		copied, err := copyAll(ctx, list, s.opt.Copiers, pastBytes, func(i int, m *move) (err error) {
			m.src = pages[i]
			if m.dst, err = to(first+i, len(m.src)); err == nil && len(m.dst) != len(m.src) {
				err = fmt.Errorf("page %d has %d bytes, and there is room for %d", first+i, len(m.src), len(m.dst))
			}
			return err
		})
		for i := range copied {
			if list[i].sum != slots[i].Checksum {
				return &mismatch{first + i}
			}
		}
		return err
	})
}

// mismatch says that page at is not what was sealed.
type mismatch struct{ at int }

func (e *mismatch) Error() string { return ErrSpoiled.Error() }

// Unwrap makes it ErrSpoiled.
func (e *mismatch) Unwrap() error { return ErrSpoiled }

// taker takes some pages of a plan, which are its slots from the place first on.
type taker func(ctx context.Context, first int, pages [][]byte, slots []core.PlanSlot) error

// restore begins with start and has the pages taken.
func (s *Session) restore(ctx context.Context, l *Lease, consumer uint32, start wire.Message, take taker) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.work.Done()
	ctx, cancel := s.both(ctx)
	defer cancel()
	c, err := s.query.ask(start, nil)
	if err != nil {
		return err
	}
	defer s.query.forget(c)
	end := &wire.Copied{Lease: l.ID, Consumer: consumer}
	away := true
	defer func() {
		if away { // the caller's function has panicked, or has ended its goroutine: who recovers keeps the session
			end.Outcome = core.Failed
			s.query.say(c.ref, end)
		}
	}()
	started, err := s.copyPages(ctx, c, l, take)
	away = false
	if !started {
		return s.lost(err)
	}
	if err != nil {
		end.Outcome = core.Failed
	}
	if bad, ok := errors.AsType[*mismatch](err); ok {
		end.Outcome, end.Bad = core.Mismatch, uint32(bad.at)
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

// copyPages takes the pages of a plan as they come. started says that the Manager waits for a Copied. A plan that leaves out a page is none: its place would be
// taken for restored.
func (s *Session) copyPages(ctx context.Context, c *call, l *Lease, take taker) (started bool, err error) {
	blocks, done := 0, 0
	for _, n := range l.Hits {
		blocks += int(n)
	}
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
			total := int(m.Total)
			mine := total == blocks || total == blocks*len(s.opt.Ranks) // a part of each, or all parts for who is alone
			if !mine || int(m.First) != done || len(m.Slots) == 0 || len(m.Slots) > total-done {
				return true, ErrProtocol
			}
			pages, err := s.pagesOf(ctx, m)
			if err != nil {
				return true, err
			}
			if err = take(ctx, int(m.First), pages, m.Slots); err != nil {
				return true, err
			}
			if done += len(m.Slots); done == total {
				return true, nil
			}
		default:
			return true, ErrProtocol
		}
	}
}

// pagesOf returns the pages that a part of a plan names.
func (s *Session) pagesOf(ctx context.Context, m *wire.Plan) ([][]byte, error) {
	pages := make([][]byte, len(m.Slots))
	var arena *mapping
	for i := range m.Slots {
		p := &m.Slots[i]
		if arena == nil || arena.ID != p.Slot.Arena {
			var err error
			if arena, err = s.reading(ctx, p.Slot.Arena); err != nil {
				return nil, err
			}
		}
		if p.Slot.Index >= arena.Slots || p.Bytes > arena.SlotBytes {
			return nil, ErrProtocol
		}
		pages[i] = arena.slot(p.Slot.Index, p.Bytes)
	}
	return pages, nil
}
