package client

import (
	"context"
	"errors"

	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/chain"
)

// run is a publish that is under way. The caller's goroutine writes slots. With more than one piece another one speaks with the Manager meanwhile: a message of
// hundreds of blocks takes as long as copying a tenth of small pages, and one that is written wakes a process.
type run struct {
	s      *Session
	p      *Publish
	f      filler
	pieces []piece
	chain  chain.Key // of the last piece that was granted
	list   []move    // those of a fill

	// What follows is tell's while it runs.
	asked int // pieces
	ended int // pieces whose Published has come
	out   *Published
}

// told is what the writing goroutine tells the other one: what it has written of a piece, and whether it is over.
type told struct {
	piece int
	done  []wire.Sealed
	over  bool
}

// toldAhead is how much may be told that was not taken yet: some messages. Whoever writes waits then, as for the socket.
const toldAhead = 16

// ask asks for the next piece's slots. The name of what it follows is the Manager's to know, which takes messages in their order: the piece before it may
// not have been granted yet.
func (r *run) ask() error {
	a := &r.pieces[r.asked]
	m := &wire.Publish{Part: r.p.Part, Scope: r.p.Scope, Root: r.p.Root, Blocks: r.p.Blocks[a.from:a.to]}
	if r.asked == 0 {
		m.ParentChain = r.p.ParentChain
	}
	var err error
	if a.call, err = r.s.publish.ask(m, func() { r.s.pubs++; m.Op = r.s.pubs }); err == nil {
		r.asked++
	}
	return err
}

// granted waits for the slots of piece i.
func (r *run) granted(ctx context.Context, i int) error {
	a := &r.pieces[i]
	if err := r.s.grantedPiece(ctx, a); err != nil {
		return err
	}
	r.chain = a.granted.Chain
	return nil
}

// write has the pieces written, one after the other as far as there is room. What it has sealed need not have ended when it returns.
func (r *run) write(ctx context.Context) (err error) {
	if err := r.ask(); err != nil {
		return err
	}
	if len(r.pieces) == 1 {
		if err := r.granted(ctx, 0); err != nil {
			return err
		}
		return r.fill(ctx, 0, func(_ int, done []wire.Sealed) error { return r.seal(0, done) })
	}
	tells, asked, failed := make(chan told, toldAhead), make(chan int, len(r.pieces)), make(chan error, 1)
	asked <- 0
	go func() { failed <- r.tell(ctx, tells, asked) }()
	defer func() { // also when the caller's function panics
		close(tells)
		err = errors.Join(err, <-failed)
	}()
	return r.writeAsked(ctx, tells, asked)
}

// leave gives back what was granted and not begun when the caller's function has panicked, or has ended its goroutine: who recovers keeps the session. It waits
// for no answer.
func (r *run) leave() {
	for i := r.ended; i < r.asked; i++ {
		switch a := &r.pieces[i]; {
		case a.call == nil:
		case a.granted == nil:
			r.s.giveUp(a.call)
		default:
			if !a.begun {
				r.s.abandon(a.call, a.granted.Slots)
			}
			r.s.publish.forget(a.call)
		}
	}
}

// writeAsked writes the pieces that have been asked for. What it has written it tells; but the very last it seals itself, since whoever waits for its end
// would wait for one goroutine more.
func (r *run) writeAsked(ctx context.Context, tells chan<- told, asked <-chan int) error {
	for i := range asked {
		if err := r.granted(ctx, i); err != nil {
			return err
		}
		t := told{piece: i, over: true}
		err := r.fill(ctx, i, func(to int, done []wire.Sealed) error {
			switch to {
			case len(r.p.Blocks):
				return r.seal(i, done)
			case r.pieces[i].to:
				t.done = done
			default:
				tells <- told{piece: i, done: done}
			}
			return nil
		})
		tells <- t
		if err != nil || !r.pieces[i].room() {
			return err
		}
	}
	return nil
}

// tell asks for all pieces but the first, some ahead of the one that is written, tells which it has asked for, and seals what was written. It returns when nothing more is
// told to it, and everything that was is sealed: else its slots would stay granted. It asks for nothing more when the context has ended, or something has failed.
func (r *run) tell(ctx context.Context, tells <-chan told, asked chan<- int) (err error) {
	open := true // whoever writes waits for more
	most := 1 + piecesAhead
	for more := true; more; {
		for err == nil && r.asked < min(most, len(r.pieces)) {
			err = r.askAhead(ctx, told{}, asked)
		}
		if open && (err != nil || r.asked == len(r.pieces)) {
			open = false
			close(asked)
		}
		var t told
		if t, more = <-tells; t.over {
			most = t.piece + 2 + piecesAhead
		}
		switch {
		case len(t.done) == 0:
		case t.over && err == nil && r.asked < min(most, len(r.pieces)):
			err = r.askAhead(ctx, t, asked)
		default:
			err = errors.Join(err, r.seal(t.piece, t.done))
		}
	}
	return err
}

// askAhead asks for the next piece, when no more than so many are open, and seals what was written before, in the same write.
func (r *run) askAhead(ctx context.Context, t told, asked chan<- int) (err error) {
	for err == nil && r.asked-r.ended >= piecesOpen { // the first of them has been sealed for a whole piece's time
		r.ended++
		err = r.s.published(ctx, &r.pieces[r.ended-1], r.out)
	}
	if err == nil {
		err = ctx.Err()
	}
	switch {
	case len(t.done) == 0:
	case err == nil:
		r.s.publish.hold(r.sealOf(t.piece, t.done))
	default:
		err = errors.Join(err, r.seal(t.piece, t.done))
	}
	if err != nil {
		return err
	}
	if err = r.ask(); err == nil {
		asked <- r.asked - 1
	}
	return err
}

// seal says that slots of piece i are written.
func (r *run) seal(i int, done []wire.Sealed) error { return r.s.publish.say(r.sealOf(i, done)) }

func (r *run) sealOf(i int, done []wire.Sealed) (ref uint64, m wire.Message) {
	return r.pieces[i].call.ref, &wire.Seal{Summed: r.f.summed, Slots: done}
}

// fill has the slots of piece i written and sealed, some at a time: at the end of a long run ever fewer, so that little is left to be sealed
// when the last is written. seal is told up to which block all is written then, or was given up; the list is its own.
func (r *run) fill(ctx context.Context, i int, seal func(to int, done []wire.Sealed) error) error {
	a := &r.pieces[i]
	a.begun = true
	slots, from, away := a.granted.Slots, 0, false
	defer func() {
		if away { // it has panicked: how much is written nobody knows
			r.s.abandon(a.call, slots[from:])
		}
	}()
	for from < len(slots) {
		most := len(slots)
		if left := (most - from) / 2; i+1 == len(r.pieces) && left >= lastBlocks {
			most = from + left
		}
		to, err := from, ctx.Err()
		if err == nil {
			to, err = r.next(a, from, most)
		}
		written := 0
		if err == nil {
			away = true
			written, err = r.f.fill(ctx, r.list)
			away = false
		}
		if written > 0 {
			done := make([]wire.Sealed, 0, written)
			for k := range r.list[:written] {
				m := &r.list[k]
				done = append(done, wire.Sealed{Slot: slots[m.block-a.from].Slot, Checksum: m.sum})
			}
			err = errors.Join(err, seal(a.from+to, done))
		}
		if err != nil {
			return errors.Join(err, r.s.abandonRest(a, slots[from:], written))
		}
		from = to
	}
	return nil
}

// next lists what is to be written of a piece's slots, from one on and before another, as much as is sealed together, and returns where that ends.
func (r *run) next(a *piece, from, most int) (to int, err error) {
	r.list = r.list[:0]
	var arena *mapping
	bytes := 0
	for to = from; to < most && bytes < r.f.every; to++ {
		g := &a.granted.Slots[to]
		if g.Disposition != core.Write {
			continue
		}
		if arena == nil || arena.ID != g.Slot.Arena {
			arena = r.s.own(g.Slot.Arena)
		}
		n := r.s.parts[r.p.Blocks[a.from+to].Group][r.p.Part]
		if arena == nil || g.Slot.Index >= arena.Slots || n > arena.SlotBytes {
			return to, ErrProtocol
		}
		r.list = append(r.list, move{dst: arena.slot(g.Slot.Index, n), block: a.from + to})
		bytes += int(n)
	}
	return to, nil
}
