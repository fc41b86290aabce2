// Package lifetime has the contexts of what a gateway does for one request. Package context's would take for each request two contexts, a channel, a
// map and some closures, since a request of a client and the one to an engine hang on each other and have to be told of an end; here each is one
// object, and whoever waits for its end hangs on it through AfterFunc, without a goroutine.
package lifetime

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Lifetime is a context that ends once, by [Lifetime.End], or with the one that it is [Lifetime.Under]. It must have been put under or beside another
// context before it is used, and must not be copied after that. From then on any goroutine may call its methods.
type Lifetime struct {
	parent context.Context // has the values
	under  bool            // and its end is this one's

	mu    sync.Mutex
	off   func() bool   // takes it off the parent; nil: it hangs on none
	done  chan struct{} // nil: nobody has asked for it
	err   error
	cause error
	after []*hook
	first hook     // most have one: the other side of a gateway
	room  [1]*hook // of after
}

// hook is one function that waits for the end.
type hook struct{ f func() }

var _ context.Context = (*Lifetime)(nil)

// over is what Done returns where nobody asked before the end.
var over = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// afterFuncer is what package context looks for in a parent, too.
type afterFuncer interface {
	AfterFunc(f func()) (stop func() bool)
}

// Beside gives l the values of another context, but not its end.
func (l *Lifetime) Beside(values context.Context) { l.parent = values }

// Under gives l the values of another context, and has it end when that does, with its cause. End takes it off.
func (l *Lifetime) Under(parent context.Context) {
	l.parent, l.under = parent, true
	if parent.Err() != nil { // at once: what looks at it before it begins must see it
		l.parentEnded()
		return
	}
	l.mu.Lock() // the parent may end at once, and then its call waits for this
	defer l.mu.Unlock()
	if p, ok := parent.(afterFuncer); ok {
		l.off = p.AfterFunc(l.parentEnded)
	} else {
		l.off = context.AfterFunc(parent, l.parentEnded)
	}
}

func (l *Lifetime) parentEnded() { l.end(l.parent.Err(), Cause(l.parent)) }

// Deadline implements context.Context.
func (l *Lifetime) Deadline() (deadline time.Time, ok bool) {
	if l.under {
		return l.parent.Deadline()
	}
	return time.Time{}, false
}

// Value implements context.Context.
func (l *Lifetime) Value(key any) any { return l.parent.Value(key) }

// Done implements context.Context.
func (l *Lifetime) Done() <-chan struct{} {
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
func (l *Lifetime) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Cause returns why a context ended, as context.Cause does, which does not know a Lifetime's. It is nil while the context has not ended.
func Cause(ctx context.Context) error {
	if l, ok := ctx.(interface{ because() error }); ok { // also what has one in it
		return l.because()
	}
	return context.Cause(ctx)
}

func (l *Lifetime) because() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// AfterFunc has f called once when l ends, at once if it has, and returns what takes it off again: true if f is then never called. f must not
// block.
func (l *Lifetime) AfterFunc(f func()) (stop func() bool) {
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
		go f() // not here: the caller may hold a lock that f takes. It ends at once, as f does not block.
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

// End ends l with context.Canceled, for a cause; nil: there is none but that. Ending again does nothing.
func (l *Lifetime) End(cause error) { l.end(context.Canceled, cause) }

func (l *Lifetime) end(err, cause error) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	if cause == nil {
		cause = err
	}
	l.err, l.cause = err, cause
	if l.done != nil {
		close(l.done)
	}
	after, off := l.after, l.off
	l.after, l.off = nil, nil
	l.mu.Unlock()
	if off != nil {
		off()
	}
	for _, h := range after {
		h.f()
	}
}
