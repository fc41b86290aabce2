package client

import "golang.org/x/sys/unix"

// keepFromChildren keeps a mapping out of forked children: they would outlive the process that the Manager waits for.
func keepFromChildren(mem []byte) { unix.Madvise(mem, unix.MADV_DONTFORK) }
