package book

import (
	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/managerwire"
)

// Space is what makes blocks one engine's kind: the namespace, the base model by whose id they are named, the tokens of a block, and how many
// groups of pages a block has.
type Space struct {
	Namespace managerwire.Namespace
	Model     string
	BlockSize int
	Groups    int
}

// sound tells whether a gateway would take what is told of it.
func (s *Space) sound() bool {
	return s.Model != "" && len(s.Model) <= managerwire.MaxModel && s.BlockSize > 0 && s.BlockSize <= managerwire.MaxBlockSize
}

// Engine is an attached one. Its space is what it can restore.
type Engine struct {
	// URL is the engine's base URL as gateways reach it.
	URL string
	// Rank is the data-parallel rank, or managerwire.AllRanks.
	Rank  int32
	Space *Space
}

// key is a group of a block.
type key struct {
	namespace managerwire.Namespace
	name      chain.Key
	group     uint32
}

// change is what has become of one since the notes were last taken.
type change struct {
	delta  int // of the blocks that have the name
	order  uint64
	space  *Space
	parent chain.Key
}

// Pending is what has happened since Apply last took it. The zero value is empty and ready.
type Pending struct {
	blocks   map[key]change
	attached map[uint64]Engine
	detached map[uint64]struct{}
	order    uint64
}

// Empty tells whether there is nothing to tell.
func (p *Pending) Empty() bool { return len(p.blocks)+len(p.attached)+len(p.detached) == 0 }

// Len returns how many blocks' groups have notes.
func (p *Pending) Len() int { return len(p.blocks) }

// Visible notes that a group of a block can be restored. A zero parent says that the block begins a prompt; the space is kept. It returns
// false for what cannot be told: a block without a name, or of a space without a model's id.
func (p *Pending) Visible(s *Space, group uint32, parent, name chain.Key) bool {
	if name.IsZero() || int(group) >= s.Groups || !s.sound() {
		return false
	}
	p.note(key{s.Namespace, name, group}, 1, s, parent)
	return true
}

// Removed notes that a group of a block that was visible is not any more.
func (p *Pending) Removed(n managerwire.Namespace, group uint32, name chain.Key) {
	if !name.IsZero() {
		p.note(key{n, name, group}, -1, nil, chain.Key{})
	}
}

func (p *Pending) note(k key, delta int, s *Space, parent chain.Key) {
	if p.blocks == nil {
		p.blocks = map[key]change{}
	}
	c, again := p.blocks[k]
	if c.delta += delta; c.delta == 0 {
		delete(p.blocks, k)
		return
	}
	if delta > 0 {
		c.space, c.parent = s, parent
	}
	if !again {
		p.order++
		c.order = p.order
	}
	p.blocks[k] = c
}

// Attach notes that an engine has registered. An instance is never used twice. It returns false for one that cannot be told, since it has
// no base URL that a gateway would take.
func (p *Pending) Attach(instance uint64, e Engine) bool {
	if e.URL == "" || len(e.URL) > managerwire.MaxEngine || e.Rank > managerwire.MaxRank {
		return false
	}
	if p.attached == nil {
		p.attached = map[uint64]Engine{}
	}
	p.attached[instance] = e
	return true
}

// Detach notes that an instance has left. One that was not attached changes nothing.
func (p *Pending) Detach(instance uint64) {
	if _, untold := p.attached[instance]; untold {
		delete(p.attached, instance)
		return
	}
	if p.detached == nil {
		p.detached = map[uint64]struct{}{}
	}
	p.detached[instance] = struct{}{}
}
