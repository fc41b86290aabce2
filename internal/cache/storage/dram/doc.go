// Package dram keeps the books of the shared pool: which block has which slots, who may not lose them, and which block goes first
// when room is needed. It holds no bytes of the pool itself.
//
// It promises that the victim it names is a leaf (no block in memory continues it) or, where there is none that may go, one that only blocks of
// another arena or scope continue; that nobody holds it and nothing is written to it; and that it is the first of them in the policy's order,
// whose cost is logarithmic in the number of leaves. What it keeps lies in a few
// dense arrays that refer to each other by index, so that a hundred thousand blocks are neither many allocations nor work for
// the garbage collector; a test bounds the bytes a block.
//
// A Store is not safe for concurrent use: it belongs to one core. Calls in the wrong state panic: they are mistakes of the core, never
// of a client.
//
// A few heaps per (arena, scope), a lane, hold the blocks that may go. The alternative was a list in order of use, as in the simulated engine;
// there a long chain whose tail alone is asked for keeps its old head at the list's cold end, and the search for a victim walks over
// all such heads. Sampling (64 of the leaves, as the hyperbolic policy wants) costs as much as a heap and passes over a cold block
// for as long as luck wants.
package dram
