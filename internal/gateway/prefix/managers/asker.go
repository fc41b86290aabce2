package managers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/wire"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/managers/ledger"
	"github.com/perigee-llm/perigee/internal/managerwire"
	"github.com/perigee-llm/perigee/internal/zmtp"
)

// asker puts the ledger's questions to a Manager's replay and snapshot sockets, one at a time. The replay's connection is kept, since a
// stream that has been quiet for half a second is asked about; a snapshot has one of its own.
type asker struct {
	m    *manager
	more chan struct{} // there is a question

	mu struct {
		sync.Mutex
		question ledger.Action // Ask is 0: none
		conn     *zmtp.Conn    // that it is put on
	}
	kept *zmtp.Conn // run's
}

// ask puts a question. The one before has ended or was given up.
func (k *asker) ask(a ledger.Action) {
	k.mu.Lock()
	k.mu.question = a
	k.mu.Unlock()
	select {
	case k.more <- struct{}{}:
	default: // it is about to look
	}
}

// hangup gives up the question, at once.
func (k *asker) hangup() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mu.question = ledger.Action{}
	if k.mu.conn != nil {
		_ = k.mu.conn.Close() // always nil
	}
}

// run answers questions until the Manager is followed no more.
func (k *asker) run() {
	defer k.letGo()
	for {
		select {
		case <-k.m.ctx.Done():
			return
		case <-k.more:
		}
		k.mu.Lock()
		q := k.mu.question
		k.mu.Unlock()
		if q.Ask == 0 {
			continue
		}
		kind := ledger.End
		if err := k.answer(q); err != nil {
			kind = ledger.Failed
			k.m.call(func() { k.m.failed(err) })
		}
		k.use(q, nil)
		k.m.tell(ledger.Input{Kind: kind, Ask: q.Ask})
	}
}

// failed keeps the error for the status where the live connection has none. It runs with the ledger.
func (m *manager) failed(err error) {
	if m.ctx.Err() == nil && !errors.Is(err, errGivenUp) && m.fault == nil {
		m.fault = err
	}
}

func (k *asker) letGo() {
	if k.kept != nil {
		_ = k.kept.Close() // always nil
		k.kept = nil
	}
}

var errGivenUp = errors.New("given up")

// use says on which connection the question is put, so that hangup finds it. It fails when the question was given up.
func (k *asker) use(q ledger.Action, c *zmtp.Conn) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mu.conn = nil; k.mu.question.Ask != q.Ask {
		return errGivenUp
	}
	k.mu.conn = c
	return nil
}

// answer answers by a replay, or by a snapshot where that cannot have what is missing. What a replay has brought stays: the ledger asks for
// the rest.
func (k *asker) answer(q ledger.Action) error {
	if q.Need == ledger.Everything {
		return k.snapshot(q)
	}
	r, err := k.replay(q)
	switch {
	case r == brought, errors.Is(err, errGivenUp), q.Need == ledger.Whether && r == nothing:
		return err
	}
	return k.snapshot(q)
}

// replayed is what a replay came to.
type replayed uint8

const (
	nothing replayed = iota // no batch
	tooLate                 // its first batch is not the one that was asked for
	brought                 // batches
)

// replay asks for a replay. A connection that was kept may have ended meanwhile, so that a second is tried.
func (k *asker) replay(q ledger.Action) (r replayed, err error) {
	kept := k.kept != nil
	r, err = k.tryReplay(q)
	if err != nil && r == nothing && kept && !errors.Is(err, errGivenUp) && k.m.ctx.Err() == nil {
		r, err = k.tryReplay(q)
	}
	return r, err
}

func (k *asker) tryReplay(q ledger.Action) (r replayed, err error) {
	if k.kept == nil {
		if k.kept, err = k.m.o.dial(k.m.ctx, zmtp.Dealer, k.m.target.Replay); err != nil {
			k.kept = nil
			return nothing, err
		}
	}
	c := k.kept
	stop := context.AfterFunc(k.m.ctx, func() { _ = c.Close() })
	defer stop()
	defer func() {
		if err != nil || r == tooLate { // what is still on its way goes with the connection
			k.letGo()
		}
	}()
	if err := k.use(q, c); err != nil {
		return nothing, err
	}
	if err := c.Send(nil, binary.BigEndian.AppendUint64(nil, uint64(q.From))); err != nil {
		return nothing, err
	}
	for {
		var msg zmtp.Message
		if err := k.receive(c, &msg); err != nil {
			return r, err
		}
		if len(msg.Frames) != 4 || len(msg.Frames[0]) != 0 || len(msg.Frames[2]) != 8 {
			k.m.badMessages.Add(1)
			continue
		}
		seq := int64(binary.BigEndian.Uint64(msg.Frames[2]))
		switch {
		case seq < 0:
			return r, nil
		case r == nothing && seq > q.From:
			return tooLate, nil
		}
		r = brought
		k.m.tell(ledger.Input{Kind: ledger.Replayed, Seq: seq, Payload: msg.Frames[3], Ask: q.Ask})
		if k.m.ctx.Err() != nil {
			return r, k.m.ctx.Err()
		}
	}
}

// receive passes over messages that are too long: what was in them shows as a gap, or as a snapshot that is not whole.
func (k *asker) receive(c *zmtp.Conn, into *zmtp.Message) error {
	for {
		err := c.Receive(into)
		if _, over := errors.AsType[*zmtp.OversizeError](err); !over {
			return err
		}
		k.m.oversize.Add(1)
	}
}

// refusedError is a Manager's refusal of a snapshot, in its own words.
type refusedError struct{ what string }

func (e *refusedError) Error() string { return fmt.Sprintf("no snapshot: %.200q", e.what) }

func (k *asker) snapshot(q ledger.Action) error {
	c, err := k.m.o.dial(k.m.ctx, zmtp.Dealer, k.m.target.Snapshot)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(k.m.ctx, func() { _ = c.Close() })
	defer stop()
	if err := k.use(q, c); err != nil {
		return err
	}
	if err := c.Send(nil, []byte(managerwire.SnapshotRequest)); err != nil {
		return err
	}
	for began := false; ; {
		var msg zmtp.Message
		if err := k.receive(c, &msg); err != nil {
			return err
		}
		word, err := k.part(q, msg.Frames)
		switch {
		case err != nil:
			return err
		case word == managerwire.HeaderWord:
			began = true
		case word == managerwire.EndWord && began:
			return nil
		case word == managerwire.EndWord:
			return wire.ErrSnapshot
		}
		if k.m.ctx.Err() != nil {
			return k.m.ctx.Err()
		}
	}
}

// part hands a part of a snapshot over, and returns its word.
func (k *asker) part(q ledger.Action, frames [][]byte) (word string, err error) {
	if len(frames) < 2 || len(frames[0]) != 0 {
		k.m.badMessages.Add(1)
		return "", nil
	}
	var content []byte
	if len(frames) > 2 {
		content = frames[2]
	}
	switch word = string(frames[1]); word {
	case managerwire.HeaderWord:
		h, err := wire.ParseSnapshotHeader(content)
		if err != nil {
			return word, err
		}
		k.m.tell(ledger.Input{Kind: ledger.Snapshot, Header: h, Ask: q.Ask})
	case managerwire.ChunkWord:
		k.m.tell(ledger.Input{Kind: ledger.Chunk, Payload: content, Ask: q.Ask})
	case managerwire.ErrorWord:
		return word, &refusedError{string(content)}
	}
	return word, nil
}
