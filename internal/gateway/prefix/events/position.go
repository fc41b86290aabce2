package events

import "github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"

// StreamOf returns how the KV events of a rank are; false: they are not followed. It waits for the applier to have a moment, so what was
// applied before its return is in it.
func (f *Follower) StreamOf(no uint32, rank int32) (s stream.Status, ok bool) {
	f.mu.Lock()
	e := f.mu.engines[no]
	f.mu.Unlock()
	if e == nil {
		return s, false
	}
	e.mu.Lock()
	fd := e.feeds[rank]
	e.mu.Unlock()
	if fd == nil {
		return s, false
	}
	st, ok := fd.status()
	return st.Stream, ok
}
