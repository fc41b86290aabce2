// Package keeper keeps a registry true to its engines: it registers each engine with what the engine says of itself, reads
// its load every second, and notices when it restarted or became another.
//
// It promises that an engine which does not answer is registered all the same, without models, and is asked again, first
// soon and then every 30 seconds; that a failed question never takes away what is registered, and only an answer changes
// it; that the load of a process that has ended is forgotten as soon as its successor answers; that engines are asked
// spread over the interval and never twice at once; and that it logs changes, not polls.
//
// Each engine has a timer, and while it is asked a goroutine, owned by the [Keeper]; [Keeper.Remove] and [Keeper.Close] stop and join. What is decided
// about one engine is a state machine without clock or I/O (member.go); what is around it (keeper.go) asks and waits.
package keeper
