package downstream

import (
	"context"
	"net/url"
	"slices"
	"sync"
	"time"
)

// life is the context of one request. It ends when the client leaves or the handler has returned. Contexts that are derived from it hang on it
// through AfterFunc, without a goroutine.
type life struct {
	base context.Context // of the connection, for values
	url  url.URL         // the request's, which lives as long

	mu    sync.Mutex
	done  chan struct{} // nil: nobody has asked for it
	err   error
	after []*hook
	first hook     // most requests have one: the context of the engine's side
	room  [1]*hook // of after
}

// hook is one function that waits for the end.
type hook struct{ f func() }

var _ context.Context = (*life)(nil)

// over is what Done returns where nobody asked before the end.
var over = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Deadline implements context.Context.
func (*life) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

// Value implements context.Context.
func (l *life) Value(key any) any { return l.base.Value(key) }

// Done implements context.Context.
func (l *life) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done == nil {
		if l.err != nil {
			return over
		}
		l.done = make(chan struct{})
	}
	return l.done
}

// Err implements context.Context.
func (l *life) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// AfterFunc is what package context looks for in a parent. f must not block.
func (l *life) AfterFunc(f func()) (stop func() bool) {
	l.mu.Lock()
	h := &l.first
	if h.f != nil { // used, perhaps taken off since
		h = new(hook)
	}
	h.f = f
	late := l.err != nil
	if !late {
		if l.after == nil {
			l.after = l.room[:0]
		}
		l.after = append(l.after, h)
	}
	l.mu.Unlock()
	if late {
		go f() // not here: package context holds the lock that f takes. It ends at once, as f does not block.
	}
	return func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		i := slices.Index(l.after, h)
		if i < 0 {
			return false
		}
		l.after = slices.Delete(l.after, i, i+1)
		return true
	}
}

// end ends it. Ending again does nothing.
func (l *life) end() {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err = context.Canceled
	if l.done != nil {
		close(l.done)
	}
	after := l.after
	l.after = nil
	l.mu.Unlock()
	for _, h := range after {
		h.f()
	}
}
