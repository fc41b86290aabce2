package events

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
	"github.com/perigee-llm/perigee/internal/zmtp"
)

// SGLang's newer publishers put the epoch of a snapshot behind the topic, and send a barrier for one as a numbered message of its own.
var (
	nul     = []byte{0}
	barrier = []byte("\x00sgl-kv-snapshot=")
	empty   = []byte{0x92, 0x00, 0x90} // a batch without events, in place of the barrier
)

// readLive keeps a subscription at an engine's publisher.
func (f *feed) readLive() {
	o := &f.e.f.o
	dial := func(ctx context.Context) (*zmtp.Conn, error) {
		return o.dial(ctx, zmtp.Sub, f.src.Events, f.src.Topic)
	}
	connected := false
	serve := func(c *zmtp.Conn) error {
		connected = true
		f.tell(message{input: stream.Input{Kind: stream.Connected}})
		return f.receive(c, func(topic []byte) *feed { return f })
	}
	down := func(err error) {
		if connected {
			connected = false
			f.broken(err)
			return
		}
		f.applier.call(func() { f.fault = err })
	}
	_ = zmtp.Maintain(f.ctx, zmtp.Backoff{}, dial, serve, down) // its error is the context's
}

// broken tells that the connection is gone, and since when.
func (f *feed) broken(err error) {
	heard := time.Now()
	if errors.Is(err, zmtp.ErrSilent) {
		heard = heard.Add(-heartbeat - silence) // it was good before it was asked
	}
	f.tell(message{input: stream.Input{Kind: stream.Broken, Heard: heard}, fault: err})
}

// receive hands the messages of a connection to their feeds until it breaks. A message that is no numbered batch, or too long, is passed
// over: if it had a number, that shows as a gap.
func (f *feed) receive(c *zmtp.Conn, to func(topic []byte) *feed) error {
	var m zmtp.Message
	for {
		err := c.Receive(&m)
		if _, over := errors.AsType[*zmtp.OversizeError](err); over {
			f.oversize.Add(1)
			continue
		}
		if err != nil {
			return err
		}
		if len(m.Frames) != 3 || len(m.Frames[1]) != 8 {
			f.badMessages.Add(1)
			continue
		}
		if target := to(m.Frames[0]); target != nil {
			target.offer(int64(binary.BigEndian.Uint64(m.Frames[1])), content(m.Frames[0], m.Frames[2]))
		}
		if m.Size() > keep {
			m = zmtp.Message{} // one long message shall not cost its memory for ever
		}
	}
}

// content is a message's batch.
func content(topic, payload []byte) []byte {
	if bytes.Contains(topic, barrier) {
		return empty
	}
	return payload
}

// isTopic tells whether a message's topic is the one that was asked for, with or without an epoch.
func isTopic(topic []byte, asked string) bool {
	name, _, _ := bytes.Cut(topic, nul)
	return string(name) == asked
}
