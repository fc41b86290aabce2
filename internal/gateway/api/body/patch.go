package body

import "github.com/perigee-llm/perigee/internal/gateway/api/body/lex"

// Patch collects changes to one body and writes the changed body as pieces of the old one. What is not
// changed keeps its bytes. The zero value is not usable; make one with NewPatch. A Patch changes neither
// the body nor the facts, and the later of two changes of one key counts.
//
// Members are the only thing that it knows: a member is removed together with one of the commas beside it
// (white space around it stays), replaced by its value alone, or added behind the last one.
type Patch struct {
	b       []byte
	f       *Facts
	removed Keys
	set     Keys
	values  [numKeys][]byte // of those that are set; nil elsewhere
}

// NewPatch returns a patch without changes of b, whose facts are f. It keeps both.
func NewPatch(b []byte, f *Facts) Patch { return Patch{b: b, f: f} }

// Begin makes p, which is empty, what NewPatch returns.
func (p *Patch) Begin(b []byte, f *Facts) { p.b, p.f = b, f }

// Like makes p, which is empty, what o is. An assignment would copy a value for each key there is.
func (p *Patch) Like(o *Patch) {
	p.b, p.f, p.removed, p.set = o.b, o.f, o.removed, o.set
	for ks := o.set; ks != 0; {
		k := ks.take()
		p.values[k] = o.values[k]
	}
}

// Reset empties p.
func (p *Patch) Reset() {
	p.unset(p.set)
	p.b, p.f, p.removed = nil, nil, 0
}

// unset takes back what keys were set to.
func (p *Patch) unset(ks Keys) {
	p.set &^= ks
	for ks != 0 {
		p.values[ks.take()] = nil
	}
}

// Remove takes k out of the body, if it is there.
func (p *Patch) Remove(k Key) { p.RemoveAll(1 << k) }

// RemoveAll takes every key of ks out of the body.
func (p *Patch) RemoveAll(ks Keys) {
	p.unset(p.set & ks)
	p.removed |= ks & p.f.keys
}

// Set gives k the value raw, which must be one JSON value and stay unchanged as long as the pieces are used.
// A value that is there, null among them, is replaced where it stands; else the member goes in front of the
// closing brace. (One after the old member would do for most engines, but leave the body with a repeated
// key.)
func (p *Patch) Set(k Key, raw []byte) {
	p.removed &^= 1 << k
	p.set |= 1 << k
	p.values[k] = raw
}

// Changed says whether the new body differs from the old one.
func (p *Patch) Changed() bool { return p.removed != 0 || p.set != 0 }

// Pieces appends the new body to dst as a sequence of slices: parts of the old body, the values that were
// set, and constant text. They must not be written to. With room in dst it allocates nothing; a patch of n
// changes needs at most 3n+1 pieces.
func (p *Patch) Pieces(dst [][]byte) [][]byte {
	if !p.Changed() {
		return append(dst, p.b)
	}
	w := splicer{b: p.b, out: dst}
	var order [numKeys]Key
	lead := int32(0) // members removed from the front so far, without a gap
	for _, k := range p.touched(order[:0]) {
		m := &p.f.at[k]
		switch {
		case !p.removed.Has(k):
			w.cut(int(m.value), int(m.end), p.values[k])
		case m.index != lead:
			w.cut(int(m.comma), int(m.end), nil)
		default:
			// No member is left in front of this one, so the comma behind it goes.
			lead++
			end := int(m.end)
			if m.next != 0 {
				end = int(m.next) + 1
			}
			w.cut(int(m.key), end, nil)
		}
	}
	w.copyTo(int(p.f.close))
	first := p.f.members == lead
	for ks := p.set &^ p.f.keys; ks != 0; {
		k := ks.take()
		text := memberText[k]
		if first {
			text = text[1:]
			first = false
		}
		w.add(text)
		w.add(p.values[k])
	}
	w.copyTo(len(p.b))
	return w.out
}

// touched returns the keys that the body has and the patch changes, in the body's order.
func (p *Patch) touched(dst []Key) []Key {
	ks := p.removed | p.set&p.f.keys
	for ks != 0 {
		k := ks.take()
		i := len(dst)
		dst = append(dst, k)
		for ; i > 0 && p.f.at[dst[i-1]].index > p.f.at[k].index; i-- {
			dst[i] = dst[i-1]
		}
		dst[i] = k
	}
	return dst
}

// Len returns the length of the new body in bytes.
func (p *Patch) Len() int {
	var room [3*int(numKeys) + 1][]byte
	n := 0
	for _, piece := range p.Pieces(room[:0]) {
		n += len(piece)
	}
	return n
}

// AppendTo appends the new body to dst.
func (p *Patch) AppendTo(dst []byte) []byte {
	var room [3*int(numKeys) + 1][]byte
	for _, piece := range p.Pieces(room[:0]) {
		dst = append(dst, piece...)
	}
	return dst
}

// splicer copies a body piece by piece and leaves out cuts, which come in order.
type splicer struct {
	b    []byte
	done int // what is before it is copied or cut
	out  [][]byte
}

func (w *splicer) add(piece []byte) {
	if len(piece) > 0 {
		w.out = append(w.out, piece)
	}
}

func (w *splicer) copyTo(i int) {
	w.add(w.b[w.done:i])
	w.done = i
}

func (w *splicer) cut(start, end int, instead []byte) {
	w.copyTo(start)
	w.add(instead)
	w.done = end
}

// memberText is a key as it is written before a value that is added behind others.
var memberText = func() (text [numKeys][]byte) {
	for k, name := range keyNames {
		text[k] = []byte(`,"` + name + `":`)
	}
	return text
}()

// Quote returns text as a JSON string, for Set. Bytes that are not UTF-8 become U+FFFD.
func Quote(text string) []byte {
	return lex.AppendQuoted(make([]byte, 0, len(text)+2), text)
}

// AppendQuoted appends text as a JSON string; else it is Quote.
func AppendQuoted(dst []byte, text string) []byte { return lex.AppendQuoted(dst, text) }
