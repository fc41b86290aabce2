//go:build linux

package manager

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/cache/channel/client"
	"github.com/perigee-llm/perigee/internal/script"
)

// TestStress: engines of one kind publish, ask, cancel, release, restore and leave, all at once, in a pool that holds a fraction of what they
// publish, while an operator flushes and evicts. Every page that is served is compared, and at the end nothing is held.
func TestStress(t *testing.T) {
	const engines = 3
	m := begin(t, func(o *Options) { o.Instances, o.PoolBytes = engines, engines*24*8192 })
	seed := script.Rand(t)
	var wg sync.WaitGroup
	errs := make(chan error, engines)
	for e := range engines {
		r := rand.New(rand.NewPCG(seed.Uint64(), uint64(e)))
		wg.Go(func() {
			if err := m.engine(r, fmt.Sprint("engine-", e)); err != nil {
				errs <- err
			}
		})
	}
	for range 40 {
		m.Evict(1)
		if seed.IntN(10) == 0 {
			m.Flush([32]byte{})
		}
		<-time.After(time.Millisecond)
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	m.settled()
}

// engine lives for some steps, and sometimes begins a new life.
func (m *tester) engine(r *rand.Rand, name string) error {
	var s *client.Session
	defer func() {
		if s != nil {
			s.Close()
		}
	}()
	served := 0
	for range 150 {
		if s == nil {
			var err error
			if s, err = m.tryDial(named(name)); err != nil {
				return err
			}
		}
		p, n := r.IntN(8), 1+r.IntN(8)
		switch r.IntN(10) {
		case 0:
			s.Close()
			s = nil
		case 1, 2, 3:
			if _, err := publish(s, prompt(p, 0, n)); err != nil {
				return fmt.Errorf("publish: %w", err)
			}
		case 4:
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			s.Query(ctx, query(p, n))
		case 5:
			if a, err := s.Query(context.Background(), query(p, n)); err != nil {
				return fmt.Errorf("query: %w", err)
			} else if a.Lease != nil {
				s.Release(a.Lease)
			}
		default:
			got, err := restore(s, p, n)
			// A lease on what was flushed meanwhile is refused: nothing of it may be used.
			if err != nil && client.ClassOf(err) == 0 {
				return fmt.Errorf("restore: %w", err)
			}
			served += got
		}
	}
	if served == 0 {
		return fmt.Errorf("%s restored nothing", name)
	}
	return nil
}
