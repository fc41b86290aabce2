package manager

import (
	"encoding/binary"

	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/chain"
)

// namer gives the blocks of one message their chain names: of group g a block follows the one before it, another one of the message, or for
// the first the message's own parent. What follows none of them has no name.
type namer struct {
	root, parent chain.Key
	names        map[uint32]map[core.Hash]chain.Key
}

func (n *namer) name(b *wire.Block) (parent, name chain.Key) {
	names, begun := n.names[b.Group]
	if !begun {
		names = map[core.Hash]chain.Key{}
		n.names[b.Group] = names
	}
	switch known, ok := names[b.Parent]; {
	case b.Parent == core.Hash{}:
		parent = n.root
	case ok:
		parent = known
	case !begun:
		parent = n.parent
	}
	if !parent.IsZero() && len(b.Tokens) > 0 {
		name = parent.Next(b.Tokens, b.Extra)
	}
	names[b.Hash] = name
	return parent, name
}

// nameBlocks makes the core's blocks. model and tokens are the session's: its model's id and the tokens of a block.
func nameBlocks(e *wire.Publish, model string, tokens int) []core.Block {
	if e.Root.Model != "" {
		model = e.Root.Model
	}
	n := namer{parent: e.ParentChain, names: map[uint32]map[core.Hash]chain.Key{}}
	n.root = chain.Root{Model: model, BlockSize: tokens, LoRA: e.Root.LoRA, Salt: e.Root.Salt}.Key()
	out := make([]core.Block, len(e.Blocks))
	for i := range e.Blocks {
		b := &e.Blocks[i]
		if len(b.Tokens) != 0 && len(b.Tokens) != tokens {
			b.Tokens = nil // a block that is not full has no name
		}
		parent, name := n.name(b)
		out[i] = core.Block{Group: b.Group, Hash: b.Hash, Parent: b.Parent, Chain: name, Identity: record(parent, b)}
	}
	return out
}

// record is what a block's name was made from, version 1: u8 version, 16 bytes of the parent's name, u32 tokens, the tokens, the extra keys. It is
// for media that outlive the daemon.
func record(parent chain.Key, b *wire.Block) []byte {
	p := parent.Bytes()
	r := make([]byte, 0, 1+chain.Size+4+4*len(b.Tokens)+len(b.Extra))
	r = append(append(r, 1), p[:]...)
	r = binary.LittleEndian.AppendUint32(r, uint32(len(b.Tokens)))
	for _, t := range b.Tokens {
		r = binary.LittleEndian.AppendUint32(r, t)
	}
	return append(r, b.Extra...)
}
