package peers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/zmtp"
)

// expireEvery is how often gateways are looked for that have fallen silent.
const expireEvery = 250 * time.Millisecond

// Options are what Peers are made from.
type Options struct {
	// Listen is the endpoint at which the others are told; empty: they are not.
	Listen string
	// Listener, if not nil, takes the place of Listen.
	Listener net.Listener
	// Gateways are the endpoints of the others. This gateway's own may be among them.
	Gateways []string
	// Registry has the engines; required, as is Log.
	Registry *fleet.Registry
	Log      *slog.Logger
	// DialContext makes connections, for tests; nil: a net.Dialer.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
}

// Peers is this gateway among others. Start starts it; its owner closes it. All methods may be called at once.
type Peers struct {
	o           Options
	incarnation uint64
	engines     *engines
	teller      *teller // nil: nothing is told
	hearers     []*hearer

	cancel  context.CancelFunc
	running sync.WaitGroup
	mu      struct {
		sync.Mutex                    // order: before no other
		owners     map[uint64]*hearer // who counts an incarnation
	}
}

// Status is what was heard of one other gateway. Counters are since the start.
type Status struct {
	Gateway   string // its endpoint
	Connected bool
	// Self: it is this gateway itself. Twice: it is one that is heard at another endpoint, and counts there.
	Self, Twice bool
	// Prompts are what it has in prefill, as far as is known.
	Prompts int
	// Heard is when it was heard last; zero: never.
	Heard time.Time
	// News and Everything are messages, Records what was in them, Unknown those of them of engines that are not this gateway's, Refused what had no room.
	News, Everything, Records, Unknown, Refused uint64
	// Gaps are places where messages are missing, Bad messages that could not be read, Restarts new incarnations, Silences how often its account was
	// dropped.
	Gaps, Bad, Restarts, Silences uint64
	// Fault is why there is no connection.
	Fault string
}

// Told is what was told to others. Counters are since the start.
type Told struct {
	Subscribers int
	// News and Everything are messages, Records what was in them; Unnamed had no place in one, Dropped news went lost for want of room in the queue, and
	// everything was told instead; Unsent are messages that a subscriber did not take in time.
	News, Everything, Records, Unnamed, Dropped, Unsent uint64
}

// Start begins to tell and to hear. The error is that of listening.
func Start(o Options) (*Peers, error) {
	p := &Peers{o: o, incarnation: rand.Uint64(), engines: &engines{registry: o.Registry}}
	p.mu.owners = map[uint64]*hearer{}
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(context.Background())
	if o.Listen != "" || o.Listener != nil {
		if err := p.listen(); err != nil {
			p.cancel()
			return nil, fmt.Errorf("peers: %w", err)
		}
		p.running.Go(func() { p.teller.run(ctx) })
	}
	for _, endpoint := range o.Gateways {
		h := &hearer{endpoint: endpoint, p: p, account: load.NewAccount(0)}
		p.hearers = append(p.hearers, h)
	}
	for _, h := range p.hearers {
		p.running.Go(func() { h.run(ctx) })
	}
	p.running.Go(func() { p.expire(ctx) })
	return p, nil
}

func (p *Peers) listen() error {
	pub, err := zmtp.NewPublisher(zmtp.PublisherOptions{})
	if err != nil {
		return err
	}
	if p.o.Listener != nil {
		err = pub.ListenOn(p.o.Listener)
	} else {
		_, err = pub.Listen(p.o.Listen)
	}
	if err != nil {
		return errors.Join(err, pub.Close())
	}
	p.teller = &teller{queue: queue{wake: make(chan struct{}, 1)}, engines: p.engines, publisher: pub, incarnation: p.incarnation, places: map[*load.Engine]int{}}
	return nil
}

// Observer is to be told of this gateway's prompts; nil if nobody is to be told.
func (p *Peers) Observer() load.Observer {
	if p.teller == nil {
		return nil
	}
	return &p.teller.queue
}

// Close ends telling and hearing, and drops what was heard.
func (p *Peers) Close() {
	p.cancel()
	p.running.Wait()
	if p.teller != nil {
		_ = p.teller.publisher.Close() // always nil
	}
	for _, h := range p.hearers {
		h.account.Clear()
	}
}

// expire drops the accounts of gateways that have fallen silent.
func (p *Peers) expire(ctx context.Context) {
	t := time.NewTicker(expireEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			for _, h := range p.hearers {
				if h.account.Expire(now, load.DefaultSilence) {
					p.o.Log.Warn("a gateway has fallen silent: what it has sent is not known any more", "gateway", h.endpoint)
					h.mu.Lock()
					h.mu.Silences++
					h.mu.Unlock()
				}
			}
		}
	}
}

// own makes h the one that counts an incarnation, if nobody is.
func (p *Peers) own(h *hearer, incarnation uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o := p.mu.owners[incarnation]; o != nil {
		return o == h
	}
	for i, o := range p.mu.owners {
		if o == h {
			delete(p.mu.owners, i)
		}
	}
	p.mu.owners[incarnation] = h
	return true
}

// disown lets another take what h counted, as when its connection broke. What was heard counts until it is silent for too long, or heard again.
func (p *Peers) disown(h *hearer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, o := range p.mu.owners {
		if o == h {
			delete(p.mu.owners, i)
		}
	}
}

// Status returns what was heard, in the order of Options.Gateways.
func (p *Peers) Status() []Status {
	out := make([]Status, len(p.hearers))
	for i, h := range p.hearers {
		h.mu.Lock()
		out[i] = h.mu.Status
		h.mu.Unlock()
		out[i].Gateway, out[i].Prompts = h.endpoint, h.account.Len()
	}
	return out
}

// Told returns what was told.
func (p *Peers) Told() Told {
	t := p.teller
	if t == nil {
		return Told{}
	}
	s := t.publisher.Stats()
	return Told{
		Subscribers: s.Subscribers, News: t.news.Load(), Everything: t.everything.Load(), Records: t.records.Load(), Unnamed: t.unnamed.Load(), Dropped: t.dropped.Load(), Unsent: s.Dropped,
	}
}
