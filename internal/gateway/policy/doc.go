// Package policy picks one engine out of a group's candidates: the contract that all policies share, the classes of their
// errors, admission, and the policies themselves, one file each.
//
// A policy owns what it needs (a cursor, a seed, its admission limits) and reads load for itself, from the candidates'
// load records; a request brings facts and nothing else. It answers with an engine of the candidates it was given or
// with a [PickError], and never looks beyond them.
//
// The package is pure: time comes with the request, and every random choice is drawn from a generator keyed by (seed,
// request, stage), so neither map order nor goroutine order changes an answer. Pick may be called at once from any goroutine.
package policy
