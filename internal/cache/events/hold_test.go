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
		p := &Publisher{opt: Options{Epoch: 5}, pub: pub, wake: make(chan struct{}, 1), quit: make(chan struct{})}
		p.note.Pending, p.said.spare = &book.Pending{}, &book.Pending{}
		p.said.ring = ring{batches: 100, bytes: 1 << 20}
		p.wg.Go(p.run)
		defer p.Close()
		space := &book.Space{Namespace: managerwire.Namespace{7}, Model: "m", BlockSize: 16, Groups: 1}
		name := func(n int) chain.Key { return chain.Key{Lo: uint64(n), Hi: 9} }
		come := func() {
			for n := range 4 {
				p.Visible(space, 0, chain.Key{}, name(n))
			}
			time.Sleep(2 * gather)
		}
		leave := func(from, to int, then time.Duration) {
			for n := from; n < to; n++ {
				p.Removed(space.Namespace, 0, name(n))
			}
			time.Sleep(then)
		}
		for _, c := range []struct {
			what string
			hold bool
			long time.Duration
			want []managerwire.Kind
		}{
			{"not held", false, 2 * gather, []managerwire.Kind{managerwire.BlockRemoved, managerwire.AllBlocksCleared}},
			{"held", true, 10 * gather, []managerwire.Kind{managerwire.AllBlocksCleared}},
			{"held for too long", true, holdMost + 2*gather, []managerwire.Kind{managerwire.BlockRemoved, managerwire.AllBlocksCleared}},
			{"held again", true, 10 * gather, []managerwire.Kind{managerwire.AllBlocksCleared}},
		} {
			come()
			from := p.Stats().Batches
			release := func() {}
			if c.hold {
				release = p.Hold()
			}
			leave(0, 2, c.long)
			leave(2, 4, 0)
			release()
			time.Sleep(2 * gather)
			got := p.kinds(t, from)
			if len(got) != len(c.want) || got[0] != c.want[0] || got[len(got)-1] != c.want[len(got)-1] {
				t.Errorf("%s: %v, want %v", c.what, got, c.want)
			}
		}
	})
}
