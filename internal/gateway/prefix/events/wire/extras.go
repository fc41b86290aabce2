package wire

import (
	"encoding/binary"
	"math"
)

// span is where a block's extra keys are in the payload; end is 0 for none.
type span struct{ begin, end int }

// readExtras notes where each block's extra keys are: what they mean depends on fields that may come later.
func (d *Decoder) readExtras() (Class, bool) {
	n, ok := d.r.array()
	switch {
	case !ok:
		return BadField, false
	case n > MaxHashes:
		return Oversized, false
	}
	d.spans = d.spans[:0]
	for ; n > 0; n-- {
		if d.r.null() {
			d.spans = append(d.spans, span{})
			continue
		}
		begin := d.r.i
		if !d.r.skip(1) {
			return BadField, false
		}
		d.spans = append(d.spans, span{begin, d.r.i})
	}
	return 0, true
}

// finishExtras fills in the event's salt and extras.
func (d *Decoder) finishExtras() (class Class, ok bool) {
	salt := d.f.salt
	if len(d.spans) != 0 && len(d.spans) != len(d.hashes) {
		return BadShape, false
	}
	d.extras, d.extra = d.extras[:0], d.extra[:0]
	any := false
	for i, s := range d.spans {
		if s.end == 0 {
			d.extras = append(d.extras, nil)
			continue
		}
		begin := len(d.extra)
		class, ok := d.block(s, i == 0 && !d.f.hasParent && d.f.salt == nil, &salt)
		if len(d.extra) > MaxExtras {
			return Oversized, false
		}
		switch {
		case !ok:
			return class, false
		case len(d.extra) == begin: // a LoRA or a salt, and nothing else
			d.extras = append(d.extras, nil)
		case len(d.extra)-begin > MaxExtra:
			return Oversized, false
		default:
			any = true
			d.extras = append(d.extras, d.extra[begin:len(d.extra):len(d.extra)])
		}
	}
	if any {
		d.Event.Extras = d.extras
	}
	if d.Event.Salt, ok = d.name(salt); !ok {
		return Oversized, false
	}
	return 0, true
}

// block appends the canonical form of one block's extra keys, without its LoRA, and without its salt if it may have one.
func (d *Decoder) block(s span, salted bool, salt *[]byte) (Class, bool) {
	r := reader{b: d.r.b[:s.end], i: s.begin}
	n, ok := r.array()
	if !ok {
		n, r.i = 1, s.begin // a bare key
	}
	most := len(d.extra) + MaxExtra + MaxName + 5 // the salt and its header go again
	last, lastIs := len(d.extra), []byte(nil)     // where the last bare string is in its canonical form
	for i := range n {
		lora, tagged, ok := r.tagged()
		switch {
		case ok && string(lora) == "lora":
			continue
		case ok: // cache_salt
			if salted {
				*salt = tagged
			}
			continue
		}
		at := r.i
		if b, isString, ok := r.text(); ok && isString {
			if i == 0 && d.f.lora != nil && string(b) == string(d.f.lora) {
				continue
			}
			last, lastIs = len(d.extra), b
		}
		r.i = at
		d.extra, ok = r.canonical(d.extra, most, 0)
		switch {
		case len(d.extra) > most:
			return Oversized, false
		case !ok:
			return BadField, false
		}
	}
	if salted && lastIs != nil {
		*salt = lastIs
		d.extra = append(d.extra[:last], d.extra[last+5+len(lastIs):]...)
	}
	return 0, true
}

// tagged reads ["lora", name] or ["cache_salt", salt], or leaves the reader where it is.
func (r *reader) tagged() (tag, name []byte, ok bool) {
	begin := r.i
	if r.peek() == 0x92 {
		r.i++
		tag, _, ok = r.text()
		if ok && (string(tag) == "lora" || string(tag) == "cache_salt") {
			if name, isString, ok := r.text(); ok && isString {
				return tag, name, true
			}
		}
	}
	r.i = begin
	return nil, nil, false
}

// maxNesting bounds extra keys: an image's is one deep.
const maxNesting = 4

// canonical appends the next value in the one form that it has, whatever msgpack form it came in: a letter for its type, then its
// length where it has one, four bytes little-endian, then itself. Other types than these are no key of an engine. It gives up when dst is longer
// than most: a small number takes nine times its bytes.
func (r *reader) canonical(dst []byte, most, depth int) ([]byte, bool) {
	switch c := r.peek(); {
	case c == 0xc0 || c == 0xc2 || c == 0xc3:
		r.i++
		return append(dst, 'c', c), true
	case c == 0xca || c == 0xcb:
		v, ok := r.float()
		return binary.LittleEndian.AppendUint64(append(dst, 'f'), math.Float64bits(v)), ok
	}
	begin := r.i
	if v, negative, ok := r.number(); ok {
		dst = append(dst, 'i')
		if negative {
			dst[len(dst)-1] = 'n'
		}
		return binary.LittleEndian.AppendUint64(dst, v), true
	}
	r.i = begin
	if b, isString, ok := r.text(); ok {
		dst = append(dst, 'b')
		if isString {
			dst[len(dst)-1] = 's'
		}
		dst = binary.LittleEndian.AppendUint32(dst, uint32(len(b)))
		return append(dst, b[:min(len(b), most+1)]...), len(dst)+len(b) <= most
	}
	r.i = begin
	n, ok := r.array()
	if !ok || depth == maxNesting {
		return dst, false
	}
	dst = binary.LittleEndian.AppendUint32(append(dst, 'a'), uint32(n))
	for ; n > 0 && ok && len(dst) <= most; n-- {
		dst, ok = r.canonical(dst, most, depth+1)
	}
	return dst, ok && len(dst) <= most
}
