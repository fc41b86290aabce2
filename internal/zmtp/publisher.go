package zmtp

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/perigee-llm/perigee/internal/zmtp/wire"
)

// PublisherOptions are a publisher's. The zero value works.
type PublisherOptions struct {
	Options // of each connection; Topics and the bounds on messages have no part

	// HighWater bounds the messages that wait for one subscriber, and HighWaterBytes their bytes. One more is dropped, for that
	// subscriber, and counted: a publisher never waits for a subscriber. Defaults: 1000, as of ZeroMQ (vLLM sets 100,000), and 64 MiB.
	HighWater, HighWaterBytes int
}

// Publisher is a PUB socket: each message goes to the subscribers that have asked for a prefix of its first frame. It may listen at
// several endpoints and dial others. All methods may be called by any goroutine.
type Publisher struct {
	opt    PublisherOptions
	ctx    context.Context // until Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu struct {
		sync.RWMutex // order: before subscriber.mu
		subscribers  map[*subscriber]struct{}
		changed      chan struct{} // closed and made anew when subscribers or their topics change
	}
	published, queued, dropped atomic.Uint64
}

// PublisherStats are what a publisher has done so far. A message counts once for each subscriber that it was for.
type PublisherStats struct {
	Subscribers int    // connected now
	Published   uint64 // calls of Publish
	Queued      uint64 // messages put in a queue
	Dropped     uint64 // messages not put in a queue, because it was full
}

// NewPublisher returns a publisher without endpoints. Its owner closes it.
func NewPublisher(o PublisherOptions) (*Publisher, error) {
	var err error
	if o.Options, err = o.Options.withDefaults(); err != nil {
		return nil, err
	}
	if o.HighWater < 0 || o.HighWaterBytes < 0 {
		return nil, fmt.Errorf("zmtp: HighWater and HighWaterBytes are not negative: %d, %d", o.HighWater, o.HighWaterBytes)
	}
	o.HighWater = cmp.Or(o.HighWater, 1000)
	o.HighWaterBytes = cmp.Or(o.HighWaterBytes, 64<<20)
	// What a subscriber sends is subscriptions.
	o.MaxMessage, o.MaxFrame, o.MaxFrames = maxCommand, maxCommand, 1
	p := &Publisher{opt: o}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.mu.subscribers, p.mu.changed = map[*subscriber]struct{}{}, make(chan struct{})
	return p, nil
}

// Listen binds an endpoint, and returns the one that a subscriber on the same machine dials. Errors: see Listen of this package.
func (p *Publisher) Listen(endpoint string) (string, error) {
	l, err := Listen(Pub, endpoint, p.opt.Options)
	if err != nil {
		return "", err
	}
	return l.Endpoint(), p.serve(l)
}

// ListenOn has subscribers connect to a listener that is there already, which the publisher owns from then on.
func (p *Publisher) ListenOn(ln net.Listener) error {
	return p.serve(newListener(ln, Pub, p.opt.Options))
}

func (p *Publisher) serve(l *Listener) error {
	return p.start(func() { _ = l.Serve(p.ctx, p.attend) }, func() { _ = l.Close() })
}

// Connect dials a subscriber that listens, and keeps dialling it until Close, as Maintain does.
func (p *Publisher) Connect(endpoint string) error {
	network, address, err := split(endpoint, false)
	if err != nil {
		return err
	}
	connect := func(ctx context.Context) (*Conn, error) {
		return dial(ctx, Pub, endpoint, network, address, p.opt.Options)
	}
	attend := func(c *Conn) error {
		p.attend(c)
		return nil
	}
	return p.start(func() { _ = Maintain(p.ctx, Backoff{}, connect, attend, func(error) {}) }, func() {})
}

// start runs f in a goroutine that Close waits for, or undo if the publisher is closed.
func (p *Publisher) start(f, undo func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		undo()
		return ErrClosed
	}
	p.wg.Go(f)
	return nil
}

// Publish queues a message of the frames, at least one, for all that asked for it, without waiting; the frames are the caller's again
// when it returns. dropped is the number of subscribers that had asked for it and whose queue was full. Messages of one caller arrive in
// order; of several callers, in the same order at no two subscribers necessarily.
func (p *Publisher) Publish(frames ...[]byte) (queued, dropped int) {
	p.published.Add(1)
	var b []byte // encoded once, and shared by the queues, when the first wants it
	p.mu.RLock()
	defer p.mu.RUnlock()
	for s := range p.mu.subscribers {
		if !s.wants(frames[0]) {
			continue
		}
		if b == nil {
			b = wire.AppendMessage(make([]byte, 0, wire.MessageSize(frames...)), frames...)
		}
		if s.out.put(b) {
			queued++
		} else {
			dropped++
		}
	}
	p.queued.Add(uint64(queued))
	p.dropped.Add(uint64(dropped))
	return queued, dropped
}

// Stats returns the counters.
func (p *Publisher) Stats() PublisherStats {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return PublisherStats{
		Subscribers: len(p.mu.subscribers), Published: p.published.Load(), Queued: p.queued.Load(), Dropped: p.dropped.Load(),
	}
}

// WaitSubscribed waits until n connected subscribers have asked for something, since what is published before is not for them. It
// returns the context's cause if that ends first, and ErrClosed.
func (p *Publisher) WaitSubscribed(ctx context.Context, n int) error {
	for {
		p.mu.RLock()
		changed, have := p.mu.changed, 0
		for s := range p.mu.subscribers {
			if s.subscribed() {
				have++
			}
		}
		p.mu.RUnlock()
		if have >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-p.ctx.Done():
			return ErrClosed
		}
	}
}

// Close ends all connections at once, drops what is queued and waits for the goroutines. It may be called twice.
func (p *Publisher) Close() error {
	p.mu.Lock()
	p.cancel() // with the lock, so that start does not add to what is waited for
	p.mu.Unlock()
	p.wg.Wait()
	return nil
}

// change lets f change the set of subscribers, or what they want, and wakes those that wait for it.
func (p *Publisher) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.mu.changed)
	p.mu.changed = make(chan struct{})
}
