package offload

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/state"
	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/engine"
)

// MaxBlockTokens is the longest block that a Manager takes.
const MaxBlockTokens = wire.MaxTokens

// pageVersion changes when the bytes of a page or the hash of a block do.
const pageVersion = "1"

// namespace is the simulated engine's identity: all that decides the bytes of its pages. Its flavor does not, so that engines of both shapes share.
func namespace(o *Options) state.Namespace {
	one := state.Rank{Size: 1}
	return state.Namespace{
		Engine:  state.Engine{Name: "perigee-engine", Version: pageVersion},
		Model:   state.Model{Content: sha256.Sum256([]byte("perigee simulated model\x00" + o.Model))},
		Compute: state.Compute{DType: "none", Device: "simulated", ISA: "any", Attention: "none"},
		Hash:    state.HashScheme{Algorithm: "perigee-engine-mum128", Tokens: uint32(o.BlockTokens)},
		Shard:   state.Shard{Tensor: one, Pipeline: one, DecodeContext: one, PrefillContext: one, Heads: one},
		Layout: state.Layout{
			Order: "flat", KVDType: "u8", Format: state.FormatRaw, BlockTokens: uint32(o.BlockTokens),
			Groups: []state.Group{{
				Components: state.Of(state.AttentionKV), Rule: state.RulePrefix,
				Segments: []state.Segment{{DType: "u8", Bytes: uint64(o.PageBytes)}},
			}},
		},
	}
}

// Prompt is how the blocks of one request are named. It belongs to whoever owns the request: its methods must not be called at once.
type Prompt struct {
	adds   state.RequestID
	root   wire.Root
	parent chain.Key   // of the chain's beginning
	keys   []chain.Key // of the blocks so far
}

// NewPrompt names the full blocks of a prompt. It returns nil for one whose salt cannot be part of an identity: nothing of it is
// published or restored.
func (a *Adapter) NewPrompt(tokens []uint32, lora, salt string) *Prompt {
	r := state.Request{Salt: salt}
	if lora != "" {
		r.LoRA = sha256.Sum256([]byte("perigee simulated adapter\x00" + lora))
	}
	id, err := r.ID()
	if err != nil || len(lora) > wire.MaxText {
		return nil
	}
	p := &Prompt{adds: id, root: wire.Root{Model: a.opt.Model, LoRA: lora, Salt: salt}}
	p.parent = chain.Root{Model: a.opt.Model, BlockSize: a.opt.BlockTokens, LoRA: lora, Salt: salt}.Key()
	p.keys = p.parent.Append(nil, tokens, a.opt.BlockTokens)
	return p
}

// name is what the Manager knows a block by.
func (p *Prompt) name(h engine.BlockHash) core.Hash {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], h.Hi)
	binary.BigEndian.PutUint64(b[8:], h.Lo)
	e, _ := state.NewEngineHash(b[:]) // 16 bytes are always a hash
	return state.BlockName(e, p.adds)
}

func (p *Prompt) names(hashes []engine.BlockHash) []core.Hash {
	out := make([]core.Hash, len(hashes))
	for i, h := range hashes {
		out[i] = p.name(h)
	}
	return out
}

// publication is what of an event is to be published: nil if its blocks have no name.
func (p *Prompt) publication(ev *engine.KVEvent) *publication {
	if ev.First > len(p.keys) || len(ev.Tokens) != len(ev.Hashes)*ev.BlockSize {
		return nil
	}
	out := &publication{hashes: ev.Hashes, root: p.root, blocks: make([]wire.Block, len(ev.Hashes))}
	if ev.First > 0 {
		out.parent = p.keys[ev.First-1]
	}
	var before core.Hash
	if ev.HasParent {
		before = p.name(ev.Parent)
	}
	for i, h := range ev.Hashes {
		b := &out.blocks[i]
		b.Hash, b.Parent, b.Tokens = p.name(h), before, ev.Tokens[i*ev.BlockSize:(i+1)*ev.BlockSize]
		before = b.Hash
		if at := ev.First + i; at == len(p.keys) { // of the answer
			last := p.parent
			if at > 0 {
				last = p.keys[at-1]
			}
			p.keys = append(p.keys, last.Next(b.Tokens, nil))
		}
	}
	return out
}

// publication is blocks that wait to be published.
type publication struct {
	hashes []engine.BlockHash
	root   wire.Root
	parent chain.Key
	blocks []wire.Block
}
