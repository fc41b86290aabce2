package enginehttp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/zmtp"
)

// KVEvents says how an engine publishes the changes of its prefix cache, and, as SGLang, its load. The zero value of a pointer to it
// publishes nothing; the zero value of the struct publishes at free ports of the loopback interface, with a replay of 10,000 batches.
type KVEvents struct {
	// Endpoint is where subscribers dial, as tcp://127.0.0.1:* (the default) or tcp://127.0.0.1:5557.
	Endpoint string
	// Connect is dialled in place of listening, as the engines do for an endpoint without a wildcard: the subscriber listens.
	Connect string
	// ReplayEndpoint is where missed batches are asked for; empty: as Endpoint by default. NoReplay: nowhere.
	ReplayEndpoint string
	NoReplay       bool
	// LoadEndpoint is where SGLang's load stream is; empty: as Endpoint by default.
	LoadEndpoint string
	// Topic is the first frame of each message.
	Topic string
	// BufferSteps is how many batches replay remembers; 0: 10,000, as in both engines.
	BufferSteps int
	// NoLoad leaves out SGLang's load stream.
	NoLoad bool
}

const (
	anyPort       = "tcp://127.0.0.1:*"
	defaultSteps  = 10_000
	highWater     = 100_000 // messages for one subscriber, as in both engines
	loadTopic     = "load"
	loadBeat      = time.Second           // SGLang repeats a load that did not change at most so often
	loadInterval  = 20 * time.Millisecond // and we tell one that did no more often than a policy could notice
	replayEndMark = ^uint64(0)            // -1
)

func (k *KVEvents) withDefaults() *KVEvents {
	if k == nil {
		return nil
	}
	d := *k
	if d.Endpoint == "" {
		d.Endpoint = anyPort
	}
	if d.ReplayEndpoint == "" {
		d.ReplayEndpoint = anyPort
	}
	if d.LoadEndpoint == "" {
		d.LoadEndpoint = anyPort
	}
	if d.BufferSteps == 0 {
		d.BufferSteps = defaultSteps
	}
	return &d
}

// publisher is the sockets of an engine's events. A restart of the engine closes them and opens them at the same places. Batches come
// from the owner's goroutine, one after the other; the rest may be called at once.
type publisher struct {
	opt    *KVEvents
	flavor Flavor

	mu struct {
		sync.Mutex
		events, load *zmtp.Publisher // nil while it is down
		replay       *zmtp.Listener
		steps        [][]byte // the payloads of the latest batches, the last of them number next-1
		next         uint64
		loadNext     uint64
		lose         int  // batches that are not sent
		forget       bool // nor remembered
		at           kvEndpoints
	}
	wg sync.WaitGroup // of replay's Serve
}

// kvEndpoints are where the sockets are, fixed when they open for the first time.
type kvEndpoints struct{ events, replay, load string }

func newPublisher(opt *KVEvents, f Flavor) (*publisher, error) {
	p := &publisher{opt: opt, flavor: f}
	p.mu.at = kvEndpoints{events: opt.Endpoint, replay: opt.ReplayEndpoint, load: opt.LoadEndpoint}
	if err := p.up(); err != nil {
		return nil, err
	}
	return p, nil
}

// up opens the sockets. It does nothing if they are open.
func (p *publisher) up() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.events != nil {
		return nil
	}
	var err error
	if p.mu.events, err = zmtp.NewPublisher(zmtp.PublisherOptions{HighWater: highWater}); err != nil {
		return err
	}
	if p.opt.Connect != "" {
		err = p.mu.events.Connect(p.opt.Connect)
	} else {
		p.mu.at.events, err = listenAt(p.mu.events, p.mu.at.events)
	}
	if err == nil && !p.opt.NoReplay {
		err = p.openReplayLocked()
	}
	if err == nil && p.flavor == SGLang && !p.opt.NoLoad {
		if p.mu.load, err = zmtp.NewPublisher(zmtp.PublisherOptions{HighWater: 8}); err == nil { // as SGLang: only the latest counts
			p.mu.at.load, err = listenAt(p.mu.load, p.mu.at.load)
		}
	}
	if err != nil {
		p.closeLocked()
		return fmt.Errorf("engine: KV events: %w", err)
	}
	return nil
}

func (p *publisher) openReplayLocked() error {
	l, err := zmtp.Listen(zmtp.Router, p.mu.at.replay, zmtp.Options{})
	if err != nil {
		return err
	}
	p.mu.replay, p.mu.at.replay = l, l.Endpoint()
	p.wg.Go(func() { _ = l.Serve(context.Background(), p.answer) }) // ends by Close of the listener
	return nil
}

func listenAt(s *zmtp.Publisher, endpoint string) (string, error) {
	at, err := s.Listen(endpoint)
	if err != nil {
		return endpoint, err
	}
	return at, nil
}

// down closes the sockets; a restarted process has forgotten what it published.
func (p *publisher) down(forget bool) {
	p.mu.Lock()
	p.closeLocked()
	if forget {
		p.mu.steps, p.mu.next, p.mu.loadNext, p.mu.lose = nil, 0, 0, 0
	}
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *publisher) closeLocked() {
	if p.mu.events != nil {
		_ = p.mu.events.Close()
	}
	if p.mu.load != nil {
		_ = p.mu.load.Close()
	}
	if p.mu.replay != nil {
		_ = p.mu.replay.Close()
	}
	p.mu.events, p.mu.load, p.mu.replay = nil, nil, nil
}

// endpoints returns where the sockets are.
func (p *publisher) endpoints() kvEndpoints {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.at
}

// loseNext makes the next n batches get lost on their way. Forgotten ones cannot be replayed either.
func (p *publisher) loseNext(n int, forget bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.lose, p.mu.forget = n, forget
}

// publish sends a batch, and remembers it.
func (p *publisher) publish(events []*engine.KVEvent) {
	payload := appendBatch(nil, p.flavor, float64(time.Now().UnixNano())/1e9, events)
	p.mu.Lock()
	defer p.mu.Unlock()
	lost := p.mu.lose > 0
	if lost {
		p.mu.lose--
	}
	if lost && p.mu.forget {
		payload = nil
	}
	p.mu.steps = append(p.mu.steps, payload)
	if over := len(p.mu.steps) - p.opt.BufferSteps; over > 0 {
		clear(p.mu.steps[:over])
		p.mu.steps = p.mu.steps[over:]
	}
	if p.mu.events != nil && !lost {
		p.mu.events.Publish([]byte(p.opt.Topic), binary.BigEndian.AppendUint64(nil, p.mu.next), payload)
	}
	p.mu.next++
}

// publishLoad sends a load report, if the engine has a stream of them.
func (p *publisher) publishLoad(l engine.Load) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.load == nil {
		return
	}
	p.mu.load.Publish([]byte(loadTopic), binary.BigEndian.AppendUint64(nil, p.mu.loadNext), appendLoad(nil, l))
	p.mu.loadNext++
}

// answer replays to one peer what it asks for: all batches from a number on, then a marker. An engine says nothing of those that it
// has forgotten.
func (p *publisher) answer(c *zmtp.Conn) {
	var m zmtp.Message
	for c.Receive(&m) == nil {
		if len(m.Frames) != 2 || len(m.Frames[1]) != 8 {
			continue // as the engines: a question that is none gets no answer
		}
		if p.replayFrom(c, binary.BigEndian.Uint64(m.Frames[1])) != nil {
			return
		}
	}
}

func (p *publisher) replayFrom(c *zmtp.Conn, from uint64) error {
	p.mu.Lock()
	first := p.mu.next - uint64(len(p.mu.steps))
	steps := p.mu.steps
	p.mu.Unlock()
	for i, payload := range steps {
		seq := first + uint64(i)
		if seq < from || payload == nil {
			continue
		}
		if err := c.Send(nil, []byte(p.opt.Topic), binary.BigEndian.AppendUint64(nil, seq), payload); err != nil {
			return err
		}
	}
	return c.Send(nil, nil, binary.BigEndian.AppendUint64(nil, replayEndMark), nil)
}

// port returns the port of an endpoint, 0 if it has none.
func port(endpoint string) int {
	i := 0
	for j := range endpoint {
		if endpoint[j] == '/' {
			i = j + 1
		}
	}
	_, text, err := net.SplitHostPort(endpoint[i:])
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(text) // then 0
	return n
}

var errNoEvents = errors.New("the engine publishes no KV events")
