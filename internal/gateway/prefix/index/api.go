package index

// Holder is a holder's number in its index, given by [Index.Open] or [Index.OpenStore]. Numbers are dense and given again after
// [Index.Close].
type Holder uint32

// State says how far what a holder claims is to be believed. Who reads its events decides that; the index itself only ever makes it
// worse, when it cuts a holder off.
type State uint8

// The states.
const (
	// Hidden holders are blind: what they claimed is kept and followed, and nobody sees it. A holder begins hidden.
	Hidden State = iota
	// Partial holders are credited with what they claim, and are blind as well: they may hold more.
	Partial
	// Exact holders hold what they claim and nothing else.
	Exact
	// CutOff holders claimed more than they may. They are blind, and events are refused until Withdraw.
	CutOff
)

// String returns the state's name as it stands in metrics.
func (s State) String() string {
	if s > CutOff {
		return "invalid"
	}
	return [...]string{"hidden", "partial", "exact", "cut_off"}[s]
}

// Result says what became of an event.
type Result uint8

// The results. All from Orphan on take nothing of the event, up to Full, which may have taken the first blocks of the store, and
// Exceeded, which has dropped the holder's claims.
const (
	Applied Result = iota
	// Orphan is a store whose parent this holder does not claim: something was lost, or came before the subscription. It may have proven blocks
	// before its parent all the same.
	Orphan
	// Malformed is an event that contradicts itself: its tokens are not those of its hashes, or a store claims a device block.
	Malformed
	// OtherSize is a store of blocks of another size: it belongs to another domain.
	OtherSize
	// PartialBlock is a store of the beginning of a block alone, as some engines publish them behind the last whole one. It is left out.
	PartialBlock
	// OtherGroup is a store of a KV cache group that the index leaves out, or of one whose blocks are of another size than the full-attention
	// group's, or a removal of a side group from a slower tier; see the package's design note.
	OtherGroup
	// Full is a store for which the index has no room left ([Config.MaxBlocks]). An exact holder is partial from then on, whatever it is marked,
	// until its claims begin anew.
	Full
	// Exceeded is the event by which a holder claimed more than it may: it is cut off from now on.
	Exceeded
	// Refused is an event of a holder that is cut off or closed.
	Refused
)

// String returns the result's name as it stands in metrics.
func (r Result) String() string {
	if r > Refused {
		return "invalid"
	}
	return [...]string{"applied", "orphan", "malformed", "other_size", "partial_block", "other_group", "full", "exceeded", "refused"}[r]
}

// Outcome says what an event did.
type Outcome struct {
	Result Result
	// Blocks are those that the event said something new of; the rest of its hashes were known to be so, or are in Unknown.
	Blocks int
	// Unknown are hashes that a removal, or a store without tokens, named and that the holder does not claim.
	Unknown int
	// Moved are hashes that the holder claimed for another block before: that claim was dropped.
	Moved int
	// Proven are blocks of the time before [Index.Doubt] that count again, because this store stands on them.
	Proven int
}

// Config is what an index is made for.
type Config struct {
	// Model and BlockSize are the domain (chain.Root). BlockSize is above 0.
	Model     string
	BlockSize int
	// Limit is the most claims of a holder for which nobody has set another; 0: DefaultLimit.
	Limit int
	// MaxBlocks is the most blocks of the whole index; 0, or more than it can address: as many as it can address, 67 million.
	MaxBlocks int
}

// DefaultLimit is the claims that a holder may have. Four million blocks of 16 tokens are 64 million tokens: several times what the
// KV pool and the host memory of one rank hold, and at 48 bytes a claim 200 MB, which one engine that errs may cost.
const DefaultLimit = 4 << 20
