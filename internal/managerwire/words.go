package managerwire

import "github.com/perigee-llm/perigee/internal/chain"

// Topic is the first frame of every live and replayed batch. Another version has another topic, so that neither is taken for the other.
const Topic = "perigee.manager.v1"

// What a gateway takes; it refuses more. The first is also what the engines' events may have.
const (
	// MaxBlocks is the most blocks of an event.
	MaxBlocks = 1 << 16
	// MaxMessage is the most bytes of a message.
	MaxMessage = 16 << 20
	// ChunkBlocks is the most blocks of a snapshot's chunk: some 100 KB, so that neither side waits long for one message.
	ChunkBlocks = 4096
	// MaxManager, MaxModel and MaxEngine are the bytes of a Manager's id, a model's and an engine's base URL.
	MaxManager, MaxModel, MaxEngine = 128, 1 << 10, 2 << 10
	// MaxBlockSize is in tokens, MaxRank the highest data-parallel rank.
	MaxBlockSize, MaxRank = 1 << 16, 1<<16 - 1
)

// Kind says what an [Event] reports.
type Kind uint8

// The kinds, by their names on the wire.
const (
	BlockStored Kind = iota
	BlockRemoved
	AllBlocksCleared
	Attached
	Detached
	Cost
	Kinds = 6
)

// String returns the kind's name on the wire.
func (k Kind) String() string {
	if k >= Kinds {
		return "invalid"
	}
	return [Kinds]string{"BlockStored", "BlockRemoved", "AllBlocksCleared", "Attached", "Detached", "Cost"}[k]
}

// Medium is where a Manager has a block; a lower one is faster.
type Medium uint8

// The media, by their names on the wire. NoMedium is for removals: from wherever the block is.
const (
	NoMedium Medium = iota
	CPU
	Disk
	External
)

// String returns the medium's name on the wire, empty for none.
func (m Medium) String() string {
	if m > External {
		return "invalid"
	}
	return [...]string{"", "CPU", "DISK", "EXTERNAL"}[m]
}

// Media is a set of media: bit 1<<m for each.
type Media uint8

// AllMedia is every medium that there is.
const AllMedia Media = 1<<CPU | 1<<Disk | 1<<External

// Has tells whether the set has a medium.
func (s Media) Has(m Medium) bool { return s>>m&1 != 0 }

// AllRanks stands for every data-parallel rank of an engine.
const AllRanks = -1

// Namespace is the digest of what pages must have in common to be shared.
type Namespace [32]byte

// Event is one thing that a Manager says. Each kind has its fields; the others mean nothing to it.
//
//	BlockStored       Namespace, Model, BlockSize, Chain, Parent, Hashes, Medium
//	BlockRemoved      Namespace, Chain, Medium or NoMedium
//	AllBlocksCleared  Namespace; the zero one: everything
//	Attached          Engine, Rank, Namespace, Instance, Media
//	Detached          Engine, Instance
//	Cost              Engine, Instance, Medium, Fixed, PerToken, Samples, Error, Age
type Event struct {
	Kind      Kind
	Namespace Namespace
	// Model is the base model's id as the attached engines serve it, BlockSize is in tokens.
	Model     string
	BlockSize int
	// Chain are the blocks' names in the order of their chain; Parent is the one before the first, zero where that begins a prompt.
	Chain  []chain.Key
	Parent chain.Key
	// Hashes are the engine's own, one for each of Chain; nil: they are left out. Gateways of ours do not read them.
	Hashes [][]byte
	Medium Medium

	// Engine is the engine's base URL as gateways reach it.
	Engine string
	// Rank is the data-parallel rank, or AllRanks.
	Rank int32
	// Instance is the engine's registration.
	Instance uint64
	// Media is what the engine's adapter can restore from.
	Media Media

	// Fixed is in seconds a restore, PerToken in seconds a token; Samples is how many restores they are drawn from, Error how far the last
	// ones were from what was predicted, as a share of that; Age is seconds since the youngest sample.
	Fixed, PerToken float64
	Samples         uint32
	Error, Age      float64
}

// Head is what a batch says of its Manager.
type Head struct {
	// Time is when the batch was made, in seconds since 1970.
	Time float64
	// Epoch is the Manager's incarnation: drawn anew at each start, never 0.
	Epoch uint64
	// Manager is its id, for people.
	Manager string
}
