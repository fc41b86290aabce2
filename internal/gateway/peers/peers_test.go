package peers

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/peers/wire"
	"github.com/perigee-llm/perigee/internal/script"
	"github.com/perigee-llm/perigee/internal/zmtp/zmtptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site is one gateway: its fleet, its guards, its peers.
type site struct {
	registry *fleet.Registry
	tracker  load.Tracker
	peers    *Peers
}

const fleetSize = 3

// open starts the i-th of n gateways, which all have the same list.
func open(t *testing.T, network *zmtptest.Network, i, n int, more ...string) *site {
	t.Helper()
	s := &site{registry: fleet.NewRegistry(fleet.BreakerConfig{}, 0)}
	for e := range fleetSize {
		s.registry.Put(fleet.Spec{ID: fmt.Sprint("engine-", e, "-at-", i), URL: fmt.Sprint("http://engine:", e), Models: []string{"m"}})
	}
	var all []string
	for k := range n {
		all = append(all, fmt.Sprintf("tcp://gateway:%d", k+1))
	}
	var err error
	s.peers, err = Start(Options{
		Listener: network.Listen(fmt.Sprintf("gateway:%d", i+1)), Gateways: append(all, more...), Registry: s.registry, Log: slog.New(slog.DiscardHandler),
		DialContext: network.DialContext,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.tracker.Observer = s.peers.Observer()
	return s
}

func (s *site) engine(i int) *load.Engine {
	return s.peers.engines.now().loads[fmt.Sprint("http://engine:", i)]
}

// prefill is what the gateway knows of an engine, less when and by whom, which differs by what the news were under way.
func (s *site) prefill(i int) [2]int64 {
	p := s.engine(i).Prefill(time.Time{})
	return [2]int64{p.Tokens, p.Head}
}

func equal(t *testing.T, when string, sites ...*site) {
	t.Helper()
	for e := range fleetSize {
		for i, s := range sites[1:] {
			if a, b := sites[0].prefill(e), s.prefill(e); a != b {
				t.Errorf("%s: engine %d: %v at one, %v at %d", when, e, a, b, i+1)
			}
		}
	}
}

// burst has each gateway send and see first tokens at random.
func burst(rng *rand.Rand, sites []*site) (guards []*load.Guard) {
	for range 400 {
		time.Sleep(time.Millisecond) // on the fake clock
		s := sites[rng.IntN(len(sites))]
		if rng.IntN(3) < 2 || len(guards) == 0 {
			g := s.tracker.Acquire(s.engine(rng.IntN(fleetSize)), time.Now(), load.StagePrefill, 1000, nil)
			g.Computes(rng.Int64N(1000), false)
			guards = append(guards, g)
			continue
		}
		i := rng.IntN(len(guards))
		if rng.IntN(2) == 0 {
			guards[i].Prefilled(time.Now())
		} else {
			guards[i].Release()
		}
	}
	return guards
}

// TestAccountsBecomeEqual: after a burst all gateways know the same of every engine, soon; one that is gone is forgotten after 2 s; one that
// comes back is heard again.
func TestAccountsBecomeEqual(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng, network := script.Rand(t), new(zmtptest.Network)
		var sites []*site
		for i := range 3 {
			sites = append(sites, open(t, network, i, 3))
		}
		time.Sleep(2 * time.Second) // until all are connected
		guards := burst(rng, sites)
		time.Sleep(2 * gather)
		equal(t, "after the burst", sites...)
		if sites[0].prefill(0)[0] == 0 {
			t.Error("nothing is in prefill: this tests nothing")
		}
		for _, s := range sites {
			for i, x := range s.peers.Status() {
				self := sites[i] == s
				if x.Self != self || !x.Connected || x.Gaps+x.Bad+x.Unknown+x.Refused > 0 || (x.News > 0) == self || (x.Everything > 0) == self {
					t.Errorf("%+v", x)
				}
			}
		}

		// The third is killed. Within a moment it is known to be away; its prompts count for 2 s more.
		sites[2].peers.Close()
		killed := sites[2].engine(0).Prompts(nil)
		before := sites[0].prefill(0)[0]
		time.Sleep(500 * time.Millisecond)
		if x := sites[0].peers.Status()[2]; x.Connected || x.Prompts == 0 || sites[0].prefill(0)[0] != before {
			t.Errorf("half a second after its end: %+v", x)
		}
		time.Sleep(load.DefaultSilence + expireEvery)
		var its int64
		for _, p := range killed {
			its += p.Uncached
		}
		for _, s := range sites[:2] {
			if x := s.peers.Status()[2]; x.Prompts != 0 || x.Silences != 1 || s.prefill(0)[0] != before-its {
				t.Errorf("after 2 s: %+v, %v of %d less %d", x, s.prefill(0), before, its)
			}
		}

		// Another takes its place. What it sends is heard, and the old one's is not.
		sites[2] = open(t, network, 2, 3)
		time.Sleep(3 * time.Second)
		guards = append(guards, burst(rng, sites)...)
		time.Sleep(2 * gather)
		equal(t, "after its return", sites...)
		if x := sites[0].peers.Status()[2]; x.Restarts != 1 || x.Prompts == 0 {
			t.Errorf("%+v", x)
		}
		for _, g := range guards {
			g.Release()
		}
		time.Sleep(2 * gather)
		for _, s := range sites {
			for e := range fleetSize {
				if p := s.prefill(e); p != [2]int64{} {
					t.Errorf("left: %v", p)
				}
			}
			s.peers.Close()
		}
	})
}

// TestBrokenConnections: what is lost while connections break in the middle of what happens is put right by the next full list.
func TestBrokenConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng, network := script.Rand(t), new(zmtptest.Network)
		sites := []*site{open(t, network, 0, 2), open(t, network, 1, 2)}
		time.Sleep(2 * time.Second)
		for range 5 {
			for _, c := range network.Dialled() {
				_ = c.Close() // always nil
			}
			burst(rng, sites)
			time.Sleep(2*restate + 100*time.Millisecond) // dialled again, and heard everything
			equal(t, "after a cut", sites...)
		}
		gaps := uint64(0)
		for _, s := range sites {
			for _, x := range s.peers.Status() {
				gaps += x.Gaps
			}
			s.peers.Close()
		}
		if gaps == 0 {
			t.Error("nothing was lost: this tests nothing")
		}
	})
}

// TestOverflow: more happens at once than is kept for telling, and everything is told instead.
func TestOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := new(zmtptest.Network)
		a, b := open(t, network, 0, 2), open(t, network, 1, 2)
		time.Sleep(2*restate + restate/2) // between two full lists
		for range maxWaiting + 100 {
			a.tracker.Acquire(a.engine(1), time.Now(), load.StagePrefill, 7, nil)
		}
		time.Sleep(2 * gather)
		equal(t, "after the overflow", a, b)
		if x := a.peers.Told(); x.Dropped != 1 || b.prefill(1)[0] != 7*(maxWaiting+100) {
			t.Errorf("%+v, %v", x, b.prefill(1))
		}
		a.peers.Close()
		b.peers.Close()
	})
}

// TestTwice: a gateway that is listed under two names counts once.
func TestTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := new(zmtptest.Network)
		a := open(t, network, 0, 1)
		b := open(t, network, 1, 1, "tcp://gateway:1")
		time.Sleep(2 * time.Second)
		a.tracker.Acquire(a.engine(0), time.Now(), load.StagePrefill, 7, nil)
		time.Sleep(2 * time.Second)
		equal(t, "two names", a, b)
		if s := b.peers.Status(); s[0].Twice == s[1].Twice || s[0].Prompts+s[1].Prompts != 1 {
			t.Errorf("%+v", s)
		}
		a.peers.Close()
		b.peers.Close()
	})
}

// TestWhatCannotCount: engines that this gateway does not have are left out, messages of nonsense are counted, a gap is seen and the next full list mends it.
func TestWhatCannotCount(t *testing.T) {
	s := &site{registry: fleet.NewRegistry(fleet.BreakerConfig{}, 0)}
	s.registry.Put(fleet.Spec{ID: "a", URL: "http://a"})
	s.peers = &Peers{o: Options{Log: slog.New(slog.DiscardHandler)}, incarnation: 1, engines: &engines{registry: s.registry}}
	s.peers.mu.owners = map[uint64]*hearer{}
	h := &hearer{endpoint: "x", p: s.peers, account: load.NewAccount(2)}
	s.peers.hearers = []*hearer{h}
	hear := func(k wire.Kind, number uint64, r ...wire.Record) Status {
		h.message = wire.Message{Kind: k, Incarnation: 2, Number: number, Engines: [][]byte{[]byte("http://a"), []byte("http://b")}, Records: r}
		h.take(time.Now())
		return s.peers.Status()[0]
	}
	sent := func(engine int, id uint64) wire.Record {
		return wire.Record{What: wire.Sent, Engine: engine, ID: id, Tokens: 1}
	}
	if x := hear(wire.News, 5, sent(0, 1), sent(1, 2)); x.Prompts != 1 || x.Unknown != 1 || x.Gaps != 0 {
		t.Errorf("an engine that is not ours: %+v", x)
	}
	if x := hear(wire.News, 7, sent(0, 3), sent(0, 4)); x.Gaps != 1 || x.Prompts != 2 || x.Refused != 1 {
		t.Errorf("a gap, and too much: %+v", x)
	}
	if x := hear(wire.Everything, 8, sent(0, 3)); x.Gaps != 1 || x.Prompts != 1 {
		t.Errorf("everything: %+v", x)
	}
	if x := hear(wire.News, 9, wire.Record{What: wire.Prefilled, ID: 3}, wire.Record{What: wire.GivenUp, ID: 99}); x.Prompts != 0 {
		t.Errorf("its end: %+v", x)
	}
}

// TestObservingCostsNothing: what a request tells allocates nothing once the queue has its size.
func TestObservingCostsNothing(t *testing.T) {
	q := &queue{wake: make(chan struct{}, 1)}
	e, at := new(load.Engine), time.Now()
	q.mu.list = make([]happening, 0, maxWaiting)
	if n := testing.AllocsPerRun(100, func() {
		q.Sent(e, load.Prompt{ID: 1, At: at})
		q.Sent(e, load.Prompt{ID: 1, At: at, Uncached: 5})
		q.Gone(e, 1, at)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
