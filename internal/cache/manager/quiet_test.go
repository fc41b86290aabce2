//go:build linux

package manager

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestQuiet: who is at rest is told so once, and not too often.
func TestQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []time.Duration
		began := time.Now()
		q := newQuiet(func() {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, time.Since(began))
		})
		ctx, stop := context.WithCancel(context.Background())
		go q.run(ctx)
		until := func(at time.Duration, want ...time.Duration) {
			t.Helper()
			time.Sleep(at - time.Since(began))
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if len(told) != len(want) {
				t.Fatalf("after %v: told at %v, want %v", at, told, want)
			}
			for i := range want {
				if told[i] < want[i] || told[i] > want[i]+restAfter {
					t.Errorf("told at %v, want %v", told, want)
				}
			}
		}
		until(time.Hour) // nothing was ever asked for
		for range 100 {
			q.moved()
			time.Sleep(restAfter / 3)
		}
		first := time.Since(began)
		until(first+time.Minute, first)
		until(2*time.Hour, first)
		second := time.Since(began)
		q.moved()
		until(second+2*restAfter, first, second+restAfter)
		q.moved() // soon behind it: it has to wait
		until(second+restEvery, first, second+restAfter)
		until(second+restEvery+2*restAfter, first, second+restAfter, second+restAfter+restEvery)
		until(3*time.Hour, first, second+restAfter, second+restAfter+restEvery)
		stop()
	})
}
