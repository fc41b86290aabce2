package events

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/wire"
	"github.com/perigee-llm/perigee/internal/zmtp"
)

// replayer asks an engine's replay socket. One question is under way at a time; its connection is kept for the next one, unless the
// question was given up: what is still on its way then goes with it.
//
// A question is ["", number]; an answer is, for each batch, ["", topic, number, payload], of older engines ["", number, payload], and
// then the same with the number -1.
type replayer struct {
	f    *feed
	more chan struct{} // there is a question

	mu struct {
		sync.Mutex
		no   uint64 // the question that is to be asked or under way; 0: none
		from int64
		conn *zmtp.Conn // of the question under way
	}
	conn *zmtp.Conn // kept; run's
}

func newReplayer(f *feed) *replayer { return &replayer{f: f, more: make(chan struct{}, 1)} }

// ask puts a question. The one before has ended or was given up.
func (r *replayer) ask(no uint64, from int64) {
	r.mu.Lock()
	r.mu.no, r.mu.from = no, from
	r.mu.Unlock()
	select {
	case r.more <- struct{}{}:
	default: // it is about to look
	}
}

// hangup gives up the question, at once.
func (r *replayer) hangup() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.no = 0
	if r.mu.conn != nil {
		_ = r.mu.conn.Close() // always nil
	}
}

// run answers questions until the feed's context ends.
func (r *replayer) run() {
	defer func() {
		if r.conn != nil {
			_ = r.conn.Close() // always nil
		}
	}()
	for {
		select {
		case <-r.f.ctx.Done():
			return
		case <-r.more:
		}
		r.mu.Lock()
		no, from := r.mu.no, r.mu.from
		r.mu.Unlock()
		if no == 0 {
			continue
		}
		kind := stream.ReplayEnd
		if err := r.one(no, from); err != nil {
			kind = stream.ReplayBroken
			if r.conn != nil {
				_ = r.conn.Close() // always nil
				r.conn = nil
			}
		}
		r.mu.Lock()
		r.mu.conn = nil
		r.mu.Unlock()
		r.f.tell(message{input: stream.Input{Kind: kind, Ask: no}})
	}
}

var errGivenUp = errors.New("given up")

// one asks one question. A connection that was kept may have ended meanwhile, so that a second is tried.
func (r *replayer) one(no uint64, from int64) error {
	kept := r.conn != nil
	got, err := r.try(no, from)
	if err != nil && kept && !got && r.f.ctx.Err() == nil {
		_ = r.conn.Close() // always nil
		r.conn = nil
		_, err = r.try(no, from)
	}
	return err
}

func (r *replayer) try(no uint64, from int64) (got bool, err error) {
	if r.conn == nil {
		if r.conn, err = r.f.e.f.o.dial(r.f.ctx, zmtp.Dealer, r.f.src.Replay); err != nil {
			r.conn = nil
			return false, err
		}
	}
	c := r.conn
	stop := context.AfterFunc(r.f.ctx, func() { _ = c.Close() })
	defer stop()
	r.mu.Lock()
	if r.mu.no != no {
		r.mu.Unlock()
		return true, errGivenUp
	}
	r.mu.conn = c
	r.mu.Unlock()
	if err := c.Send(nil, binary.BigEndian.AppendUint64(nil, uint64(from))); err != nil {
		return false, err
	}
	var m zmtp.Message
	for {
		err := c.Receive(&m)
		if _, over := errors.AsType[*zmtp.OversizeError](err); over {
			r.f.oversize.Add(1)
			got = true
			continue
		}
		if err != nil {
			return got, err
		}
		got = true
		seq, topic, payload, ok := wire.Answer(m.Frames)
		switch {
		case !ok:
			r.f.badMessages.Add(1)
		case seq == -1:
			return true, nil
		default:
			b := r.f.batch(seq, content(topic, payload))
			r.f.tell(message{input: stream.Input{Kind: stream.Replayed, Ask: no, Batch: b}})
		}
		if r.f.ctx.Err() != nil {
			return true, r.f.ctx.Err()
		}
	}
}
