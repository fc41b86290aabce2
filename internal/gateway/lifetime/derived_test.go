package lifetime

import (
	"context"
	"testing"
)

// TestDerivedContexts: what hangs on a Lifetime ends with it, by whichever end, and no sooner.
func TestDerivedContexts(t *testing.T) {
	l := new(Lifetime)
	l.Beside(t.Context())
	a, stopA := context.WithCancel(l)
	b, stopB := context.WithCancelCause(a)
	c, stopC := context.WithCancel(l)
	defer stopB(nil)
	defer stopA()
	stopC()
	if len(l.after) != 1 {
		t.Errorf("%d functions wait; one was taken off", len(l.after)-1)
	}
	fired := make(chan struct{})
	stop := context.AfterFunc(b, func() { close(fired) })
	never := context.AfterFunc(l, func() { t.Error("a function that was taken off was called") })
	if !never() || never() {
		t.Error("it was taken off, once")
	}
	if b.Err() != nil || l.Err() != nil {
		t.Error("too soon")
	}
	done := l.Done()
	l.End(nil)
	l.End(nil)
	<-done
	<-a.Done()
	<-fired
	if stop() || c.Err() == nil || b.Err() == nil || l.Err() == nil {
		t.Error("not all of them ended")
	}
	late, cancel := context.WithCancel(l)
	defer cancel()
	<-late.Done()
	<-(&Lifetime{err: context.Canceled}).Done()
}
