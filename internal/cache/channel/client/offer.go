package client

import (
	"context"
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
)

// OfferPool hands over memory of this process, for PublishFrom and RestoreInto: the first so many bytes of f, a memfd whose pages are all there. pool
// is a number that no other pool of the session has, whichever process offers it. The memory is the session's until its end; f stays the
// caller's, and is not needed any more.
func (s *Session) OfferPool(ctx context.Context, pool uint32, f *os.File, bytes uint64) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.work.Done()
	c, err := s.query.offer(&wire.OfferPool{Pool: pool, Bytes: bytes}, f)
	if err != nil {
		return err
	}
	defer s.query.forget(c)
	a, err := c.next(ctx)
	if err != nil {
		return s.lost(err)
	}
	if _, ok := a.m.(*wire.Offered); !ok {
		s.query.uc.Close()
		return ErrProtocol
	}
	return nil
}

// offer asks with a descriptor, which goes with the frame's first byte.
func (l *link) offer(m wire.Message, f *os.File) (*call, error) {
	return l.askBy(m, nil, func(uc *net.UnixConn, frame []byte) error {
		raw, err := f.SyscallConn()
		if err != nil {
			return err
		}
		n := 0
		if bad := raw.Control(func(fd uintptr) { n, _, err = uc.WriteMsgUnix(frame, unix.UnixRights(int(fd)), nil) }); bad != nil {
			return bad
		}
		if err == nil && n < len(frame) {
			_, err = uc.Write(frame[n:])
		}
		return err
	}, 1)
}

// PublishedFrom is what became of a PublishFrom.
type PublishedFrom struct {
	Published
	// There says of each block whether its part can be restored: it was filled now, or there before.
	There []bool
}

// PublishFrom publishes blocks out of offered pools: the Manager copies. pages says where each block's part lies. It returns when
// nothing is copied any more, and only then the pieces may be written again; the context ends waiting until the copies have begun, and
// never a copy. A page that could not be copied is dropped.
func (s *Session) PublishFrom(ctx context.Context, p *Publish, pages *core.Pages) (PublishedFrom, error) {
	if len(pages.Counts) != len(p.Blocks) {
		return PublishedFrom{}, errPages
	}
	if err := s.begin(); err != nil {
		return PublishedFrom{}, err
	}
	defer s.work.Done()
	c, granted, err := s.grants(ctx, p)
	if err != nil {
		return PublishedFrom{}, err
	}
	defer s.publish.forget(c)
	out := PublishedFrom{Published: Published{Chain: granted.Chain}, There: make([]bool, len(p.Blocks))}
	m, places := chosen(granted, pages, &out)
	if len(places) > 0 {
		s.copies.Add(1) // before the Manager can have it: Close must not cut the connection in between
		defer s.copies.Add(-1)
		if err := s.publish.say(c.ref, m); err != nil {
			return out, err // half a message begins nothing
		}
	}
	return out, s.lost(s.copiedIn(c, &out, m, places))
}

// errPages is the caller's mistake.
var errPages = errors.New("as many pages as blocks are wanted")

// chosen is what the Manager is to copy: the granted blocks, and their places.
func chosen(granted *wire.Granted, pages *core.Pages, out *PublishedFrom) (m *wire.PublishPieces, places []int) {
	m = &wire.PublishPieces{}
	at := 0
	for i, g := range granted.Slots {
		var pieces []core.Piece
		pieces, at = pages.Page(i, at)
		switch g.Disposition {
		case core.Present:
			out.Present++
			out.There[i] = true
		case core.Write:
			m.Slots = append(m.Slots, g.Slot)
			m.Pages.Counts = append(m.Pages.Counts, pages.Counts[i])
			m.Pages.Pieces = append(m.Pages.Pieces, pieces...)
			places = append(places, i)
		}
	}
	return m, places
}

// copiedIn waits until the copies have ended, and the Publish with them.
func (s *Session) copiedIn(c *call, out *PublishedFrom, m *wire.PublishPieces, places []int) (refused error) {
	for copied, published := len(places) == 0, false; !copied || !published; {
		a, err := c.last()
		if r := (*Refused)(nil); errors.As(err, &r) && r.Of == wire.KindPublishPieces {
			// Nothing is copied; the grants are still open.
			refused, copied = err, true
			if err := s.publish.say(c.ref, &wire.Abandon{Slots: m.Slots}); err != nil {
				return errors.Join(refused, err)
			}
			continue
		}
		if ClassOf(err) == wire.StaleSlot {
			continue // of the Abandon
		}
		if err != nil {
			return errors.Join(refused, err)
		}
		switch a := a.m.(type) {
		case *wire.CopiedIn:
			copied = true
			for i, fate := range a.Slots[:min(len(a.Slots), len(places))] {
				out.There[places[i]] = core.SlotFate(fate) == core.SlotFilled
			}
		case *wire.Published:
			published = true
			out.Sealed, out.Dropped = a.Sealed, a.Dropped
		}
	}
	return refused
}

// RestoredInto is what became of a RestoreInto.
type RestoredInto struct {
	// Good of Total pages, the first ones, are what was sealed. In the pieces of the others there may be anything.
	Good, Total uint32
	// Outcome is core.Done if they are all, core.Mismatch if page Good was found to be other than was sealed.
	Outcome core.Outcome
}

// RestoreInto has the Manager copy a consumer's pages into offered pools, in the order of the query's blocks; see Restore for what a
// plan has. It returns when nothing is copied any more: until then the pieces are the Manager's, and no context ends that. Where several consumers
// share a lease they use what all of them have.
func (s *Session) RestoreInto(l *Lease, consumer uint32, pages *core.Pages) (RestoredInto, error) {
	if err := s.begin(); err != nil {
		return RestoredInto{}, err
	}
	defer s.work.Done()
	s.copies.Add(1) // before the Manager can have it: Close must not cut the connection in between
	defer s.copies.Add(-1)
	c, err := s.query.ask(&wire.RestorePieces{Lease: l.ID, Consumer: consumer, Pages: *pages}, nil)
	if err != nil { // half a message begins nothing
		return RestoredInto{}, err
	}
	defer s.query.forget(c)
	a, err := c.last()
	if err != nil {
		return RestoredInto{}, s.lost(err)
	}
	m, ok := a.m.(*wire.CopiedOut)
	if !ok {
		s.query.uc.Close()
		return RestoredInto{}, ErrProtocol
	}
	return RestoredInto{Good: m.Good, Total: m.Total, Outcome: m.Outcome}, nil
}
