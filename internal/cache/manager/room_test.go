//go:build linux

package manager

import (
	"testing"

	"github.com/perigee-llm/perigee/internal/cache/channel/client"
	"github.com/perigee-llm/perigee/internal/cache/core"
)

// TestContinuedElsewhere: a block of another engine's that continues the last one of a full arena does not keep that arena full, neither while the engine
// is there nor when it has left and nothing of its own goes any more.
func TestContinuedElsewhere(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		m := begin(t, func(o *Options) { o.PoolBytes, o.Instances, o.Core.Budgets.Instance = 16*8192, 2, 16*8192 })
		a, b := m.dial(named("a")), m.dial(named("b"))
		if got, err := publish(a, prompt(1, 0, 8)); err != nil || got.Sealed != 8 {
			t.Fatal(got, err)
		}
		if got, err := publish(b, prompt(1, 0, 9)); err != nil || got.Sealed != 1 {
			t.Fatal(got, err)
		}
		if n, err := restore(b, 1, 9); n != 9 || err != nil {
			t.Fatal(n, err)
		}
		if leaves {
			b.Close()
			m.until("b is gone", func(st Status) bool { return len(st.Sessions) == 1 })
		}
		for p := range 5 {
			if got, err := publish(a, prompt(10+p, 0, 4)); err != nil || got.Sealed != 4 {
				t.Errorf("prompt %d finds no room: %+v, %v", p, got, err)
			}
			if n, err := restore(a, 10+p, 4); n != 4 || err != nil {
				t.Errorf("prompt %d: restored %d, %v", p, n, err)
			}
		}
		a.Close()
		b.Close()
		m.settled()
	}
}

// TestContinuedByAnotherTenant: a tenant at its bound publishes on when another one's block continues its last.
func TestContinuedByAnotherTenant(t *testing.T) {
	m := begin(t, func(o *Options) {
		o.Core.Scopes = map[core.Scope]core.ScopeBudget{1: {Resident: 8 * 8192}}
	})
	s := m.dial()
	one := func(p, blocks int, scope core.Scope) client.Published {
		pub := prompt(p, 0, blocks)
		pub.Scope = scope
		got, err := publish(s, pub)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	one(1, 8, 1)
	if got := one(1, 9, 2); got.Sealed != 1 || got.Present != 8 {
		t.Fatalf("%+v", got)
	}
	for p := range 5 {
		if got := one(10+p, 4, 1); got.Sealed != 4 {
			t.Errorf("prompt %d finds no room: %+v", p, got)
		}
	}
	if n, err := restore(s, 14, 4); n != 4 || err != nil {
		t.Errorf("restored %d: %v", n, err)
	}
	s.Close()
	m.settled()
}

// TestForgottenLeases: an engine that asks for the same blocks over and over and forgets its leases has its part of what queries may hold, and the
// others keep theirs.
func TestForgottenLeases(t *testing.T) {
	m := begin(t, func(o *Options) { o.Instances = 2 })
	a, b := m.dial(named("a"), func(o *client.Options) { o.QueryBytes = 1 << 40 }), m.dial(named("b"), other(1)) // it asks for more than it gets
	for p, s := range []*client.Session{a, b} {
		if _, err := publish(s, prompt(p, 0, 8)); err != nil {
			t.Fatal(err)
		}
	}
	leases := 0
	for range 20 {
		q := query(0, 8)
		q.WaitMicros = 1000
		if got, err := a.Query(t.Context(), q); err == nil && got.Lease != nil {
			leases++
		}
	}
	if leases != 3 { // 24 of the 48 blocks that queries may hold
		t.Errorf("%d leases on 8 blocks", leases)
	}
	if got, err := b.Query(t.Context(), query(1, 8)); err != nil || got.Lease == nil {
		t.Errorf("the other engine gets nothing: %+v, %v", got, err)
	}
}
