// Package pool makes the shared memory of the Cache Manager: arenas, each a memfd that clients map. Which slot is whose is the core's
// business, how a share becomes arenas that of package layout. It is for Linux, whose memfds it needs.
//
// It promises:
//
//   - A memfd's size never changes: it is sealed against shrinking and growing before anybody else sees it, so no access of a
//     client's or of ours can fault because of another's doing.
//   - A reader's descriptor is open for reading only, and the memfd's mode is 0, so that no other user can open it anew.
//   - The arenas together are never larger than the pool, and what an arena took is the kernel's again when it is closed, whoever still
//     maps it.
//   - Nothing is left behind: a memfd has no name, so that the kernel takes it back when the last process that has it ends, however
//     it ends.
//   - Memory is faulted in behind the scenes (first touch costs 0.4 to 2.5 s/GiB), and never on the way of a request.
package pool

import "errors"

// ErrFull says that the pool has not so many bytes left.
var ErrFull = errors.New("the pool has no room for another arena")

// HugePages says whether arenas are to lie in huge pages of 2 MiB.
type HugePages uint8

// The choices.
const (
	// HugeNever takes ordinary pages.
	HugeNever HugePages = iota
	// HugeTry takes huge pages where the kernel has them reserved, else ordinary ones.
	HugeTry
)

// Options are what a Pool is made from.
type Options struct {
	// Bytes bounds all arenas together.
	Bytes uint64
	Huge  HugePages
	// NoPrefault leaves memory to be faulted in as it is used: for tests.
	NoPrefault bool
	// FailForTesting is asked before each step of making an arena, and told "close" before one is given back; nil in production.
	FailForTesting func(step string) error
}
