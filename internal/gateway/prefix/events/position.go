package events

import "github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"

// StreamOf returns how the KV events of a rank are; false: they are not followed. It waits until nothing of what was decided is left undone: the
// claims are then those of all batches before [stream.Status.Next]. In a long batch, or while batches that a repair was awaited for are
// applied, that is some turns of the rank's feed, so some tens of milliseconds.
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
	return fd.position()
}

// position asks the applier how the stream is when the feed does not pause. It is false when the feed has ended.
func (f *feed) position() (s stream.Status, ok bool) {
	answered := make(chan struct{})
	if !f.applier.call(func() {
		f.whenDone(func() {
			s, ok = f.m.Status(), !f.ended
			close(answered)
		})
	}) {
		return s, false
	}
	<-answered // the applier outlives its feeds
	return s, ok
}

// whenDone calls what in the applier's goroutine, at once or when the feed pauses no more: what the machine has decided it takes for done, and
// somebody who copied claims in a pause would have some that the rest of a batch removes, and believe that they are of the time after it.
func (f *feed) whenDone(what func()) {
	if f.awaited = append(f.awaited, what); !f.paused() {
		f.tellDone()
	}
}

// tellDone calls those who wait. Each has a caller who waits, so they are no more than these.
func (f *feed) tellDone() {
	all := f.awaited
	f.awaited = nil
	for _, what := range all {
		what()
	}
}
