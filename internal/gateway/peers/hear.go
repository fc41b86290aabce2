package peers

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/peers/wire"
	"github.com/perigee-llm/perigee/internal/zmtp"
)

// hearer follows one other gateway.
type hearer struct {
	endpoint string
	p        *Peers
	account  *load.Account
	message  wire.Message // of the goroutine that receives
	told     []load.Told

	mu struct {
		sync.Mutex
		Status
		incarnation, next uint64 // 0: nothing was heard yet
		owner             bool   // what this incarnation tells is counted here
	}
}

// run follows the gateway until the context ends.
func (h *hearer) run(ctx context.Context) {
	dial := func(ctx context.Context) (*zmtp.Conn, error) {
		return zmtp.Dial(ctx, zmtp.Sub, h.endpoint, zmtp.Options{Topics: []string{wire.Topic}, MaxMessage: wire.MaxBytes, MaxFrames: 1, DialContext: h.p.o.DialContext})
	}
	down := func(err error) {
		h.connected(false, err)
		h.p.disown(h)
	}
	_ = zmtp.Maintain(ctx, zmtp.Backoff{}, dial, h.serve, down) // its error is the context's
}

func (h *hearer) connected(is bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.Connected, h.mu.Fault = is, ""
	if err != nil {
		h.mu.Fault = err.Error()
	}
}

// serve receives until the connection ends.
func (h *hearer) serve(c *zmtp.Conn) error {
	h.connected(true, nil)
	var m zmtp.Message
	for {
		err := c.Receive(&m)
		if _, over := errors.AsType[*zmtp.OversizeError](err); over {
			h.bad()
			continue
		}
		if err != nil {
			return err
		}
		if len(m.Frames) != 1 || wire.Read(m.Frames[0], &h.message) != nil {
			h.bad()
			continue
		}
		h.take(time.Now())
	}
}

func (h *hearer) bad() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.Bad++
}

// take takes a message in.
func (h *hearer) take(now time.Time) {
	if !h.counts(now) {
		return
	}
	m := &h.message
	names := h.p.engines.now()
	unknown, refused := uint64(0), uint64(0)
	h.told = h.told[:0]
	for i := range m.Records {
		r := &m.Records[i]
		at := now.Add(-r.Age)
		if r.What > wire.SentUnseen {
			if r.What == wire.GivenUp {
				at = time.Time{}
			}
			h.account.Gone(r.ID, at)
			continue
		}
		e := names.loads[string(m.Engines[r.Engine])]
		if e == nil {
			unknown++
			continue
		}
		t := load.Told{Engine: e, Prompt: load.Prompt{ID: r.ID, Uncached: r.Tokens, At: at, Unseen: r.What == wire.SentUnseen}}
		if m.Kind == wire.Everything {
			h.told = append(h.told, t)
		} else if !h.account.Sent(t) {
			refused++
		}
	}
	if m.Kind == wire.Everything && !h.account.All(h.told) {
		refused++
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.Unknown += unknown
	h.mu.Refused += refused
}

// counts notes that the message has come, and tells whether it counts: not if it is this gateway's own, or of one that is heard elsewhere.
func (h *hearer) counts(now time.Time) bool {
	m := &h.message
	if m.Incarnation == h.p.incarnation {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.mu.Self = true
		return false
	}
	owner := h.p.own(h, m.Incarnation)
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &h.mu
	s.Self = false
	if s.next == 0 || s.incarnation != m.Incarnation || s.owner && !owner {
		if s.next != 0 && s.incarnation != m.Incarnation {
			s.Restarts++
		}
		h.account.Clear()
	} else if m.Number != s.next {
		s.Gaps++
	}
	s.incarnation, s.next, s.owner, s.Twice = m.Incarnation, m.Number+1, owner, !owner
	s.Heard = now
	s.Records += uint64(len(m.Records))
	if m.Kind == wire.Everything {
		s.Everything++
	} else {
		s.News++
	}
	h.account.Heard(now)
	return owner
}
