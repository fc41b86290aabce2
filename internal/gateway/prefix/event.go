package prefix

// Tier is where an engine, or a Cache Manager for it, holds a block; a lower one is faster to use.
type Tier uint8

// The tiers.
const (
	Device   Tier = iota // the engine's own KV pool: it computes on it as it is
	Host                 // host memory
	Disk                 // SSD
	External             // anything further away: a peer, an object store
	Tiers    = 4
)

// String returns the tier's name as it stands in metrics and in the decision log.
func (t Tier) String() string {
	if t >= Tiers {
		return "invalid"
	}
	return [Tiers]string{"device", "host", "disk", "external"}[t]
}

// Hash is an engine's own name for a block: an alias, unique within one engine and one of its KV cache groups at a time. An engine that
// publishes signed numbers has their bits here, one that publishes digests has their last 8 bytes, big-endian, which is what vLLM
// publishes when asked for numbers.
type Hash uint64

// EventKind says what an [Event] reports.
type EventKind uint8

// The kinds.
const (
	Stored EventKind = iota
	Removed
	Cleared // the engine holds nothing any more, on any tier
)

// Boundless is the window of a KV cache group of a kind that we do not know: with all of a prefix in it the prefix can be used, and with
// less nobody can tell.
const Boundless = 1 << 30

// Event is a change of what one rank of an engine holds, in no family's format. Its slices belong to the decoder and are good only
// until the call that they are handed to returns.
type Event struct {
	Kind EventKind
	// Group is the KV cache group of a hybrid model, 0 for others; Window is the group's sliding window in tokens, 0 for full
	// attention, [Boundless] for a kind of which nobody knows how far it reaches back; and Recurrent says that the group keeps states
	// and no attention. Only a full-attention group says how far a prefix reaches.
	Group     int
	Window    int
	Recurrent bool
	// Tier is where, unless AnyTier: a removal that names no medium is one from all of them.
	Tier    Tier
	AnyTier bool
	// Hashes are the blocks that were stored, in the order of their chain, or removed, in any order.
	Hashes []Hash

	// The rest belongs to Stored.

	// Parent is the block before the first of Hashes, if HasParent; else the first of Hashes begins a prompt.
	Parent    Hash
	HasParent bool
	// Tokens are those of all of Hashes, BlockSize each; nil where the engine did not give them.
	Tokens    []uint32
	BlockSize int
	// LoRA names the adapter, empty for none. Salt is the cache salt; it counts only where there is no parent, since the blocks
	// behind inherit it.
	LoRA, Salt string
	// Extras has an entry for each of Hashes, or is nil: what changes the block's content besides its tokens, LoRA and Salt, in a
	// canonical form; nil entries for none.
	Extras [][]byte
}
