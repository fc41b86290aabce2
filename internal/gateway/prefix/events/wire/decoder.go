package wire

import (
	"errors"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// What one event may have. The caps bound what a decoder keeps, 20 MB, and how long an event takes, a few milliseconds.
const (
	// MaxHashes is sgl-router's: a prompt of a million tokens in blocks of 16.
	MaxHashes = 1 << 16
	// MaxTokens is sgl-router's too. It is checked against an event's tokens alone: a removal beside it is not affected.
	MaxTokens = 1 << 20
	// MaxBlockSize is far above every engine's: 64 on a GPU, 128 on a CPU, a few hundred where hybrid models align their groups.
	MaxBlockSize = 1 << 16
	// MaxGroup is far above every model's, which have under ten groups.
	MaxGroup = 1 << 10
	// MaxExtra bounds the canonical form of one block's extra keys, in bytes: an image takes some 80, and a block holds few.
	MaxExtra = 4 << 10
	// MaxExtras bounds those of all blocks of an event: images on every one of [MaxHashes] take 5 MB.
	MaxExtras = 8 << 20
	// MaxName bounds a LoRA's name and a salt, in bytes.
	MaxName = 1 << 10
)

// Class says why an event was of no use. It labels a metric.
type Class uint8

// The classes.
const (
	UnknownType   Class = iota // a type that we do not know; it is passed over
	BadField                   // a field that is missing or of the wrong type
	BadShape                   // fields that do not fit each other: tokens and hashes, extra keys and hashes
	Oversized                  // beyond a cap
	UnknownMedium              // stored where we do not know how far it is
	Classes       = 5
)

// String returns the class's name as it stands in metrics.
func (c Class) String() string {
	if c >= Classes {
		return "invalid"
	}
	return [Classes]string{"unknown_type", "bad_field", "bad_shape", "oversized", "unknown_medium"}[c]
}

// ErrBatch means that the payload is no batch, or that the rest of it cannot be read. What came of it before is good.
var ErrBatch = errors.New("a broken batch of KV events")

// Step is what [Decoder.Next] found.
type Step uint8

// The steps.
const (
	End    Step = iota // there are no more events
	Event              // [Decoder.Event] is good until the next call
	Lost               // an event that may have taken something away was of no use
	Broken             // the rest cannot be read: [ErrBatch]
)

// Decoder reads batches, one after the other, and allocates nothing once its buffers have grown. The zero value is ready.
type Decoder struct {
	// Event is the event that Next found. Its slices are the decoder's, and its strings are shared between events.
	Event prefix.Event
	// Bad counts the events that were of no use, by class, since the decoder was made.
	Bad [Classes]uint64
	// Holes counts those of them that were stores: the engine holds what nobody could read.
	Holes uint64

	r       reader
	todo    int     // events to come
	isArray bool    // the batch is one, so that the rank comes behind the events
	tail    int     // elements behind the events
	ts      float64 // seconds
	rank    int
	hasRank bool

	f      fields
	names  map[string]string // LoRAs and salts, so that a name that comes again costs no allocation
	hashes []prefix.Hash
	joined []prefix.Hash // those of the events that Join has put together
	tokens []uint32
	extras [][]byte
	extra  []byte // what extras point into
	spans  []span
}

// Begin takes up a batch, which must not change before the last Next. On [ErrBatch] there is nothing to be read.
func (d *Decoder) Begin(payload []byte) error {
	d.r = reader{b: payload}
	d.todo, d.tail, d.ts, d.rank, d.hasRank = 0, 0, 0, 0, false
	n, ok := d.r.array()
	d.isArray = ok
	switch {
	case ok:
		ok = n >= 2 && d.stamp() && d.events()
		d.tail = n - 2
	default:
		d.r.i = 0
		ok = d.beginMap()
	}
	if !ok {
		d.todo = 0
		return ErrBatch
	}
	return nil
}

// Time returns when the engine made the batch, in seconds since 1970 by its own clock; 0 where it does not say.
func (d *Decoder) Time() float64 { return d.ts }

// Rank returns the data-parallel rank that the batch names, and false if it names none. It is known when Next has returned [End].
// It is for people: what counts is the socket that the batch came from, as with load.
func (d *Decoder) Rank() (int, bool) { return d.rank, d.hasRank }

func (d *Decoder) stamp() (ok bool) {
	if d.r.null() {
		return true
	}
	d.ts, ok = d.r.float()
	return ok
}

func (d *Decoder) events() (ok bool) {
	d.todo, ok = d.r.array()
	return ok
}

// beginMap reads the batch's keys. The events are passed over and read later, since what is behind them belongs to the header.
func (d *Decoder) beginMap() bool {
	n, ok := d.r.object()
	if !ok {
		return false
	}
	at := -1
	for ; n > 0; n-- {
		key, _, ok := d.r.text()
		if !ok {
			return false
		}
		begin := d.r.i
		switch string(key) {
		case "ts":
			ok = d.stamp()
		case "events":
			at = begin
			ok = d.r.skip(1)
		case "data_parallel_rank", "attn_dp_rank", "dp_rank":
			d.readRank()
			d.r.i = begin
			ok = d.r.skip(1)
		default:
			ok = d.r.skip(1)
		}
		if !ok {
			return false
		}
	}
	if at < 0 {
		return false
	}
	d.r.i = at
	return d.events()
}

// Join adds to the removal that Next has found the removals right behind it which differ from it in their hashes only, as long as all hashes
// together are fewer than most, and returns how many events these were. vLLM tells of each block that it evicts by an event of its own; who
// applies many of them at once waits for far memory less often.
func (d *Decoder) Join(most int) (events int) {
	e := d.Event
	if e.Kind != prefix.Removed || d.todo == 0 || len(e.Hashes) >= most {
		return 0
	}
	d.joined = append(d.joined[:0], e.Hashes...)
	for d.todo > 0 && len(d.joined) < most {
		begin := d.r.i
		if !d.another(&e) {
			d.r.i = begin
			break
		}
		d.todo--
		if len(d.hashes) > 0 {
			d.joined = append(d.joined, d.hashes...)
			events++
		}
	}
	d.Event = e
	d.Event.Hashes = d.joined
	return events
}

// another reads an event and tells whether it is a removal that can be joined to e. If not, the reader is anywhere.
func (d *Decoder) another(e *prefix.Event) bool {
	begin := d.r.i
	tag, ok := d.r.tag()
	if kind, known := kindOf(tag); !ok || !known || kind != prefix.Removed {
		return false
	}
	d.r.i = begin
	_, ok = d.event()
	f := &d.Event
	return ok && f.Kind == prefix.Removed && f.Group == e.Group && f.Tier == e.Tier && f.AnyTier == e.AnyTier
}

func (d *Decoder) readRank() {
	if v, negative, ok := d.r.number(); ok && !negative && v < 1<<16 {
		d.rank, d.hasRank = int(v), true
	}
}

// Next reads on to the next event that means something.
func (d *Decoder) Next() Step {
	for d.todo > 0 {
		d.todo--
		begin := d.r.i
		class, ok := d.event()
		if ok {
			if len(d.Event.Hashes) > 0 || d.Event.Kind == prefix.Cleared {
				return Event
			}
			continue
		}
		lost, hole := d.harm(begin)
		d.r.i = begin
		if !d.r.skip(1) {
			d.todo = 0
			return Broken
		}
		d.Bad[class]++
		if lost {
			return Lost
		}
		if hole {
			d.Holes++
		}
	}
	if d.isArray && d.tail > 0 {
		d.tail = 0
		d.readRank()
	}
	return End
}
