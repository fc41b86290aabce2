package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/chain"
)

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

// Publish publishes. write is shown each slot that is to be written, with the block's place in Blocks; it fills all of it. It returns
// when the Manager has everything. When the context ends first, or a write fails, what is not yet written is given up; the caller's pages are his own
// again in any case, since nobody but write reads them. An error of write is returned; a panic of it gives up what is not sealed, and goes on.
//
// A long run of a prompt goes in pieces: the Manager finds room for the next one while this one is written.
func (s *Session) Publish(ctx context.Context, p *Publish, write func(block int, slot []byte) error) (Published, error) {
	return s.publishAll(ctx, p, filler{every: sealEvery, fill: func(ctx context.Context, list []move) (int, error) {
		for i := range list {
			err := ctx.Err()
			if err == nil {
				err = write(list[i].block, list[i].dst)
			}
			if err != nil {
				return i, err
			}
		}
		return len(list), nil
	}})
}

// PublishPages is Publish for a caller whose pages lie in memory: page returns block i's part, all of it, which stays as it is until PublishPages returns.
// They are copied here, with their checksums, in one pass and by Options.Copiers goroutines; page is called by one, in the blocks' order, some
// ahead of the copying. It is the quicker one, and the Manager looks at no page for it.
func (s *Session) PublishPages(ctx context.Context, p *Publish, page func(block int) ([]byte, error)) (Published, error) {
	return s.publishAll(ctx, p, filler{summed: true, every: pieceBytes, fill: func(ctx context.Context, list []move) (int, error) {
		return copyAll(ctx, list, s.opt.Copiers, 0, func(_ int, m *move) (err error) {
			if m.src, err = page(m.block); err == nil && len(m.src) != len(m.dst) {
				err = fmt.Errorf("page %d has %d bytes, and its slot %d", m.block, len(m.src), len(m.dst))
			}
			return err
		})
	}})
}

// filler writes slots: fill writes some, in their order, and returns how many of the first it has written; with their checksums if it makes them.
type filler struct {
	summed bool
	every  int // bytes are sealed together
	fill   func(ctx context.Context, list []move) (written int, err error)
}

const (
	// sealEvery is how many bytes are written before they are told, if the Manager makes their checksums: it does while the next are written, and a
	// frame for each mebibyte costs less than a hundredth of it.
	sealEvery = 1 << 20
	// pieceBytes and pieceBlocks bound the pieces that a long run is published in, and sealed in: some milliseconds of copying, of which the frames are a
	// hundredth. What goes for a piece goes before it is written; so it is not all of a prompt of gigabytes.
	pieceBytes, pieceBlocks = 64 << 20, 512
	// firstBlocks bounds the first of them, for whose slots the copying waits: some 50 µs of the Manager's, where a frame with its answer and what it wakes
	// costs 20 of both. Each that follows may be half as long again as the one before it, since granting a small page takes the Manager about two thirds of what
	// copying it takes here; and of larger pages so much longer as their copying takes longer: half of how many times growPer bytes a page has.
	firstBlocks, growPer = 64, 8 << 10
	// lastBlocks is how little is sealed by itself at the end of a run, whose end waits for it; less takes no less time.
	lastBlocks = 64
	// piecesAhead is how many pieces are asked for before the one that is written is: one is on its way, and the Manager has one more to begin with.
	piecesAhead = 2
	// piecesOpen bounds the pieces that are granted and not ended, or asked for: one is sealed, one is written, and two are ahead.
	piecesOpen = piecesAhead + 2
)

// piece is some blocks of a Publish that go in one message.
type piece struct {
	from, to int
	call     *call
	granted  *wire.Granted
	begun    bool // its slots are being written, or were
}

// piecesOf cuts a publish up. Names of blocks follow from those before them in the message, and of what is before a message only the last one's
// is told; so what is no run of one group goes in one.
func (s *Session) piecesOf(p *Publish) []piece {
	all := []piece{{from: 0, to: len(p.Blocks)}}
	for i := 1; i < len(p.Blocks); i++ {
		if b := &p.Blocks[i]; b.Group != 0 || p.Blocks[0].Group != 0 || b.Parent != p.Blocks[i-1].Hash {
			return all
		}
	}
	most := min(pieceBlocks, fitting(pieceBytes, s.parts[0][p.Part]))
	n := min(firstBlocks, most)
	if len(p.Blocks) <= 2*n {
		return all
	}
	all = all[:0]
	for from := 0; from < len(p.Blocks); {
		to := min(from+n, len(p.Blocks))
		if len(p.Blocks)-to <= n/2 { // what is left is not worth a frame
			to = len(p.Blocks)
		}
		all = append(all, piece{from: from, to: to})
		from, n = to, min(n*max(3, int(s.parts[0][p.Part])/growPer)/2, most)
	}
	return all
}

// fitting is how many pages are so many bytes; at least one.
func fitting(bytes int, page uint32) int { return max(1, bytes/max(1, int(page))) }

func (s *Session) publishAll(ctx context.Context, p *Publish, f filler) (out Published, err error) {
	if err := s.begin(); err != nil {
		return Published{}, err
	}
	defer s.work.Done()
	if int(p.Part) >= len(s.parts[0]) {
		return Published{}, fmt.Errorf("part %d of %d", p.Part, len(s.parts[0]))
	}
	ctx, cancel := s.both(ctx)
	defer cancel()
	r := &run{s: s, p: p, f: f, pieces: s.piecesOf(p), chain: p.ParentChain, out: &out}
	list := moves.Get().(*[]move)
	r.list = *list
	away := true
	defer func() {
		if away {
			r.leave()
		}
	}()
	err = r.write(ctx)
	away = false
	keep(list, r.list)
	for i := r.ended; i < r.asked; i++ {
		a := &r.pieces[i]
		if a.call != nil && a.granted == nil && err == nil { // asked for before it was known that there is no room
			err = r.granted(ctx, i)
		}
		switch {
		case a.call == nil:
		case a.granted == nil: // given up
			s.giveUp(a.call)
		default:
			if !a.begun {
				err = errors.Join(err, s.abandon(a.call, a.granted.Slots))
			}
			err = errors.Join(err, s.published(ctx, a, &out))
		}
	}
	out.Chain = r.chain
	if err == nil { // nothing that continues what had no room could be reached
		out.Dropped += uint32(len(p.Blocks) - r.pieces[r.asked-1].to)
	}
	return out, s.lost(err)
}

// grants asks for slots, one a block. The call is the caller's to forget unless there is an error. What is granted after the context has ended is
// given back.
func (s *Session) grants(ctx context.Context, p *Publish) (*call, *wire.Granted, error) {
	m := &wire.Publish{Part: p.Part, Scope: p.Scope, Root: p.Root, ParentChain: p.ParentChain, Blocks: p.Blocks}
	a := piece{to: len(p.Blocks)}
	var err error
	if a.call, err = s.publish.ask(m, func() { s.pubs++; m.Op = s.pubs }); err != nil {
		return nil, nil, err
	}
	if err := s.grantedPiece(ctx, &a); err != nil {
		if a.call != nil {
			s.giveUp(a.call)
		}
		return nil, nil, s.lost(err)
	}
	return a.call, a.granted, nil
}

// room says that there was some for the piece's last block.
func (a *piece) room() bool {
	return a.granted.Slots[len(a.granted.Slots)-1].Disposition != core.NoRoom
}

// grantedPiece waits for the Manager's answer.
func (s *Session) grantedPiece(ctx context.Context, a *piece) error {
	answer, err := a.call.next(ctx)
	if err != nil {
		if ClassOf(err) != 0 || ctx.Err() == nil || s.ctx.Err() != nil { // there is nothing to come
			s.publish.forget(a.call)
			a.call = nil
		}
		return err
	}
	granted, ok := answer.m.(*wire.Granted)
	if !ok || len(granted.Slots) != a.to-a.from {
		s.publish.uc.Close()
		s.publish.forget(a.call)
		a.call = nil
		return ErrProtocol
	}
	a.granted = granted
	return nil
}

// published waits for the end of a piece, and counts.
func (s *Session) published(ctx context.Context, a *piece, out *Published) error {
	defer s.publish.forget(a.call)
	for _, g := range a.granted.Slots {
		if g.Disposition == core.Present {
			out.Present++
		}
	}
	for {
		answer, err := a.call.next(ctx)
		if ClassOf(err) == wire.StaleSlot {
			continue // a block was given up meanwhile, by a flush say: it counts as dropped
		}
		if err != nil {
			return err
		}
		if m, ok := answer.m.(*wire.Published); ok {
			out.Sealed += m.Sealed
			out.Dropped += m.Dropped
			return nil
		}
	}
}

// giveUp has the answer to a Publish whose caller has left taken, and what it grants given back. A Manager that never answers is left alone with
// it: the goroutine ends with the session, and Close waits for it.
func (s *Session) giveUp(c *call) {
	s.work.Add(1) // the caller's call is counted until it returns
	go func() {
		defer s.work.Done()
		defer s.publish.forget(c)
		if a, err := c.next(s.ctx); err == nil {
			if granted, ok := a.m.(*wire.Granted); ok {
				s.abandon(c, granted.Slots)
			}
		}
	}()
}

// abandonRest gives back what of the slots was to be written, but for the first so many.
func (s *Session) abandonRest(a *piece, slots []wire.GrantedSlot, written int) error {
	for i, g := range slots {
		if g.Disposition != core.Write {
			continue
		}
		if written == 0 {
			return s.abandon(a.call, slots[i:])
		}
		written--
	}
	return nil
}

// own returns the mapping of an arena of the session's own; nil: it has none of that id.
func (s *Session) own(id uint32) *mapping {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.own[id]
}

func (s *Session) abandon(c *call, rest []wire.GrantedSlot) error {
	m := &wire.Abandon{}
	for _, g := range rest {
		if g.Disposition == core.Write {
			m.Slots = append(m.Slots, g.Slot)
		}
	}
	if len(m.Slots) == 0 {
		return nil
	}
	return s.publish.say(c.ref, m)
}
