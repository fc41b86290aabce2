package lifetime_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/perigee-llm/perigee/internal/gateway/lifetime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func under(parent context.Context) *lifetime.Lifetime {
	l := new(lifetime.Lifetime)
	l.Under(parent)
	return l
}

func beside(values context.Context) *lifetime.Lifetime {
	l := new(lifetime.Lifetime)
	l.Beside(values)
	return l
}

// TestLikeContext does the same to a Lifetime and to what package context has for it, under each kind of parent, and compares.
func TestLikeContext(t *testing.T) {
	type key struct{}
	type outcome struct {
		err, cause    error
		called, taken bool // what waited for the end was called; it could be taken off
	}
	why, late := errors.New("why"), errors.New("late")
	type parent struct {
		ctx context.Context
		end func()
	}
	for _, p := range []struct {
		name string
		make func(t *testing.T) parent
	}{
		{"package context's", func(t *testing.T) parent {
			ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, 1))
			return parent{ctx, func() { cancel(late) }}
		}},
		{"a deadline's", func(t *testing.T) parent {
			ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, 1), time.Hour)
			return parent{ctx, cancel}
		}},
		{"a Lifetime's", func(t *testing.T) parent {
			l := beside(context.WithValue(t.Context(), key{}, 1))
			return parent{l, func() { l.End(nil) }} // package context would not know its cause
		}},
	} {
		for _, do := range []struct {
			name                string
			early, self, parent bool
			cause               error
		}{
			{name: "nothing"}, {name: "the parent", parent: true}, {name: "itself", self: true, cause: why}, {name: "itself without a cause", self: true},
			{name: "itself, then the parent", self: true, parent: true, cause: why}, {name: "the parent before", early: true},
		} {
			t.Run(p.name+": "+do.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					one := func(begin func(context.Context) (context.Context, func(error))) outcome {
						par := p.make(t)
						defer par.end()
						if do.early {
							par.end()
						}
						ctx, end := begin(par.ctx)
						if ctx.Value(key{}) != 1 {
							t.Errorf("the parent's value is lost")
						}
						want, has := par.ctx.Deadline()
						if got, ok := ctx.Deadline(); got != want || ok != has {
							t.Errorf("deadline %v %v", got, ok)
						}
						var n atomic.Int32
						stop := context.AfterFunc(ctx, func() { n.Add(1) })
						derived, cancel := context.WithCancel(ctx)
						defer cancel()
						if do.self {
							end(do.cause)
						}
						if do.parent {
							par.end()
						}
						synctest.Wait()
						if (ctx.Err() != nil) != (derived.Err() != nil) {
							t.Errorf("%v, and what was derived %v", ctx.Err(), derived.Err())
						}
						select {
						case <-ctx.Done():
							if ctx.Err() == nil {
								t.Error("done without an error")
							}
						default:
							if ctx.Err() != nil {
								t.Error("an error without being done")
							}
						}
						o := outcome{ctx.Err(), lifetime.Cause(ctx), n.Load() == 1, stop()}
						end(nil)
						return o
					}
					want := one(func(p context.Context) (context.Context, func(error)) {
						ctx, cancel := context.WithCancelCause(p)
						return ctx, func(err error) { cancel(err) }
					})
					got := one(func(p context.Context) (context.Context, func(error)) {
						l := under(p)
						return l, l.End
					})
					if got != want {
						t.Errorf("%+v, package context %+v", got, want)
					}
				})
			})
		}
	}
}

// TestCause: a cause passes down to what is under, and is not taken for one's own.
func TestCause(t *testing.T) {
	why := errors.New("why")
	type outer struct{ lifetime.Lifetime }
	p := new(outer)
	p.Beside(t.Context())
	l := under(p)
	if lifetime.Cause(p) != nil || lifetime.Cause(l) != nil {
		t.Error("a cause before the end")
	}
	p.End(why)
	p.End(errors.New("again"))
	if lifetime.Cause(p) != why || lifetime.Cause(l) != why || l.Err() != context.Canceled {
		t.Errorf("%v, below %v, %v", lifetime.Cause(p), lifetime.Cause(l), l.Err())
	}
}

// TestLeavesNothing: one that has ended hangs on its parent no more, and what was taken off is not called.
func TestLeavesNothing(t *testing.T) {
	p := beside(t.Context())
	for range 3 {
		l := under(p)
		stop := l.AfterFunc(func() { t.Error("called") })
		if !stop() || stop() {
			t.Error("it can be taken off once")
		}
		l.End(nil)
	}
	calls := 0
	p.AfterFunc(func() { calls++ })
	p.End(nil)
	if p.End(nil); calls != 1 {
		t.Errorf("%d calls", calls)
	}
}

// TestAfterFuncLate: package context calls AfterFunc with the child's lock held, which the function takes. A request whose client left between
// context.WithCancel's look at the parent and that call held its connection and its goroutine for ever.
func TestAfterFuncLate(t *testing.T) {
	l := beside(t.Context())
	l.End(nil)
	var child sync.Mutex
	done := make(chan struct{})
	child.Lock()
	l.AfterFunc(func() {
		child.Lock()
		defer child.Unlock()
		close(done)
	})
	child.Unlock()
	<-done
}

// TestAtOnce: parent, child and what hangs on it end from all sides at once, and all is told once.
func TestAtOnce(t *testing.T) {
	for range 200 {
		p := beside(t.Context())
		called := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() { p.End(nil) })
		l := under(p)
		wg.Go(func() { l.End(errors.New("cause")) })
		wg.Go(func() { l.AfterFunc(func() { close(called) }) })
		wg.Go(func() { <-l.Done() })
		wg.Wait()
		<-called
		if lifetime.Cause(l) == nil || l.Err() == nil {
			t.Error("ended without a cause")
		}
	}
}

type ender struct{ calls int }

func (e *ender) Ended() { e.calls++ }

// TestOnEnd: who waits is told once, and not at all if it was taken off before.
func TestOnEnd(t *testing.T) {
	p := beside(t.Context())
	var stays, goes ender
	p.OnEnd(&stays)
	p.OnEnd(&goes)
	if !p.OffEnd(&goes) || p.OffEnd(&goes) {
		t.Error("it can be taken off once")
	}
	p.End(nil)
	if p.OffEnd(&stays) || stays.calls != 1 || goes.calls != 0 {
		t.Errorf("%d and %d calls", stays.calls, goes.calls)
	}
}

// TestAllocs: being put under the client's, and one that waits, cost a request's side nothing but the object itself.
func TestAllocs(t *testing.T) {
	p := beside(t.Context())
	var e ender
	if n := testing.AllocsPerRun(200, func() {
		l := under(p)
		l.OnEnd(&e)
		l.OffEnd(&e)
		l.End(nil)
	}); n > 1 {
		t.Errorf("%v allocations", n)
	}
}

// TestUnderWhatHasEnded: what is put under an end has ended when it is looked at, or a request would go out whose client has left.
func TestUnderWhatHasEnded(t *testing.T) {
	cause := errors.New("because")
	var up, down lifetime.Lifetime
	up.Beside(context.Background())
	up.End(cause)
	down.Under(&up)
	if !errors.Is(down.Err(), context.Canceled) || !errors.Is(lifetime.Cause(&down), cause) {
		t.Errorf("%v, %v", down.Err(), lifetime.Cause(&down))
	}
}
