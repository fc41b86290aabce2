package events

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/cache/events/book"
	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/wire"
	"github.com/perigee-llm/perigee/internal/managerwire"
	"github.com/perigee-llm/perigee/internal/zmtp"
)

// kinds are the events of the batches from one on.
func (p *Publisher) kinds(t *testing.T, from uint64) (out []managerwire.Kind) {
	t.Helper()
	_, all := p.takeFrom(from)
	for _, b := range all {
		var d wire.ManagerDecoder
		if err := d.Begin(b); err != nil {
			t.Fatal(err)
		}
		for d.Next() == wire.Event {
			out = append(out, d.Event.Kind)
		}
	}
	return out
}

// TestHold: blocks that go in parts while changes are held are told as one, when they are let go; but not for ever.
func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pub, err := zmtp.NewPublisher(zmtp.PublisherOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p := &Publisher{opt: Options{Epoch: 5}, pub: pub, wake: make(chan struct{}, 1), quit: make(chan struct{}), heldMost: 100}
		p.note.Pending, p.said.spare = &book.Pending{}, &book.Pending{}
		p.said.ring = ring{batches: 100, bytes: 1 << 20}
		p.wg.Go(p.run)
		defer p.Close()
		space := &book.Space{Namespace: managerwire.Namespace{7}, Model: "m", BlockSize: 16, Groups: 1}
		name := func(n int) chain.Key { return chain.Key{Lo: uint64(n), Hi: 9} }
		come := func(blocks int) {
			var before chain.Key
			for n := range blocks {
				p.Visible(space, 0, before, name(n))
				before = name(n)
			}
			time.Sleep(2 * gather)
		}
		leave := func(from, to int, then time.Duration) {
			for n := from; n < to; n++ {
				p.Removed(space.Namespace, 0, name(n))
			}
			time.Sleep(then)
		}
		const few, many = 4, 202
		once := []managerwire.Kind{managerwire.AllBlocksCleared}
		parts := []managerwire.Kind{managerwire.BlockRemoved, managerwire.AllBlocksCleared}
		for _, c := range []struct {
			what   string
			blocks int
			hold   bool
			long   time.Duration
			want   []managerwire.Kind // the first and the last
		}{
			{"not held", few, false, 2 * gather, parts},
			{"held", few, true, 10 * gather, once},
			{"held for too long", few, true, holdMost + 2*gather, parts},
			{"held again", few, true, 10 * gather, once},
			{"more than are held", many, true, 10 * gather, parts},
		} {
			come(c.blocks)
			from := p.Stats().Batches
			release := func() {}
			if c.hold {
				release = p.Hold()
			}
			leave(0, c.blocks/2, c.long)
			leave(c.blocks/2, c.blocks, 0)
			release()
			time.Sleep(2 * gather)
			got := p.kinds(t, from)
			if len(got) == 0 || got[0] != c.want[0] || got[len(got)-1] != c.want[len(c.want)-1] || len(c.want) == 1 && len(got) != 1 {
				t.Errorf("%s: %v, want %v", c.what, got, c.want)
			}
		}
	})
}
