package fingerprint

import (
	"io/fs"
	"syscall"
	"time"
)

// readFlags keep an open from waiting, should the file have become a pipe since it was looked at.
const readFlags = syscall.O_NONBLOCK

// identify tells which file, in which state, info is of. Every write changes the ctime, which nobody can set back, unless two fall in one
// tick of the file system's clock: see settled.
func identify(info fs.FileInfo) identity {
	id := identity{size: info.Size(), mtime: info.ModTime().UnixNano()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		id.device, id.inode = uint64(st.Dev), st.Ino
		id.ctime, id.sure = time.Unix(st.Ctim.Unix()).UnixNano(), true
	}
	return id
}
