package state

import "time"

// Incarnation is one run of a Manager: random, new at every start, so that nothing of an earlier run is mistaken for this one's.
type Incarnation [16]byte

// Medium is what a replica lies in.
type Medium uint8

// The media. Their numbers go over wires and never change meaning.
const (
	// DRAM is a Manager's pool.
	DRAM Medium = 1
	// SSD is a Manager's store.
	SSD Medium = 2
	// HBM is an engine's pages or a Manager's buffers on a device.
	HBM Medium = 3
)

// String is the medium's word: dram, ssd, hbm.
func (m Medium) String() string {
	switch m {
	case DRAM:
		return "dram"
	case SSD:
		return "ssd"
	case HBM:
		return "hbm"
	default:
		return "no medium"
	}
}

// Endpoint is a concrete resource of an owner. Local and remote are relative to who reads: a second Manager on the same node is a peer
// like any other, since its pool is another process's.
type Endpoint struct {
	Owner Incarnation
	// Node is the owner's id in the cluster; "" where there is no cluster.
	Node   string
	Medium Medium
	// Resource is the owner's number of the pool, store or device.
	Resource uint32
}

// Replica is evidence that a page lies somewhere. It holds no bytes, pins nothing and grants nothing: whoever wants to read asks the
// owner, who compares the version and pins, or refuses.
//
// There is no offset, address or descriptor in it. Key, endpoint and version are all that the owner needs to find the page again, and an
// offset that outlives its page would be read as another's.
type Replica struct {
	Key      StateKey
	Endpoint Endpoint
	// Version is the residency's: the slot's generation in a pool, the extent's in a store, the inventory's sequence number at a peer.
	// Only the owner compares it, and only for equality. It is never 0.
	Version uint64
	// Coverage is the tokens that the page covers, in the prompt that it was found for.
	Coverage Span
	// Format is the stored representation, as in Layout; "" if it is unknown, as a peer's may be.
	Format string
	// Logical is the page's length in bytes, Stored what is read and moved for it: more by padding, less by a codec. 0: unknown, since
	// no page is empty.
	Logical, Stored uint64
	// Seen is when this was learnt, by the clock of the Manager that plans. Only peers' evidence grows old.
	Seen time.Duration
}
