// Package load is what the gateway knows of an engine's load: the reports that the engine made, rank by rank, and what
// this gateway itself has in flight there.
//
// It promises three things. A missing measurement is unknown and never zero: every figure is a [Count], whose zero value
// is unknown. A report counts only while it is fresh and only when every rank is in it. What was acquired is released
// once: by its [Guard] or by the janitor, never by both, and always on the counters it was acquired on.
//
// The package is pure: the caller hands in the time. All methods of Engine, Tracker and Guard may be called at once from
// any goroutine; none of them blocks on anything but a mutex held for a few instructions.
package load
