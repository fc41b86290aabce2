package events

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perigee-llm/perigee/internal/cache/events/book"
	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/managerwire"
	"github.com/perigee-llm/perigee/internal/zmtp"
)

// Options are a publisher's.
type Options struct {
	// Listen, Replay and Snapshot are endpoints as tcp://127.0.0.1:5567; required. Port 0 is the system's choice.
	Listen, Replay, Snapshot string
	// Epoch is the Manager's incarnation, not 0.
	Epoch uint64
	// Manager is its id, for people. What is beyond 128 bytes is cut off.
	Manager string
	// ReplayBatches and ReplayBytes bound what can be replayed: 10,000, as engines keep, and 64 MiB.
	ReplayBatches, ReplayBytes int
}

const (
	// gather is how long changes are collected before they are said, so that the blocks of a prompt, which are sealed one after
	// another, become one event. It is small beside what a gateway needs to route the next request of a conversation.
	gather = 10 * time.Millisecond
	// holdMost and heldMost bound Hold: for how long, since what gateways believe of blocks that have gone costs a prefill each; and how many blocks have notes, which take some
	// 200 bytes each.
	holdMost = 5 * time.Second
	heldMost = 1 << 16
	// costBeat is how often prices are said; a gateway believes one for 10 s.
	costBeat = time.Second
	// maxPeers bounds the connections of each socket: gateways, of which a fleet has a few.
	maxPeers = 64
	// writeTime is how long a peer of the replay or snapshot socket may take nothing.
	writeTime = 5 * time.Second
)

// Publisher is one. Start makes it; its owner closes it. All methods may be called by any goroutine.
type Publisher struct {
	opt       Options
	pub       *zmtp.Publisher
	replay    *zmtp.Listener
	snapshot  *zmtp.Listener
	at        Endpoints
	wake      chan struct{}
	quit      chan struct{}
	once      sync.Once
	wg        sync.WaitGroup
	snapshots chan struct{} // a place for each
	holds     atomic.Int32
	heldMost  int

	note struct { // a leaf: nothing is locked under it, and it is held for a moment
		sync.Mutex
		*book.Pending
	}
	restored struct { // a leaf too
		sync.Mutex
		all []measured
	}
	said  said
	count counts
}

// said is what was said.
type said struct {
	sync.Mutex // before note
	book       book.Book
	prices     book.Prices
	spare      *book.Pending
	next       uint64
	ring       ring
}

type counts struct {
	events                      [managerwire.Kinds]atomic.Uint64
	unnamed, unaddressed        atomic.Uint64
	replays, snapshots, refused atomic.Uint64
}

// Endpoints are where the sockets are, as a gateway on the same machine dials them.
type Endpoints struct{ Events, Replay, Snapshot string }

// Start opens the sockets. Errors: zmtp.Listen's.
func Start(o Options) (*Publisher, error) {
	if o.Epoch == 0 {
		return nil, errors.New("events: an epoch of 0 is no Manager's")
	}
	o.Manager = o.Manager[:min(len(o.Manager), managerwire.MaxManager)]
	if o.ReplayBatches == 0 {
		o.ReplayBatches = 10_000
	}
	if o.ReplayBytes == 0 {
		o.ReplayBytes = 64 << 20
	}
	p := &Publisher{opt: o, wake: make(chan struct{}, 1), quit: make(chan struct{}), snapshots: make(chan struct{}, 4), heldMost: heldMost}
	p.note.Pending, p.said.spare = &book.Pending{}, &book.Pending{}
	p.said.ring = ring{batches: o.ReplayBatches, bytes: o.ReplayBytes}
	if err := p.listen(); err != nil {
		p.closeSockets()
		return nil, err
	}
	p.wg.Go(p.run)
	return p, nil
}

func (p *Publisher) listen() (err error) {
	opt := zmtp.Options{MaxPeers: maxPeers, WriteTime: writeTime, MaxMessage: 1 << 10}
	if p.pub, err = zmtp.NewPublisher(zmtp.PublisherOptions{Options: zmtp.Options{MaxPeers: maxPeers}}); err != nil {
		return err
	}
	if p.at.Events, err = p.pub.Listen(p.opt.Listen); err != nil {
		return err
	}
	if p.replay, err = zmtp.Listen(zmtp.Router, p.opt.Replay, opt); err != nil {
		return err
	}
	if p.snapshot, err = zmtp.Listen(zmtp.Router, p.opt.Snapshot, opt); err != nil {
		return err
	}
	p.at.Replay, p.at.Snapshot = p.replay.Endpoint(), p.snapshot.Endpoint()
	// Both end by Close of their listeners.
	p.wg.Go(func() { _ = p.replay.Serve(context.Background(), p.answerReplay) })
	p.wg.Go(func() { _ = p.snapshot.Serve(context.Background(), p.answerSnapshot) })
	return nil
}

func (p *Publisher) closeSockets() {
	if p.pub != nil {
		_ = p.pub.Close()
	}
	if p.replay != nil {
		_ = p.replay.Close()
	}
	if p.snapshot != nil {
		_ = p.snapshot.Close()
	}
	p.wg.Wait()
}

// WaitSubscribed waits until n subscribers listen: see zmtp.Publisher.
func (p *Publisher) WaitSubscribed(ctx context.Context, n int) error {
	return p.pub.WaitSubscribed(ctx, n)
}

// Endpoints returns where the sockets are.
func (p *Publisher) Endpoints() Endpoints { return p.at }

// Close closes the sockets at once and waits: what was told is taken back by the silence. It may be called twice.
func (p *Publisher) Close() {
	p.once.Do(func() { close(p.quit) })
	p.closeSockets()
}

// Visible tells that a group of a block can be restored: see book.Pending.
func (p *Publisher) Visible(s *book.Space, group uint32, parent, name chain.Key) {
	p.noted(func(n *book.Pending) {
		if !n.Visible(s, group, parent, name) {
			p.count.unnamed.Add(1)
		}
	})
}

// Removed tells that it cannot be any more.
func (p *Publisher) Removed(n managerwire.Namespace, group uint32, name chain.Key) {
	p.noted(func(all *book.Pending) { all.Removed(n, group, name) })
}

// Attach tells of an engine that has registered.
func (p *Publisher) Attach(instance uint64, e book.Engine) {
	p.noted(func(n *book.Pending) {
		if !n.Attach(instance, e) {
			p.count.unaddressed.Add(1)
		}
	})
}

// Detach tells that it has left, or was lost.
func (p *Publisher) Detach(instance uint64) {
	p.noted(func(n *book.Pending) { n.Detach(instance) })
}

// notes is how many blocks have some.
func (p *Publisher) notes() int {
	p.note.Lock()
	defer p.note.Unlock()
	return p.note.Len()
}

// Hold has changes gathered until release is called, but for holdMost, and of heldMost blocks: what drops many blocks in parts is then told as one, and where nothing is left of a namespace in one
// word. Release is called once.
func (p *Publisher) Hold() (release func()) {
	p.holds.Add(1)
	return func() { p.holds.Add(-1) }
}

func (p *Publisher) noted(f func(*book.Pending)) {
	p.note.Lock()
	first := p.note.Empty()
	f(p.note.Pending)
	first = first && !p.note.Empty()
	p.note.Unlock()
	if first {
		select {
		case p.wake <- struct{}{}:
		default: // it is about to look
		}
	}
}

// run says what was noted, and the prices, until Close.
func (p *Publisher) run() {
	beat := time.NewTicker(costBeat)
	defer beat.Stop()
	wait := time.NewTimer(time.Hour)
	defer wait.Stop()
	held := time.Duration(0)
	for {
		select {
		case <-p.wake:
			wait.Reset(gather)
		case <-wait.C:
			if p.holds.Load() > 0 && held < holdMost && p.notes() <= p.heldMost {
				held += gather
				wait.Reset(gather)
				continue
			}
			held = 0
			p.flush()
		case <-beat.C:
			p.price()
		case <-p.quit:
			return // what is said now would be dropped with its sockets
		}
	}
}

func (p *Publisher) flush() {
	s := &p.said
	s.Lock()
	defer s.Unlock()
	p.note.Lock()
	notes := p.note.Pending
	p.note.Pending = s.spare
	p.note.Unlock()
	events := s.book.Apply(notes)
	s.spare = notes
	for i := range events {
		if events[i].Kind == managerwire.Detached {
			s.prices.Forget(events[i].Instance)
		}
	}
	p.sayLocked(events)
}

func (p *Publisher) price() {
	s := &p.said
	s.Lock()
	defer s.Unlock()
	p.takeMeasured(&s.prices)
	p.sayLocked(s.prices.Events(now(), &s.book))
}

// sayLocked publishes events and remembers them for replay. It counts them first: who has heard of one finds it in the counts.
func (p *Publisher) sayLocked(events []managerwire.Event) {
	s := &p.said
	for part := range book.Batches(events) {
		b := managerwire.AppendBatch(nil, p.head(), part)
		for i := range part {
			p.count.events[part[i].Kind].Add(1)
		}
		s.ring.add(b)
		p.pub.Publish(managerwire.Message(s.next, b)...)
		s.next++
	}
}

func (p *Publisher) head() managerwire.Head {
	return managerwire.Head{Time: float64(time.Now().UnixMicro()) / 1e6, Epoch: p.opt.Epoch, Manager: p.opt.Manager}
}

// began is where the clock of prices begins.
var began = time.Now()

func now() time.Duration { return time.Since(began) }
