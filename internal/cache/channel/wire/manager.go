package wire

import (
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/chain"
)

// Welcome answers Hello. The frame's epoch is the Manager's.
type Welcome struct {
	Version uint16
	// Manager names it, for people.
	Manager string
	// Queries and Publishes are how many the session may have open; Blocks how many one message may have.
	Queries, Publishes, Blocks uint32
}

// Arena is a piece of the pool: Slots of SlotBytes each, the first at offset 0 of its descriptor.
type Arena struct {
	ID, Slots, SlotBytes uint32
	// MapBytes is the descriptor's size.
	MapBytes uint64
}

// Registered answers Register. The frame's session is the new one's number.
type Registered struct {
	// Token lets other connections attach.
	Token [16]byte
	// Namespace is the instance's id, and GroupArenas says in which of Arenas each group's pages are.
	Namespace   core.Namespace
	GroupArenas []uint32
	Arenas      []Arena
}

// Attached answers Attach, with Arenas and writable descriptors for RolePublish, and none else.
type Attached struct{ Arenas []Arena }

// GrantedSlot is the answer for one block: Slot means something only with core.Write.
type GrantedSlot = core.GrantedBlock

// Granted answers Publish.
type Granted struct {
	Op    uint64
	Slots []GrantedSlot
	// Chain is the name of the last block of group 0, for the next Publish's ParentChain; zero if it has none.
	Chain chain.Key
}

// Published says that the slots of a Publish are no longer written: its pages are the engine's again.
type Published struct {
	Op              uint64
	Sealed, Dropped uint32
}

// Busy answers a Query that was not admitted: ask again.
type Busy struct{ Ticket core.Ticket }

// Loading answers a Query that was admitted: Ready will follow.
type Loading struct{ Ticket core.Ticket }

// Ready ends a Query. With a zero lease the engine computes.
type Ready struct {
	Ticket core.Ticket
	Why    core.Why
	Lease  core.LeaseID
	// Hits is blocks from the first on, group by group of the query; Arenas are those that the slots are in.
	Hits, Arenas []uint32
}

// Candidates answers a discovery: the positions of each group that could be restored.
type Candidates struct {
	Ticket    core.Ticket
	Positions [][]uint32
}

// Plan answers Start and Take: pages First and following of Total. With Start all of them are verified, with Take none is. The last frame
// of a plan is that whose pages end at Total; a lease of nothing has none.
type Plan struct {
	Lease        core.LeaseID
	Consumer     uint32
	First, Total uint32
	Slots        []core.PlanSlot
}

// Spoiled ends a Plan: page Bad of it is not what was sealed. The client drops what it has, and says Copied.
type Spoiled struct {
	Lease    core.LeaseID
	Consumer uint32
	Bad      uint32
}

// Restored ends a restore: all consumers have all, or none may use what it has.
type Restored struct {
	Lease core.LeaseID
	OK    bool
}

// Refused answers what was not accepted; nothing has changed. Of is its kind.
type Refused struct {
	Of    Kind
	Class Class
	// Item is the place in the message of what was refused, if it has several.
	Item uint32
	Text string
}

// Arenas answers MapArenas, with one read-only descriptor each.
type Arenas struct{ Arenas []Arena }

// Bye answers Goodbye.
type Bye struct{}

// Pong answers Ping.
type Pong struct{}

// Closing says that the Manager ends the connection, and why.
type Closing struct {
	Class Class
	Text  string
}
