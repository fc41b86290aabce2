package wire

import "github.com/perigee-llm/perigee/internal/cache/core"

// Class is why something was refused: what a client branches on. The numbers are the wire's and never change meaning; 1 to 31 are
// the core's, named there.
type Class uint16

// The core's classes, in the wire's numbers.
const (
	StaleSession Class = 1
	StaleSlot    Class = 2
	StaleLease   Class = 3
	StaleTicket  Class = 4
	Retired      Class = 5
	Repeated     Class = 7
	Invalid      Class = 8
	InstanceBusy Class = 9
	ArenaBusy    Class = 10
	TooMany      Class = 11
	Overdue      Class = 12
	Overlap      Class = 13
)

// The channel's own classes.
const (
	// Malformed: a frame could not be read. The connection ends.
	Malformed Class = 32
	// BadVersion: no version in common. The connection ends.
	BadVersion Class = 33
	// NotAllowed: the peer's user may not use this Manager. The connection ends.
	NotAllowed Class = 34
	// WrongRole: the message does not belong on this kind of connection, or not yet.
	WrongRole Class = 35
	// Unknown: the Manager does not know this kind of message.
	Unknown Class = 36
	// NoPool: the pool has no memory left for another arena.
	NoPool Class = 37
	// PoolTooSmall: what the instance may have of the pool does not hold one page.
	PoolTooSmall Class = 38
	// NotBuilt: the message is specified and this Manager cannot do it. There is none such now.
	NotBuilt Class = 39
	// Unfenceable: the Manager cannot learn when the client's process ends (no pidfd), so it may not write shared memory.
	Unfenceable Class = 40
	// BadIdentity: the namespaces are no instance; the text says why.
	BadIdentity Class = 41
	// BadDemand: the demand is not what the recovery contract requires; the text says why.
	BadDemand Class = 42
	// Slow: more answers were waiting to be read than are kept. The connection ends.
	Slow Class = 43
	// Stopping: the Manager is about to end.
	Stopping Class = 44
	// BadPool: the descriptor that was offered is no memory that the Manager can copy from and to; the text says why.
	BadPool Class = 45
)

// classNames are the classes' words, for logs, metrics and texts.
var classNames = map[Class]string{
	StaleSession: "stale_session", StaleSlot: "stale_slot", StaleLease: "stale_lease", StaleTicket: "stale_ticket", Retired: "retired",
	Repeated: "repeated", Invalid: "invalid", InstanceBusy: "instance_busy", ArenaBusy: "arena_busy", TooMany: "too_many", Overdue: "overdue",
	Overlap: "overlap", BadPool: "bad_pool",
	Malformed: "malformed", BadVersion: "bad_version", NotAllowed: "not_allowed", WrongRole: "wrong_role", Unknown: "unknown",
	NoPool: "no_pool", PoolTooSmall: "pool_too_small", NotBuilt: "not_built", Unfenceable: "unfenceable", BadIdentity: "bad_identity",
	BadDemand: "bad_demand", Slow: "slow", Stopping: "stopping",
}

// String is the class's word: stale_lease.
func (c Class) String() string {
	if s, ok := classNames[c]; ok {
		return s
	}
	return "other"
}

// fromCore are the core's classes in the wire's numbers, whatever order the core gives them.
var fromCore = map[core.Class]Class{
	core.StaleSession: StaleSession, core.StaleSlot: StaleSlot, core.StaleLease: StaleLease, core.StaleTicket: StaleTicket,
	core.Retired: Retired, core.Repeated: Repeated, core.Invalid: Invalid, core.InstanceBusy: InstanceBusy, core.ArenaBusy: ArenaBusy,
	core.TooMany: TooMany, core.Overdue: Overdue, core.Overlap: Overlap,
}

// ClassOf returns the wire's number of a class of the core; Invalid for one that no client can cause.
func ClassOf(c core.Class) Class {
	if w, ok := fromCore[c]; ok {
		return w
	}
	return Invalid
}
