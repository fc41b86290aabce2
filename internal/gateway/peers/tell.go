package peers

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/peers/wire"
	"github.com/perigee-llm/perigee/internal/zmtp"
)

const (
	// gather is how long news wait for more, so that a message has several. In replay 20 ms more or less are worth 2 % of the time to the first token
	// with eight gateways, and a hundred small messages a second cost next to nothing.
	gather = 10 * time.Millisecond
	// restate is how often everything is told: what was missed is wrong for so long at most.
	restate = time.Second
)

// teller publishes what happens. Its goroutine owns all but the counters and the queue.
type teller struct {
	queue
	engines     *engines
	publisher   *zmtp.Publisher
	incarnation uint64

	message wire.Message
	bytes   []byte
	spare   []happening
	places  map[*load.Engine]int // in message.Engines
	prompts []load.Prompt

	news, everything, records, dropped, unnamed atomic.Uint64
}

// run tells until the context ends.
func (t *teller) run(ctx context.Context) {
	all := time.NewTicker(restate)
	defer all.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-all.C:
			t.tellNews()
			t.tellEverything()
		case <-t.wake:
			select {
			case <-time.After(gather):
				t.tellNews()
			case <-ctx.Done():
				return
			}
		}
	}
}

// tellNews tells what has happened since it was called last; everything, if that is not known.
func (t *teller) tellNews() {
	list, full := t.take(t.spare)
	if full {
		t.dropped.Add(1)
		t.tellEverything()
	} else if len(list) > 0 {
		t.begin(wire.News)
		now := time.Now()
		for i := range list {
			h := &list[i]
			r := wire.Record{What: h.what, ID: h.id, Tokens: h.tokens}
			if !h.at.IsZero() {
				r.Age = max(now.Sub(h.at), 0)
			}
			t.add(h.engine, r)
		}
		t.publish()
		t.news.Add(1)
	}
	clear(list)
	t.spare = list
}

// tellEverything tells all that is in prefill. What has happened meanwhile is told again later, which changes nothing.
func (t *teller) tellEverything() {
	t.begin(wire.Everything)
	now := time.Now()
	for _, e := range t.engines.now().all {
		t.prompts = e.Prompts(t.prompts[:0])
		for _, p := range t.prompts {
			t.add(e, wire.Record{What: sent(p), ID: p.ID, Age: max(now.Sub(p.At), 0), Tokens: p.Uncached})
		}
	}
	t.publish()
	t.everything.Add(1)
}

func (t *teller) begin(k wire.Kind) {
	m := &t.message
	m.Kind, m.Incarnation, m.Engines, m.Records = k, t.incarnation, m.Engines[:0], m.Records[:0]
	clear(t.places)
}

// add puts a record into the message, if it has room and the engine a name.
func (t *teller) add(e *load.Engine, r wire.Record) {
	m := &t.message
	place, there := t.places[e]
	if !there {
		url := t.engines.now().urls[e]
		if url == "" || len(url) > wire.MaxURL || len(m.Engines) >= wire.MaxEngines {
			t.unnamed.Add(1)
			return
		}
		place = len(m.Engines)
		t.places[e] = place
		m.Engines = append(m.Engines, []byte(url))
	}
	if len(m.Records) >= wire.MaxRecords {
		t.unnamed.Add(1)
		return
	}
	r.Engine = place
	m.Records = append(m.Records, r)
}

func (t *teller) publish() {
	t.message.Number++
	t.bytes = wire.Append(t.bytes[:0], &t.message)
	t.publisher.Publish(t.bytes)
	t.records.Add(uint64(len(t.message.Records)))
}
