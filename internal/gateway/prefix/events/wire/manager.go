package wire

import (
	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/managerwire"
)

// ManagerDecoder reads what Cache Managers publish, package managerwire's batches and their snapshots' chunks, with the same tolerance as
// [Decoder] has for engines: keys in any order, unknown ones passed over, numbers of any width, text as string or bytes. An event of no use
// costs itself alone; a [Lost] one may have taken something away. It allocates what events hold: a Manager's batches are few.
//
// The zero value is ready. It belongs to one goroutine.
type ManagerDecoder struct {
	// Event is the event that Next found; its Chain is good until the next call. Hashes are not read.
	Event managerwire.Event
	// Head is the batch's.
	Head managerwire.Head
	// Bad counts the events that were of no use, by class, since the decoder was made.
	Bad [Classes]uint64

	r    reader
	todo int // events to come
	f    managerFields
}

// managerFields tells which fields the event had.
type managerFields struct {
	typed, known                    bool
	namespace, chain, engine, model bool
	instance, medium                bool
	fixedCost, tokenCost            bool
	strange                         bool // the medium is one that we do not know
}

// Begin takes up a batch, which must not change before the last Next. A batch without an epoch is none: its events cannot be placed.
// The error is [ErrBatch].
func (d *ManagerDecoder) Begin(payload []byte) error {
	d.r, d.todo, d.Head = reader{b: payload}, 0, managerwire.Head{}
	n, ok := d.r.array()
	if !ok || n < 4 || !d.stamp() {
		return ErrBatch
	}
	at := d.r.i
	// Behind the events and the rank, which a Manager has not.
	if !d.r.skip(2) || !d.extension() || d.Head.Epoch == 0 {
		return ErrBatch
	}
	d.r.i = at
	if d.todo, ok = d.r.array(); !ok {
		return ErrBatch
	}
	return nil
}

// Len returns how many events are still to come, those of no use included.
func (d *ManagerDecoder) Len() int { return d.todo }

func (d *ManagerDecoder) stamp() (ok bool) {
	if d.r.null() {
		return true
	}
	d.Head.Time, ok = d.r.float()
	return ok
}

func (d *ManagerDecoder) extension() bool {
	n, ok := d.r.object()
	for ; ok && n > 0; n-- {
		key, _, isText := d.r.text()
		switch {
		case !isText:
			ok = false
		case string(key) == "epoch":
			d.Head.Epoch, ok = d.r.count()
		case string(key) == "manager":
			var name []byte
			name, _, ok = d.r.text()
			d.Head.Manager = string(name[:min(len(name), managerwire.MaxManager)])
		default:
			ok = d.r.skip(1)
		}
	}
	return ok
}

// Next reads on to the next event that means something.
func (d *ManagerDecoder) Next() Step {
	for d.todo > 0 {
		d.todo--
		begin := d.r.i
		class, ok := d.event()
		if ok {
			return Event
		}
		lost := d.harm(begin)
		d.r.i = begin
		if !d.r.skip(1) {
			d.todo = 0
			return Broken
		}
		d.Bad[class]++
		if lost {
			return Lost
		}
	}
	return End
}

// harm tells whether the event that begins at a place and is of no use may have taken something away. An Attached may have, in place of an
// older registration; but a Manager says Detached of that too.
func (d *ManagerDecoder) harm(begin int) bool {
	r := reader{b: d.r.b, i: begin}
	tag, ok := r.tag()
	kind, known := managerKind(tag)
	return !ok || known && (kind == managerwire.BlockRemoved || kind == managerwire.AllBlocksCleared || kind == managerwire.Detached)
}

func managerKind(tag []byte) (managerwire.Kind, bool) {
	for k := range managerwire.Kind(managerwire.Kinds) {
		if string(tag) == k.String() {
			return k, true
		}
	}
	return 0, false
}

func (d *ManagerDecoder) event() (Class, bool) {
	d.Event = managerwire.Event{Rank: managerwire.AllRanks, Media: managerwire.AllMedia, Chain: d.Event.Chain[:0]}
	d.f = managerFields{}
	n, ok := d.r.object()
	if !ok {
		return BadField, false
	}
	for ; n > 0; n-- {
		key, _, ok := d.r.text()
		if !ok {
			return BadField, false
		}
		if class, ok := d.read(key); !ok {
			return class, false
		}
	}
	return d.whole()
}

// read reads the value of one key. One that is nil is as if it were not there.
func (d *ManagerDecoder) read(key []byte) (Class, bool) {
	e, f, r := &d.Event, &d.f, &d.r
	if string(key) != "type" && r.null() {
		return 0, true
	}
	ok := false
	switch string(key) {
	case "type":
		var tag []byte
		if tag, _, ok = r.text(); ok {
			f.typed = true
			e.Kind, f.known = managerKind(tag)
		}
	case "namespace":
		ok = d.fixed(e.Namespace[:])
		f.namespace = true
	case "model":
		return d.text(&e.Model, managerwire.MaxModel, &f.model)
	case "engine":
		return d.text(&e.Engine, managerwire.MaxEngine, &f.engine)
	case "block_size":
		return d.number(managerwire.MaxBlockSize, func(v uint64) { e.BlockSize = int(v) })
	case "rank":
		return d.number(managerwire.MaxRank, func(v uint64) { e.Rank = int32(v) })
	case "samples":
		return d.number(1<<32-1, func(v uint64) { e.Samples = uint32(v) })
	case "instance":
		e.Instance, ok = r.count()
		f.instance = ok
	case "chain":
		return d.chain()
	case "parent_chain":
		var raw [chain.Size]byte
		ok = d.fixed(raw[:])
		e.Parent = chain.FromBytes(raw)
	case "medium":
		e.Medium, f.strange, ok = d.medium()
		f.medium = true
	case "mediums":
		return d.media()
	case "fixed_seconds":
		e.Fixed, ok = r.float()
		f.fixedCost = ok
	case "seconds_per_token":
		e.PerToken, ok = r.float()
		f.tokenCost = ok
	case "error_share":
		e.Error, ok = r.float()
	case "age_seconds":
		e.Age, ok = r.float()
	default:
		ok = r.skip(1)
	}
	return BadField, ok
}
