// Package followtest is an engine of SGLang's for tests, as far as its KV events go: a publisher, and a replay socket that has what was published.
package followtest

import (
	"context"
	"encoding/binary"
	"sync"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/perigee-llm/perigee/internal/zmtp"
)

// Stored is a BlockStored. Names are aliases: any numbers.
type Stored struct {
	Names      []int64
	Parent     *int64
	Tokens     []uint32
	Page       int
	Salt, LoRA string
}

// Engine is one. Its methods may be called by any goroutine.
type Engine struct {
	// Events and Replay are where it is followed.
	Events, Replay string

	t      testing.TB
	pub    *zmtp.Publisher
	replay *zmtp.Listener
	wg     sync.WaitGroup

	mu struct {
		sync.Mutex
		batches [][]byte
		from    int // older ones are not replayed
	}
}

// Start starts one, which ends with the test.
func Start(t testing.TB) *Engine {
	t.Helper()
	e := &Engine{t: t}
	var err error
	if e.pub, err = zmtp.NewPublisher(zmtp.PublisherOptions{}); err != nil {
		t.Fatal(err)
	}
	if e.Events, err = e.pub.Listen("tcp://127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	if e.replay, err = zmtp.Listen(zmtp.Router, "tcp://127.0.0.1:0", zmtp.Options{}); err != nil {
		t.Fatal(err)
	}
	e.Replay = e.replay.Endpoint()
	e.wg.Go(func() { _ = e.replay.Serve(context.Background(), e.answer) }) // ends by Close
	t.Cleanup(e.Stop)
	return e
}

// Stop ends it. It may be called twice.
func (e *Engine) Stop() {
	_ = e.pub.Close() // always nil, as the next
	_ = e.replay.Close()
	e.wg.Wait()
}

// Followed waits until somebody subscribes.
func (e *Engine) Followed() {
	e.t.Helper()
	if err := e.pub.WaitSubscribed(e.t.Context(), 1); err != nil {
		e.t.Fatal(err)
	}
}

// Publish publishes a batch of the events.
func (e *Engine) Publish(events ...Stored) { e.say(true, Batch(events...)) }

// Lose makes a batch that no subscriber gets; a replay has it.
func (e *Engine) Lose(events ...Stored) { e.say(false, Batch(events...)) }

// PublishAndLose publishes a batch, and loses another one before anybody can ask for it.
func (e *Engine) PublishAndLose(events, lost Stored) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sayLocked(true, Batch(events))
	e.sayLocked(false, Batch(lost))
}

// Raw publishes bytes in the place of a batch.
func (e *Engine) Raw(b []byte) { e.say(true, b) }

// Forget has a replay begin with the next batch.
func (e *Engine) Forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.from = len(e.mu.batches)
}

func (e *Engine) say(live bool, b []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sayLocked(live, b)
}

func (e *Engine) sayLocked(live bool, b []byte) {
	seq := binary.BigEndian.AppendUint64(nil, uint64(len(e.mu.batches)))
	e.mu.batches = append(e.mu.batches, b)
	if live {
		e.pub.Publish([]byte("kv"), seq, b)
	}
}

func (e *Engine) answer(c *zmtp.Conn) {
	defer c.Close()
	var m zmtp.Message
	for c.Receive(&m) == nil {
		from := int(binary.BigEndian.Uint64(m.Frames[1]))
		e.mu.Lock()
		first, all := max(from, e.mu.from), e.mu.batches
		e.mu.Unlock()
		for i := first; i < len(all); i++ {
			if c.Send(nil, []byte("kv"), binary.BigEndian.AppendUint64(nil, uint64(i)), all[i]) != nil {
				return
			}
		}
		if c.Send(nil, nil, binary.BigEndian.AppendUint64(nil, ^uint64(0)), nil) != nil {
			return
		}
	}
}

// Batch is what SGLang 0.5.23 writes of events: [ts, [event, …], rank].
func Batch(events ...Stored) []byte {
	b := msgp.AppendArrayHeader(nil, 3)
	b = msgp.AppendFloat64(b, 1.5)
	b = msgp.AppendArrayHeader(b, uint32(len(events)))
	for _, e := range events {
		b = e.append(b)
	}
	return msgp.AppendInt(b, 0)
}

func (e Stored) append(b []byte) []byte {
	n := uint32(7)
	for _, s := range []string{e.Salt, e.LoRA} {
		if s != "" {
			n++
		}
	}
	b = msgp.AppendMapHeader(b, n)
	b = msgp.AppendString(msgp.AppendString(b, "type"), "BlockStored")
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "block_hashes"), uint32(len(e.Names)))
	for _, name := range e.Names {
		b = msgp.AppendInt64(b, name)
	}
	b = msgp.AppendString(b, "parent_block_hash")
	if e.Parent == nil {
		b = msgp.AppendNil(b)
	} else {
		b = msgp.AppendInt64(b, *e.Parent)
	}
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "token_ids"), uint32(len(e.Tokens)))
	for _, t := range e.Tokens {
		b = msgp.AppendUint32(b, t)
	}
	b = msgp.AppendInt(msgp.AppendString(b, "block_size"), e.Page)
	b = msgp.AppendNil(msgp.AppendString(b, "lora_id"))
	b = msgp.AppendString(msgp.AppendString(b, "medium"), "GPU")
	if e.Salt != "" {
		b = msgp.AppendString(msgp.AppendString(b, "cache_salt"), e.Salt)
	}
	if e.LoRA != "" {
		b = msgp.AppendString(msgp.AppendString(b, "lora_name"), e.LoRA)
	}
	return b
}
