package index

import (
	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// Index is one domain's index. Make it with New.
type Index struct{}

// New returns an index that knows nothing.
func New(c Config) *Index { panic("not yet") }

// Open makes a rank of an engine (fleet.Worker.No) a holder. It is hidden.
func (ix *Index) Open(engine uint32, rank int32) Holder { panic("not yet") }

// OpenStore makes a Cache Manager's namespace, in one incarnation of the Manager, a holder. What it claims, on lower tiers only,
// counts for the holders that are attached to it. It is hidden.
func (ix *Index) OpenStore() Holder { panic("not yet") }

// Close ends a holder: its claims go, and its number may be given again.
func (ix *Index) Close(h Holder) { panic("not yet") }

// SetLimit bounds the holder's claims: the blocks of its pools, say, all tiers together, with some room. 0 is the index's limit.
func (ix *Index) SetLimit(h Holder, claims int) { panic("not yet") }

// Mark says how far the holder is to be believed from now on. A holder that is cut off stays so until Withdraw.
func (ix *Index) Mark(h Holder, s State) { panic("not yet") }

// Attach says that the engine can restore what the store holds; Detach ends it. Both may be repeated.
func (ix *Index) Attach(store, engine Holder) { panic("not yet") }

// Detach ends what Attach said.
func (ix *Index) Detach(store, engine Holder) { panic("not yet") }

// Withdraw drops all that the holder claimed, at once for readers, and hides it: it was restarted, or its events cannot be followed.
// What comes next is a beginning. (An engine that says itself that it holds nothing, prefix.Cleared, loses its claims and keeps its state.)
func (ix *Index) Withdraw(h Holder) { panic("not yet") }

// Doubt says that events of the holder were lost for good. What it claimed so far is credited no more; but it is remembered, and
// where a later store on the device stands on such a block, that block and all before it count again: the engine has just proven
// that it holds them. (Not for hybrid models.) The holder becomes partial. Settle forgets the doubted claims; so does the next Doubt.
func (ix *Index) Doubt(h Holder) { panic("not yet") }

// Settle forgets what Doubt remembers.
func (ix *Index) Settle(h Holder) { panic("not yet") }

// Apply tells the index what a holder published. The event is not kept.
func (ix *Index) Apply(h Holder, e *prefix.Event) Outcome { panic("not yet") }

// Sweep frees the memory of claims that were dropped, looking at so many blocks at most, and tells whether there is more to do.
// A millisecond is good for about 20,000 blocks.
func (ix *Index) Sweep(blocks int) (more bool) { panic("not yet") }

// Lookup fills the match with what is held of the query's tokens. The query's model is the caller's matter.
func (ix *Index) Lookup(q *prefix.Query, into *prefix.Match) { panic("not yet") }

// LookupKeys is Lookup for a prompt that is known by the names of its full blocks.
func (ix *Index) LookupKeys(keys []chain.Key, into *prefix.Match) { panic("not yet") }
