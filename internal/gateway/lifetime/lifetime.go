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
	hung  parent        // what it hangs on; nil: nothing, or by off
	off   func() bool   // takes it off a parent that is of another kind; nil: it hangs on none
	done  chan struct{} // nil: nobody has asked for it
	err   error
	cause error
	after []Ender
	room  [1]Ender // of after: most have one, the other side of a gateway
}

// Ender waits for an end. Ended must not block.
type Ender = interface{ Ended() }

// parent is what a Lifetime can be told of its end by without an object in between: another, or what has one in it.
type parent interface {
	OnEnd(e Ender)
	OffEnd(e Ender) (was bool)
}

// child is a Lifetime as its parent knows it.
type child Lifetime

// Ended implements Ender.
func (c *child) Ended() { (*Lifetime)(c).parentEnded() }

// hook is one function that waits for the end.
type hook struct{ f func() }

// Ended implements Ender.
func (h *hook) Ended() { h.f() }

var _ context.Context = (*Lifetime)(nil)

// over is what Done returns where nobody asked before the end.
var over = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Beside gives l the values of another context, but not its end.
func (l *Lifetime) Beside(values context.Context) { l.parent = values }

// Under gives l the values of another context, and has it end when that does, with its cause. End takes it off.
func (l *Lifetime) Under(ctx context.Context) {
	l.parent, l.under = ctx, true
	if ctx.Err() != nil { // at once: what looks at it before it begins must see it
		l.parentEnded()
		return
	}
	l.mu.Lock() // the parent may end at once, and then its call waits for this
	defer l.mu.Unlock()
	if p, ok := ctx.(parent); ok {
		l.hung = p
		p.OnEnd((*child)(l))
	} else {
		l.off = context.AfterFunc(ctx, l.parentEnded)
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
	h := &hook{f}
	l.OnEnd(h)
	return func() bool { return l.OffEnd(h) }
}

// OnEnd is AfterFunc for who has an object to be told by, and allocates nothing for the first. An Ender is comparable, and waits once.
func (l *Lifetime) OnEnd(e Ender) {
	l.mu.Lock()
	late := l.err != nil
	if !late {
		if l.after == nil {
			l.after = l.room[:0]
		}
		l.after = append(l.after, e)
	}
	l.mu.Unlock()
	if late {
		go e.Ended() // not here: the caller may hold a lock that it takes. It ends at once, as it does not block.
	}
}

// OffEnd takes e off again, and tells whether it was there: then it is never told.
func (l *Lifetime) OffEnd(e Ender) (was bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.after, e)
	if i < 0 {
		return false
	}
	l.after = slices.Delete(l.after, i, i+1)
	return true
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
	after, hung, off := l.after, l.hung, l.off
	l.after, l.hung, l.off = nil, nil, nil
	l.mu.Unlock()
	switch {
	case hung != nil:
		hung.OffEnd((*child)(l))
	case off != nil:
		off()
	}
	for _, e := range after {
		e.Ended()
	}
}
