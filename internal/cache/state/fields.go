package state

import "strconv"

// coder goes over the fields of an identity in the order of their encoding. Encoding, decoding and comparing are three coders over one
// list, so that no field can be in one of them and not in another.
type coder interface {
	text(name string, v *string)
	digest(name string, v *Digest)
	flag(name string, v *bool)
	u8(name string, v *uint8)
	u32(name string, v *uint32)
	u64(name string, v *uint64)
	// count goes over the length of a list: it is given the present one, and returns the one to go on with.
	count(name string, n, most int) int
}

// fields is every field of a namespace. The encoding's version changes with this list: see encode.go.
func (n *Namespace) fields(c coder) {
	c.text("scope", &n.Scope)
	c.text("engine.name", &n.Engine.Name)
	c.text("engine.version", &n.Engine.Version)
	n.Model.fields(c)
	n.Compute.fields(c)
	c.text("hash.algorithm", &n.Hash.Algorithm)
	c.text("hash.seed", &n.Hash.Seed)
	c.u32("hash.tokens", &n.Hash.Tokens)
	n.Shard.fields(c)
	n.Layout.fields(c)
}

func (m *Model) fields(c coder) {
	c.digest("model.content", &m.Content)
	c.digest("model.processor", &m.Processor)
	c.text("model.weight_version", &m.WeightVersion)
	c.text("model.quantization", &m.Quantization)
	c.digest("model.overrides", &m.Overrides)
}

func (p *Compute) fields(c coder) {
	c.text("compute.dtype", &p.DType)
	c.text("compute.device", &p.Device)
	c.text("compute.isa", &p.ISA)
	c.text("compute.attention", &p.Attention)
	c.text("compute.prefill", &p.Prefill)
	c.text("compute.decode", &p.Decode)
	c.text("compute.kv_scales", &p.KVScales)
	c.text("compute.speculation", &p.Speculation)
	resize(&p.Options, c.count("compute.options", len(p.Options), maxOptions))
	for i := range p.Options {
		at := "compute.options" + index(i)
		c.text(at+".name", &p.Options[i].Name)
		c.text(at+".value", &p.Options[i].Value)
	}
}

func (s *Shard) fields(c coder) {
	for _, axis := range []struct {
		name string
		rank *Rank
	}{
		{"shard.tensor", &s.Tensor}, {"shard.pipeline", &s.Pipeline}, {"shard.decode_context", &s.DecodeContext},
		{"shard.prefill_context", &s.PrefillContext}, {"shard.heads", &s.Heads},
	} {
		c.u32(axis.name+".index", &axis.rank.Index)
		c.u32(axis.name+".size", &axis.rank.Size)
	}
}

func (l *Layout) fields(c coder) {
	c.text("layout.order", &l.Order)
	c.flag("layout.cross_layer", &l.CrossLayer)
	c.text("layout.kv_dtype", &l.KVDType)
	c.text("layout.format", &l.Format)
	c.u32("layout.block_tokens", &l.BlockTokens)
	resize(&l.Groups, c.count("layout.groups", len(l.Groups), MaxGroups))
	for i := range l.Groups {
		l.Groups[i].fields(c, "layout.groups"+index(i))
	}
}

func (g *Group) fields(c coder, at string) {
	c.u32(at+".components", (*uint32)(&g.Components))
	c.u8(at+".rule", (*uint8)(&g.Rule))
	c.u64(at+".window", &g.Window)
	resize(&g.Segments, c.count(at+".segments", len(g.Segments), maxSegments))
	for i := range g.Segments {
		g.Segments[i].fields(c, at+".segments"+index(i))
	}
}

func (s *Segment) fields(c coder, at string) {
	c.text(at+".layer", &s.Layer)
	c.text(at+".part", &s.Part)
	c.text(at+".dtype", &s.DType)
	resize(&s.Shape, c.count(at+".shape", len(s.Shape), maxDims))
	for i := range s.Shape {
		c.u32(at+".shape"+index(i), &s.Shape[i])
	}
	resize(&s.Strides, c.count(at+".strides", len(s.Strides), maxDims))
	for i := range s.Strides {
		c.u64(at+".strides"+index(i), &s.Strides[i])
	}
	c.u64(at+".bytes", &s.Bytes)
}

// resize makes a list of n, and writes nothing if it has that length, since others may be reading it. The zero length is nil, so that
// decoded values compare equal.
func resize[T any](s *[]T, n int) {
	switch {
	case n == len(*s):
	case n == 0:
		*s = nil
	default:
		*s = make([]T, n)
	}
}

func index(i int) string { return "[" + strconv.Itoa(i) + "]" }
