package managers

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/managers/ledger"
	"github.com/perigee-llm/perigee/internal/managerwire"
	"github.com/perigee-llm/perigee/internal/zmtp"
)

// readLive keeps a subscription at the Manager's publisher.
func (m *manager) readLive() {
	dial := func(ctx context.Context) (*zmtp.Conn, error) {
		return m.o.dial(ctx, zmtp.Sub, m.target.Events, managerwire.Topic)
	}
	connected := false
	serve := func(c *zmtp.Conn) error {
		connected = true
		m.tell(ledger.Input{Kind: ledger.Connected})
		return m.receive(c)
	}
	down := func(err error) {
		if !connected {
			m.call(func() { m.fault = err })
			return
		}
		connected = false
		heard := time.Now()
		if errors.Is(err, zmtp.ErrSilent) {
			heard = heard.Add(-heartbeat - silence) // it was good before it was asked
		}
		m.tellFault(ledger.Input{Kind: ledger.Broken, Heard: heard}, err)
	}
	_ = zmtp.Maintain(m.ctx, zmtp.Backoff{}, dial, serve, down) // its error is the context's
}

// receive hands batches over until the connection breaks. A message that is no numbered batch, or too long, is passed over: if it had a
// number, that shows as a gap.
func (m *manager) receive(c *zmtp.Conn) error {
	for {
		var msg zmtp.Message // its memory is the ledger's from then on
		err := c.Receive(&msg)
		if _, over := errors.AsType[*zmtp.OversizeError](err); over {
			m.oversize.Add(1)
			continue
		}
		if err != nil {
			return err
		}
		seq, payload, ok := numbered(msg.Frames)
		if !ok {
			m.badMessages.Add(1)
			continue
		}
		m.offer(ledger.Input{Kind: ledger.Live, Seq: seq, Payload: payload})
	}
}

// numbered takes [topic, number, batch] apart.
func numbered(frames [][]byte) (seq int64, payload []byte, ok bool) {
	if len(frames) != 3 || !bytes.Equal(frames[0], []byte(managerwire.Topic)) || len(frames[1]) != 8 {
		return 0, nil, false
	}
	return int64(binary.BigEndian.Uint64(frames[1])), frames[2], true
}
