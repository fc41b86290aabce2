// Package fingerprint says what a model or an adapter is by its content: one digest over the files of its directory. It is the thin
// shell around package state that reads disks.
//
// It promises:
//
//   - Equal digests mean equal artifacts under equal relative paths. Where the directory lies, what links lead to its files, and
//     when they were written makes no difference.
//   - What changes while it is read is an error and never a digest.
//   - A file is read once as long as it is the same file to the file system; a changed one is read again. A directory of 140 GB costs
//     a minute or more the first time, and some milliseconds after that.
//   - It reads regular files only and ends: loops of links, pipes, devices, and directories beyond the limits are refused by name.
//
// docs/cache-identity.md has the bytes, for other programs that compute the same.
package fingerprint

import "errors"

// Classes of errors. What the file system says comes wrapped as it is, such as fs.ErrNotExist.
var (
	// ErrChanged says that something changed while it was read. Asking again is right once whoever writes has ended.
	ErrChanged = errors.New("the files changed while they were read")
	// ErrLimits says that the directory has more files, entries, levels or bytes than the Limits.
	ErrLimits = errors.New("the directory is beyond the limits")
	// ErrUnsafe says that an artifact is no regular file, or that directories lead back to themselves.
	ErrUnsafe = errors.New("the directory cannot be read safely")
	// ErrEmpty says that there is no artifact: most likely it is another directory that was meant.
	ErrEmpty = errors.New("the directory has no artifacts")
	// ErrRevision says that a hub's revision is no full commit. A branch or tag names other files tomorrow.
	ErrRevision = errors.New("a revision is a commit of 40 hexadecimal digits")
)
