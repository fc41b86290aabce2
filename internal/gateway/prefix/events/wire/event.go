package wire

import (
	"strconv"
	"strings"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// field is a field of an event.
type field uint8

const (
	noField field = iota
	fHashes
	fParent
	fTokens
	fBlockSize
	fLoRAID
	fMedium
	fLoRAName // in arrays of SGLang a map of further fields
	fExtra
	fGroup
	fSpec
	fWindow
	fLocality
	fSalt
	fType
)

// The fields of events that are arrays, in order. What follows is passed over.
var (
	storedOrder  = []field{fHashes, fParent, fTokens, fBlockSize, fLoRAID, fMedium, fLoRAName, fExtra, fGroup, fSpec, fWindow, fLocality}
	removedOrder = []field{fHashes, fMedium, fGroup, fLocality}
)

func fieldOf(key []byte) field {
	switch string(key) {
	case "type":
		return fType
	case "block_hashes":
		return fHashes
	case "parent_block_hash":
		return fParent
	case "token_ids":
		return fTokens
	case "block_size":
		return fBlockSize
	case "medium":
		return fMedium
	case "lora_name":
		return fLoRAName
	case "lora_id":
		return fLoRAID
	case "extra_keys":
		return fExtra
	case "group_idx":
		return fGroup
	case "kv_cache_spec_kind":
		return fSpec
	case "kv_cache_spec_sliding_window":
		return fWindow
	case "locality":
		return fLocality
	case "cache_salt":
		return fSalt
	}
	return noField
}

// fields is what an event said besides its hashes, tokens and extra keys. Names are parts of the payload.
type fields struct {
	kind               prefix.EventKind
	known              bool // the type
	typed              bool // there was a type
	hashed             bool // there were hashes
	nested             bool // there was a map of further fields
	parent             prefix.Hash
	hasParent          bool
	blockSize          int
	medium, locality   []byte
	loraID, lora, salt []byte
	loraNo             uint64
	hasLoRANo          bool
	group, window      uint64
	spec               []byte
}

// event reads one event. When it is of no use, the reader is anywhere and the class says why.
func (d *Decoder) event() (Class, bool) {
	d.f = fields{}
	d.hashes, d.tokens, d.spans = d.hashes[:0], d.tokens[:0], d.spans[:0]
	if n, ok := d.r.object(); ok {
		if class, ok := d.mapEvent(n); !ok {
			return class, false
		}
	} else if class, ok := d.arrayEvent(); !ok {
		return class, false
	}
	f := &d.f
	switch {
	case !f.typed:
		return BadField, false
	case !f.known:
		return UnknownType, false
	case f.kind == prefix.Cleared:
		d.Event = prefix.Event{Kind: prefix.Cleared}
		return 0, true
	case !f.hashed:
		return BadField, false
	case f.group > MaxGroup:
		return Oversized, false
	case f.kind == prefix.Removed:
		d.removed()
		return 0, true
	}
	return d.stored()
}

func (d *Decoder) mapEvent(n int) (Class, bool) {
	for ; n > 0; n-- {
		key, _, ok := d.r.text()
		if !ok {
			return BadField, false
		}
		if class, ok := d.read(fieldOf(key)); !ok {
			return class, false
		}
	}
	return 0, true
}

func (d *Decoder) arrayEvent() (Class, bool) {
	n, ok := d.r.array()
	if !ok || n == 0 {
		return BadField, false
	}
	if class, ok := d.read(fType); !ok {
		return class, false
	}
	order := storedOrder
	switch {
	case !d.f.known || d.f.kind == prefix.Cleared:
		order = nil
	case d.f.kind == prefix.Removed:
		order = removedOrder
	}
	for i := 0; i < n-1; i++ {
		f := noField
		if i < len(order) {
			f = order[i]
		}
		if class, ok := d.read(f); !ok {
			return class, false
		}
	}
	return 0, true
}

// read reads the value of one field.
func (d *Decoder) read(id field) (class Class, ok bool) {
	f, r := &d.f, &d.r
	if id != fType && id != noField && r.null() {
		return 0, true // as if it were not there
	}
	switch id {
	case fType:
		var tag []byte
		if tag, _, ok = r.text(); ok {
			f.typed = true
			f.kind, f.known = kindOf(tag)
		}
	case fHashes:
		return d.readHashes()
	case fParent:
		var isNumber bool
		f.parent, isNumber, ok = r.hash()
		f.hasParent = ok && !(isNumber && f.parent == 0)
	case fTokens:
		return d.readTokens()
	case fBlockSize:
		var v uint64
		v, ok = r.count()
		f.blockSize = int(min(v, MaxBlockSize+1))
	case fLoRAID:
		if f.loraNo, _, ok = r.number(); ok {
			f.hasLoRANo = true
		} else {
			f.loraID, _, ok = r.text()
		}
	case fLoRAName:
		if n, isMap := r.object(); isMap {
			if f.nested {
				return BadField, false
			}
			f.nested = true // one level, and no more: this is the only place that calls itself
			return d.mapEvent(n)
		}
		f.lora, _, ok = r.text()
	case fExtra:
		return d.readExtras()
	case fMedium:
		f.medium, _, ok = r.text()
	case fLocality:
		f.locality, _, ok = r.text()
	case fSalt:
		f.salt, _, ok = r.text()
	case fSpec:
		f.spec, _, ok = r.text()
	case fGroup:
		f.group, ok = r.count()
	case fWindow:
		f.window, ok = r.count()
	default:
		ok = r.skip(1)
	}
	return BadField, ok
}

// count reads a number that is not negative.
func (r *reader) count() (uint64, bool) {
	v, negative, ok := r.number()
	return v, ok && !negative
}

func kindOf(tag []byte) (prefix.EventKind, bool) {
	switch string(tag) {
	case "BlockStored":
		return prefix.Stored, true
	case "BlockRemoved":
		return prefix.Removed, true
	case "AllBlocksCleared":
		return prefix.Cleared, true
	}
	return 0, false
}

func (d *Decoder) readHashes() (Class, bool) {
	n, ok := d.r.array()
	switch {
	case !ok:
		return BadField, false
	case n > MaxHashes:
		return Oversized, false
	}
	d.f.hashed = true
	d.hashes = d.hashes[:0]
	for ; n > 0; n-- {
		h, _, ok := d.r.hash()
		if !ok {
			return BadField, false
		}
		d.hashes = append(d.hashes, h)
	}
	return 0, true
}

func (d *Decoder) readTokens() (Class, bool) {
	n, ok := d.r.array()
	switch {
	case !ok:
		return BadField, false
	case n > MaxTokens:
		return Oversized, false
	}
	if cap(d.tokens) < n {
		d.tokens = make([]uint32, 0, n)
	}
	d.tokens, ok = d.r.tokens(d.tokens[:0], n)
	return BadField, ok
}

// harm tells whether the event that begins at a place and is of no use may have taken something away, and whether it is a store.
func (d *Decoder) harm(begin int) (lost, hole bool) {
	r := reader{b: d.r.b, i: begin}
	tag, ok := r.tag()
	if !ok {
		return true, false
	}
	kind, known := kindOf(tag)
	return known && kind != prefix.Stored, known && kind == prefix.Stored
}

// tag finds an event's type.
func (r *reader) tag() (tag []byte, ok bool) {
	begin := r.i
	n, ok := r.object()
	if !ok {
		r.i = begin
		if n, ok = r.array(); !ok || n == 0 {
			return nil, false
		}
		tag, _, ok = r.text()
		return tag, ok
	}
	for ; n > 0; n-- {
		key, _, ok := r.text()
		if !ok {
			return nil, false
		}
		if fieldOf(key) == fType {
			tag, _, ok = r.text()
			return tag, ok
		}
		if !r.skip(1) {
			return nil, false
		}
	}
	return nil, false
}

// name returns b as a string, the same one each time. It refuses a name that is too long.
func (d *Decoder) name(b []byte) (string, bool) {
	switch {
	case len(b) == 0:
		return "", true
	case len(b) > MaxName:
		return "", false
	}
	if s, ok := d.names[string(b)]; ok {
		return s, true
	}
	// A tenant has a salt, so there may be as many as there are tenants; the bound keeps them from being here for ever.
	if d.names == nil || len(d.names) >= 4096 {
		d.names = map[string]string{}
	}
	s := string(b)
	d.names[s] = s
	return s, true
}

// loraName returns the adapter's name; see the package comment for one without.
func (d *Decoder) loraName() (string, bool) {
	f := &d.f
	switch {
	case f.lora != nil:
		return d.name(f.lora)
	case f.hasLoRANo:
		return "\x00id:" + strconv.FormatUint(f.loraNo, 10), true // one allocation: no engine of today does that
	case f.loraID != nil:
		s, ok := d.name(f.loraID)
		return strings.Join([]string{"\x00id:", s}, ""), ok
	}
	return "", true
}
