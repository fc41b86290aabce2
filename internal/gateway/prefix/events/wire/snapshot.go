package wire

import "errors"

// ErrSnapshot means that a message is no header of a snapshot.
var ErrSnapshot = errors.New("a broken snapshot's header")

// SnapshotHeader is what a Manager says of its snapshot: the incarnation that it is of, the first live batch that is not in it, and how many
// events its chunks have.
type SnapshotHeader struct{ Epoch, Resume, Records uint64 }

// ParseSnapshotHeader reads one. The only error is [ErrSnapshot].
func ParseSnapshotHeader(payload []byte) (h SnapshotHeader, err error) {
	r := reader{b: payload}
	n, ok := r.object()
	resumed, counted := false, false
	for ; ok && n > 0; n-- {
		key, _, isText := r.text()
		switch {
		case !isText:
			ok = false
		case string(key) == "epoch":
			h.Epoch, ok = r.count()
		case string(key) == "resume":
			h.Resume, ok = r.count()
			resumed = ok
		case string(key) == "records":
			h.Records, ok = r.count()
			counted = ok
		default:
			ok = r.skip(1)
		}
	}
	// Numbers of batches are positive where they are signed too.
	if !ok || !resumed || !counted || h.Epoch == 0 || h.Resume > 1<<62 || h.Resume == 0 && h.Records > 0 {
		return SnapshotHeader{}, ErrSnapshot
	}
	return h, nil
}

// ManagerEpoch returns the incarnation that a Manager's batch is of, without reading its events; false for what is no batch.
func ManagerEpoch(payload []byte) (uint64, bool) {
	var d ManagerDecoder
	if d.Begin(payload) != nil {
		return 0, false
	}
	return d.Head.Epoch, true
}
