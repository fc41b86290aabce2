package manager

import (
	"context"
	"sync/atomic"
	"time"
)

// quiet tells when nothing has been asked for a while, once until something is again. Moved may be called by anybody; Run is one goroutine's. With
// nothing to tell, or at rest, it wakes nobody up.
type quiet struct {
	tell  func() // nil: nobody wants to know
	moves atomic.Uint64
	awake atomic.Bool
	wake  chan struct{} // of one
}

// restAfter is how long nothing has to be asked for; restEvery is how long is between two times at least.
const restAfter, restEvery = 500 * time.Millisecond, 10 * time.Second

func newQuiet(tell func()) *quiet { return &quiet{tell: tell, wake: make(chan struct{}, 1)} }

// moved says that something was asked for.
func (q *quiet) moved() {
	if q.tell == nil {
		return
	}
	q.moves.Add(1)
	if !q.awake.Load() && q.awake.CompareAndSwap(false, true) {
		select {
		case q.wake <- struct{}{}:
		default: // it is about to look
		}
	}
}

// run tells until the context ends.
func (q *quiet) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	sleep := func(d time.Duration) bool {
		timer.Reset(d)
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
		}
		for still := false; !still; {
			last := q.moves.Load()
			if !sleep(restAfter) {
				return
			}
			if still = q.moves.Load() == last; still {
				q.awake.Store(false)           // what moves from here on wakes us again
				still = q.moves.Load() == last // and what has moved meanwhile did not
				q.awake.CompareAndSwap(false, !still)
			}
		}
		q.tell()
		if !sleep(restEvery) {
			return
		}
	}
}
