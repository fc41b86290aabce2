// Package body reads what the gateway must know of an OpenAI request body, and changes it by splicing.
//
// It promises: Scan checks the whole body as JSON in one pass over its bytes, decodes nothing that it
// does not need, and allocates nothing for an ordinary body, whatever its size; what a Patch does not
// touch keeps its bytes, their order and their spelling (numbers such as 1e400, 1.10 or
// 9007199254740993, unknown keys, white space); and the gateway never reads a key that an engine could
// read differently, because a key that it reads may occur only once.
//
// Results alias the body: Facts, the slices taken from it and the pieces of a Patch are valid as long as
// the body's bytes are neither changed nor given back to a pool. Nothing here is shared, so everything
// may be used by one goroutine at a time, and different bodies by as many as one likes.
//
// It is pure: no I/O, no clock, no goroutine, no randomness.
package body
