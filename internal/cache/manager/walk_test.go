//go:build linux

package manager

import (
	"testing"

	"github.com/perigee-llm/perigee/internal/cache/channel/client"
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
)

// removalsBy counts the blocks that each step removes: a step has one time.
type removalsBy struct {
	at              core.Time
	now, most, each int
}

func (s *removalsBy) observe(at core.Time, a core.Action) {
	if _, removed := a.(*core.Removed); !removed {
		return
	}
	if at != s.at {
		s.at, s.now = at, 0
	}
	s.now++
	s.each++
	s.most = max(s.most, s.now)
}

// crowded is a Manager with two places for instances, each for more blocks than a step may drop, one of which is full.
func crowded(t *testing.T, blocks int) (m *tester, removed *removalsBy, full *client.Session) {
	removed = &removalsBy{}
	m = begin(t, func(o *Options) {
		o.Instances, o.PoolBytes, o.Admin, o.Observe = 2, uint64(2*blocks*8192), "127.0.0.1:0", removed.observe
	})
	full = m.dial(named("full"))
	for p := range blocks / 100 {
		if got, err := publish(full, prompt(p, 0, 100)); err != nil || got.Sealed != 100 {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	return m, removed, full
}

// TestWalks: what drops all blocks, or many, does it in parts between which others have their turn, and says how many have gone.
func TestWalks(t *testing.T) {
	const blocks = 3*walkMost/100*100 + 100
	for _, c := range []struct {
		what string
		do   func(m *tester) (told, want int64)
	}{
		{"flush", func(m *tester) (int64, int64) { return m.Flush(core.Namespace{}), blocks }},
		{"evict", func(m *tester) (int64, int64) { return m.Evict(2*walkMost + 7), 2*walkMost + 7 }},
		{"evict more than there are", func(m *tester) (int64, int64) { return m.Evict(1 << 40), blocks }},
	} {
		m, removed, _ := crowded(t, blocks)
		told, want := c.do(m)
		m.locked(func() {
			if told != want || int64(removed.each) != want || removed.most > walkMost {
				t.Errorf("%s: %d blocks, and it was said that %d, have gone, want %d; up to %d in one step, want %d", c.what, removed.each, told, want, removed.most, walkMost)
			}
		})
	}
}

// TestRegisterInstead: the blocks of an engine that has left go in parts for one of another kind; and none of them for one that is refused.
func TestRegisterInstead(t *testing.T) {
	const blocks = 2*walkMost/100*100 + 100
	m, removed, full := crowded(t, blocks)
	m.dial(named("b"), other(1))
	full.Close()
	m.until("full has left", func(st Status) bool { return len(st.Sessions) == 1 })
	if _, err := m.tryDial(named("b"), other(2)); client.ClassOf(err) != wire.ClassOf(core.InstanceBusy) {
		t.Fatalf("a name that is taken: %v", err)
	}
	m.locked(func() {
		if removed.each > 0 {
			t.Errorf("%d blocks have gone for an engine that was refused", removed.each)
		}
	})
	c := m.dial(named("c"), other(2))
	m.locked(func() {
		if removed.each != blocks || removed.most > walkMost {
			t.Errorf("%d blocks have gone, want %d; up to %d in one step, want %d", removed.each, blocks, removed.most, walkMost)
		}
	})
	if got, err := publish(c, prompt(1, 0, 4)); err != nil || got.Sealed != 4 {
		t.Errorf("%+v, %v", got, err)
	}
}
