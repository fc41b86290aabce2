package manager

import (
	"encoding/binary"
	"slices"

	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/chain"
)

// namer gives the blocks of one message their chain names: of a group a block follows the one before it, another one of the message, or for
// the first the message's own parent. What follows none of them has no name.
type namer struct {
	root, parent chain.Key
	groups       []nameRun
}

// nameRun is what is known of one group's blocks so far.
type nameRun struct {
	group uint32
	last  core.Hash
	name  chain.Key // of last
	// all is made when a block does not follow the one before it: most messages are one run of a prompt.
	all map[core.Hash]chain.Key
}

func (n *namer) groupOf(g uint32) *nameRun {
	for i := range n.groups {
		if n.groups[i].group == g {
			return &n.groups[i]
		}
	}
	return nil
}

// parentOf is the name of what a block follows; before are the message's blocks before it.
func (n *namer) parentOf(b *wire.Block, before []core.Block) chain.Key {
	g := n.groupOf(b.Group)
	switch {
	case b.Parent == core.Hash{}:
		return n.root
	case g == nil:
		return n.parent
	case b.Parent == g.last:
		return g.name
	}
	if g.all == nil {
		g.all = map[core.Hash]chain.Key{}
		for i := range before {
			if before[i].Group == b.Group {
				g.all[before[i].Hash] = before[i].Chain
			}
		}
	}
	return g.all[b.Parent]
}

func (n *namer) name(b *wire.Block, before []core.Block) (parent, name chain.Key) {
	parent = n.parentOf(b, before)
	if !parent.IsZero() && len(b.Tokens) > 0 {
		name = parent.Next(b.Tokens, b.Extra)
	}
	g := n.groupOf(b.Group)
	if g == nil {
		n.groups = append(n.groups, nameRun{group: b.Group})
		g = &n.groups[len(n.groups)-1]
	}
	g.last, g.name = b.Hash, name
	if g.all != nil {
		g.all[b.Hash] = name
	}
	return parent, name
}

// namedBlocks is the core's blocks of a Publish, and the memory that their records lie in.
type namedBlocks struct {
	blocks  []core.Block
	records []byte
}

// name makes them. model and tokens are the session's: its model's id and the tokens of a block.
func (to *namedBlocks) name(e *wire.Publish, model string, tokens int) {
	if e.Root.Model != "" {
		model = e.Root.Model
	}
	n := namer{parent: e.ParentChain}
	n.root = chain.Root{Model: model, BlockSize: tokens, LoRA: e.Root.LoRA, Salt: e.Root.Salt}.Key()
	out, size := slices.Grow(to.blocks[:0], len(e.Blocks)), 0
	for i := range e.Blocks {
		size += recordHead + 4*len(e.Blocks[i].Tokens) + len(e.Blocks[i].Extra)
	}
	records := slices.Grow(to.records[:0], size) // it does not move while blocks refer to it
	for i := range e.Blocks {
		b := &e.Blocks[i]
		if len(b.Tokens) != 0 && len(b.Tokens) != tokens {
			b.Tokens = nil // a block that is not full has no name
		}
		parent, name := n.name(b, out)
		at := len(records)
		records = appendRecord(records, parent, b)
		block := core.Block{Group: b.Group, Hash: b.Hash, Parent: b.Parent, Chain: name, Identity: records[at:len(records):len(records)]}
		if b.Parent != (core.Hash{}) {
			block.ParentChain = parent
		}
		out = append(out, block)
	}
	to.blocks, to.records = out, records
}

// mostNamed and mostRecords bound what is kept: blocks, and bytes.
const mostNamed, mostRecords = 1024, 256 << 10

// empty forgets the blocks, and says whether the memory is worth keeping.
func (to *namedBlocks) empty() bool {
	clear(to.blocks)
	to.blocks, to.records = to.blocks[:0], to.records[:0]
	return cap(to.blocks) <= mostNamed && cap(to.records) <= mostRecords
}

// recordParent is the name of what a block follows.
func recordParent(r []byte) (parent chain.Key) {
	if len(r) >= recordHead {
		parent = chain.FromBytes([chain.Size]byte(r[1:]))
	}
	return parent
}

// recordHead is the bytes of a record without tokens and extra keys.
const recordHead = 1 + chain.Size + 4

// appendRecord appends what a block's name was made from, version 1: u8 version, 16 bytes of the parent's name, u32 tokens, the tokens, the
// extra keys. It is for media that outlive the daemon.
func appendRecord(r []byte, parent chain.Key, b *wire.Block) []byte {
	p := parent.Bytes()
	r = append(append(r, 1), p[:]...)
	r = binary.LittleEndian.AppendUint32(r, uint32(len(b.Tokens)))
	for _, t := range b.Tokens {
		r = binary.LittleEndian.AppendUint32(r, t)
	}
	return append(r, b.Extra...)
}
