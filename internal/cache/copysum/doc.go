// Package copysum copies bytes and makes their XXH3-64 checksum in one pass: each byte is read once, and what is summed is what was stored.
//
// A copy and a sum of where it went reads all bytes twice, waits for memory in the one half and for the processor in the other, and has the memory it copies to
// read before it is overwritten. One pass does both at once, and past the cache (see Past) leaves that reading out: a page of 16 KiB takes
// six tenths of the time, one of 1 MiB half of it (go test -bench . here).
//
// The sum is of the value of each byte that went to its place. It is not read back from there: that would come from the core's cache or its store buffers, and
// so say nothing of memory. A source that another writes to meanwhile, or that was changed before, gives the sum of what was copied, or for the last 64 bytes at
// most a sum that fits nothing; never one that fits another content.
//
// It is assembly for amd64 with AVX2; elsewhere, and under the race detector, which sees nothing of assembly, it is a copy and a sum.
package copysum
