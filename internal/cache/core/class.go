package core

// Class is why something was refused: what a caller branches on.
type Class uint8

// The classes.
const (
	// NoClass refuses nothing.
	NoClass Class = iota
	// StaleSession: no live session has this id, or the epoch is another one's. Register again.
	StaleSession
	// StaleSlot: the slot's grant has ended, or was never this session's.
	StaleSlot
	// StaleLease: the lease has ended, or was never this session's. Compute.
	StaleLease
	// StaleTicket: a lower revision than the operation has, or the same one with other content.
	StaleTicket
	// Retired: the operation has ended, and its answer was given. Nothing starts it again.
	Retired
	// StaleRead: no such read or copy is under way.
	StaleRead
	// Repeated: this consumer has started already, or has ended.
	Repeated
	// Invalid: the message contradicts itself or the session's layout.
	Invalid
	// InstanceBusy: a live session has this instance name.
	InstanceBusy
	// ArenaBusy: the arena is another session's, or still quarantined, or has another shape.
	ArenaBusy
	// TooMany: a bounded table is full. Nothing is kept, and it may be asked again.
	TooMany
	// Overdue: grants or restores have been open for so long that their client is taken to hang.
	Overdue
	// Overlap: pieces of offered memory meet, within the message or with what another copy writes or reads. The client has made a mistake
	// with its own memory.
	Overlap
)

// EventKind names an event's type where it is spoken of.
type EventKind uint8

// The kinds, in the order of events.go.
const (
	KindRegister EventKind = iota
	KindLost
	KindFenced
	KindPublish
	KindSealed
	KindAbandoned
	KindQuery
	KindPoll
	KindCancel
	KindStart
	KindCopied
	KindRelease
	KindBacked
	KindUnbacked
	KindReadDone
	KindTick
	KindFlush
	KindEvict
	KindOfferPool
	KindPublishFrom
	KindRestoreInto
	KindInDone
	KindOutDone
	KindSealedRun
	KindRetire
	KindFetch
	KindEmpty
	KindLearned
)
