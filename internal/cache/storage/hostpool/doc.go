// Package hostpool maps memory that another process has made and handed over, and copies into and out of it: an engine's own host pool. It is
// for Linux.
//
// The memory is not ours: its owner can cut it short while we copy, and an access to what is no longer there is a SIGBUS. A seal against
// shrinking would forbid that, but engines do not make their pools sealable (SGLang 0.5.23 calls memfd_create with MFD_CLOEXEC alone, and
// nobody can add a seal then). pread and pwrite on the descriptor cannot fault, and ran at a fifth to seven tenths of the speed of a copy
// through a map, measured in turns. So it is mapped, and a fault in the copy is an error of that copy (debug.SetPanicOnFault). Only the copy
// itself touches the map: checksums are made of what it has read, or of the other side.
//
// It promises:
//
//   - Whatever the owner does to the memory, Read and Write return an error at worst, and so does hardware that loses a page of it.
//   - Nothing is mapped that could keep us waiting or go elsewhere: it is memory by the kernel's word (memfd or tmpfs), open for reading and
//     writing, as long as it is said to be.
//   - It was all there when it was mapped: pages that the owner has never touched would be charged to us as we fill them.
//   - No descriptor is kept, and what was mapped is unmapped by Close, which waits for nobody: callers end their copies before.
package hostpool

import "errors"

// Errors of Open and of copies.
var (
	// ErrNotMemory says that the descriptor is no memfd and no file of a tmpfs.
	ErrNotMemory = errors.New("no memory: a memfd is wanted, or a file of a tmpfs")
	// ErrAccess says that the descriptor is not open for reading and writing, or sealed against writing.
	ErrAccess = errors.New("not open for reading and writing, or sealed against writing")
	// ErrSize says that the memory has fewer bytes than it is said to have, or none.
	ErrSize = errors.New("not as long as it is said to be")
	// ErrHoles says that part of the memory has never been touched.
	ErrHoles = errors.New("part of it is not there yet: touch every page before it is offered (fallocate, or MADV_POPULATE_WRITE)")
	// ErrGone says that bytes of the memory are not there any more: its owner has cut it short, or the machine has lost them. Of a Read
	// what it has filled is undefined, of a Write what it has written.
	ErrGone = errors.New("the memory is not there any more")
)
