//go:build linux

package manager

import (
	"sync/atomic"
	"testing"

	"github.com/perigee-llm/perigee/internal/cache/channel/client"
)

// TestRegisterBeside: an arena that goes for a newcomer takes its time to be given back, and meanwhile everybody but newcomers is served.
// Its bytes are the pool's again only when it has gone.
func TestRegisterBeside(t *testing.T) {
	closing, goOn := make(chan struct{}), make(chan struct{})
	var armed atomic.Bool
	m := begin(t, func(o *Options) {
		o.Instances, o.Admin = 2, "127.0.0.1:0"
		o.Pool.FailForTesting = func(step string) error {
			if step == "close" && armed.CompareAndSwap(true, false) {
				close(closing)
				<-goOn
			}
			return nil
		}
	})
	a, b := m.dial(named("a")), m.dial(named("b"), other(1))
	for _, s := range []*client.Session{a, b} {
		if _, err := publish(s, prompt(1, 0, 4)); err != nil {
			t.Fatal(err)
		}
	}
	b.Close()
	m.until("b gone", func(st Status) bool { return len(st.Sessions) == 1 })
	used := m.pool.Usage().Used
	armed.Store(true)
	dialed := make(chan error, 1)
	go func() {
		s, err := m.tryDial(named("c"), other(2))
		if err == nil {
			s.Close()
		}
		dialed <- err
	}()
	<-closing
	if n, err := restore(a, 1, 4); n != 4 || err != nil {
		t.Errorf("restored %d: %v", n, err)
	}
	if _, err := publish(a, prompt(2, 0, 4)); err != nil {
		t.Error(err)
	}
	if st := m.Status(); st.Pool.Used != used || len(st.Arenas) != 1 {
		t.Errorf("%d bytes of the pool are in use, %d before, in %d arenas", st.Pool.Used, used, len(st.Arenas))
	}
	close(goOn)
	if err := <-dialed; err != nil {
		t.Fatal(err)
	}
	a.Close()
	m.settled()
	if got := m.pool.Usage().Used; got != used {
		t.Errorf("%d bytes of the pool are in use, %d before", got, used)
	}
}

// other is an instance whose pages are of no use to others.
func other(n uint64) func(*client.Options) {
	return func(o *client.Options) { o.Ranks = namespaces(1, pageBytes+n) }
}
