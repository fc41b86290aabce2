package state

import (
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Validate returns every fault, joined, or nil. Each is ErrInvalid, or ErrContract where the groups have no recovery contract.
func (n *Namespace) Validate() error {
	var f faults
	n.fields(&f)
	f.unless(n.Engine.Name != "", "engine.name is missing")
	f.unless(n.Engine.Version != "", "engine.version is missing")
	f.unless(!n.Model.Content.IsZero(), "model.content is missing")
	f.compute(&n.Compute)
	f.unless(n.Hash.Algorithm != "", "hash.algorithm is missing")
	f.unless(n.Hash.Tokens > 0, "hash.tokens is 0")
	f.ranks(&n.Shard)
	f.layout(&n.Layout)
	if n.Hash.Tokens > 0 && n.Layout.BlockTokens%n.Hash.Tokens != 0 {
		f.add("layout.block_tokens is no multiple of hash.tokens: a page would have no hash of its own")
	}
	if len(f.errs) == 0 {
		f.join(checkRequirements(n.Requirements()))
	}
	return errors.Join(f.errs...)
}

// faults collects what is wrong with a namespace. As a coder it checks what holds for every field of a kind.
type faults struct{ errs []error }

func (f *faults) add(parts ...string) { f.errs = append(f.errs, fail(ErrInvalid, parts...)) }

func (f *faults) unless(ok bool, text string) {
	if !ok {
		f.add(text)
	}
}

func (f *faults) join(err error) {
	if err != nil {
		f.errs = append(f.errs, err)
	}
}

func (f *faults) text(name string, v *string) {
	switch {
	case len(*v) > maxText:
		f.add(name, " is too long")
	case !utf8.ValidString(*v):
		f.add(name, " is not UTF-8")
	case strings.ContainsFunc(*v, unicode.IsControl):
		f.add(name, " has control characters") // it will be logged
	}
}

func (f *faults) digest(string, *Digest) {}
func (f *faults) flag(string, *bool)     {}
func (f *faults) u8(string, *uint8)      {}
func (f *faults) u32(string, *uint32)    {}
func (f *faults) u64(string, *uint64)    {}

func (f *faults) count(name string, n, most int) int {
	if n > most {
		f.add(name, " has too many elements")
	}
	return n
}

func (f *faults) compute(c *Compute) {
	f.unless(c.DType != "", "compute.dtype is missing")
	f.unless(c.Device != "", "compute.device is missing")
	f.unless(c.ISA != "", "compute.isa is missing")
	f.unless(c.Attention != "" || c.Prefill != "" || c.Decode != "", "compute has no attention backend")
	for i, o := range c.Options {
		f.unless(o.Name != "", "an option has no name")
		if i > 0 && c.Options[i-1].Name >= o.Name {
			f.add("compute.options are not sorted, or ", o.Name, " is given twice")
		}
	}
}

func (f *faults) ranks(s *Shard) {
	for _, a := range []struct {
		name string
		rank Rank
	}{
		{"tensor", s.Tensor}, {"pipeline", s.Pipeline}, {"decode_context", s.DecodeContext},
		{"prefill_context", s.PrefillContext}, {"heads", s.Heads},
	} {
		if a.rank.Index >= a.rank.Size {
			f.add("shard.", a.name, " is no rank: its index is not below its size")
		}
	}
	f.unless(s.Heads.Size <= 1 || s.Tensor.Size <= 1, "shard.heads and shard.tensor both split heads")
}

func (f *faults) layout(l *Layout) {
	f.unless(l.Order != "", "layout.order is missing")
	f.unless(l.KVDType != "", "layout.kv_dtype is missing")
	f.unless(l.Format != "", "layout.format is missing")
	f.unless(l.BlockTokens > 0, "layout.block_tokens is 0")
	for i := range l.Groups {
		f.group(&l.Groups[i], "layout.groups"+index(i))
	}
}

func (f *faults) group(g *Group, at string) {
	if len(g.Segments) == 0 {
		f.add(at, " has no segments")
	}
	var page uint64
	for i := range g.Segments {
		s := &g.Segments[i]
		name := at + ".segments" + index(i)
		if s.Bytes == 0 || s.Bytes > MaxPageBytes {
			f.add(name, ".bytes is 0 or beyond MaxPageBytes")
			continue
		}
		if page += s.Bytes; page > MaxPageBytes { // no overflow: there are few segments of few bytes
			f.add(at, "'s page is larger than MaxPageBytes")
		}
		f.unless(s.DType != "", name+".dtype is missing")
		f.unless(len(s.Shape) == len(s.Strides), name+" has a shape and strides of different lengths")
	}
}
