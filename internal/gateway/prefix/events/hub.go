package events

import (
	"context"
	"sync"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
	"github.com/perigee-llm/perigee/internal/zmtp"
)

// hubs are the places where we listen for engines that dial. Engines that dial one place are told apart by their topics: exactly, or,
// where nobody has that one, by the only feed that there is.
type hubs struct {
	o  *Options
	mu sync.Mutex // order: before a hub's own
	at map[string]*hub
}

// hub is one place. It is there while it has feeds.
type hub struct {
	lead   *feed // whose counters have what belongs to nobody
	l      *zmtp.Listener
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	feeds map[*feed]*zmtp.Conn // with the connection that its engine publishes on; nil: none
	conns map[*zmtp.Conn]struct{}
}

// join has a feed served by its place. Its error is that of listening.
func (h *hubs) join(f *feed) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.at == nil {
		h.at = map[string]*hub{}
	}
	b := h.at[f.src.Events]
	if b == nil {
		l, err := h.o.Listen(f.src.Events, h.o.zmtp(""))
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(context.Background())
		b = &hub{lead: f, l: l, cancel: cancel, feeds: map[*feed]*zmtp.Conn{}, conns: map[*zmtp.Conn]struct{}{}}
		h.at[f.src.Events] = b
		b.wg.Go(func() { _ = l.Serve(ctx, b.serve) }) // ends with the context
	}
	b.mu.Lock()
	b.feeds[f] = nil
	b.mu.Unlock()
	return nil
}

// leave ends a feed's part. The place is closed with its last feed.
func (h *hubs) leave(f *feed) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.at[f.src.Events]
	if b == nil {
		return
	}
	b.mu.Lock()
	delete(b.feeds, f)
	last := len(b.feeds) == 0
	b.mu.Unlock()
	if last {
		b.cancel()
		b.wg.Wait()
		delete(h.at, f.src.Events)
	}
}

// serve reads one engine's connection.
func (b *hub) serve(c *zmtp.Conn) {
	b.mu.Lock()
	b.conns[c] = struct{}{}
	only := b.onlyLocked()
	b.mu.Unlock()
	if only != nil {
		b.take(only, c)
	}
	err := b.lead.receive(c, func(topic []byte) *feed {
		f := b.feedOf(topic)
		if f != nil {
			b.take(f, c)
		}
		return f
	})
	b.mu.Lock()
	delete(b.conns, c)
	var lost []*feed
	for f, its := range b.feeds {
		if its == c {
			b.feeds[f] = nil
			lost = append(lost, f)
		}
	}
	b.mu.Unlock()
	for _, f := range lost {
		f.broken(err)
	}
}

// take makes a connection the one that a feed's engine publishes on. If there was another, the engine has dialled again before we noticed.
func (b *hub) take(f *feed, c *zmtp.Conn) {
	b.mu.Lock()
	old, there := b.feeds[f]
	if !there || old == c {
		b.mu.Unlock()
		return
	}
	b.feeds[f] = c
	b.mu.Unlock()
	if old != nil {
		f.broken(zmtp.ErrClosed)
	}
	f.tell(message{input: stream.Input{Kind: stream.Connected}})
}

// onlyLocked is the feed that must be meant, where there is only one.
func (b *hub) onlyLocked() *feed {
	if len(b.feeds) != 1 {
		return nil
	}
	for f := range b.feeds {
		return f
	}
	return nil
}

func (b *hub) feedOf(topic []byte) *feed {
	b.mu.Lock()
	defer b.mu.Unlock()
	for f := range b.feeds {
		if isTopic(topic, f.src.Topic) {
			return f
		}
	}
	if f := b.onlyLocked(); f != nil && f.src.Topic == "" {
		return f
	}
	return nil
}
