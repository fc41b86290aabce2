package prefix

import (
	"math"
	"sync"
	"testing"
	"time"
)

func TestRestore(t *testing.T) {
	now := time.Unix(1000, 0)
	good := CostRecord{Fixed: 0.5, PerToken: 0.001, Samples: 1, At: now.Add(-CostFreshness)}
	if s, ok := good.Restore(500, now); !ok || s != 1 {
		t.Errorf("%v %v", s, ok)
	}
	uncertain := good
	uncertain.Error = 0.5
	if s, ok := uncertain.Restore(500, now); !ok || s != 1.5 {
		t.Errorf("%v %v", s, ok)
	}
	for name, change := range map[string]func(*CostRecord){
		"old": func(c *CostRecord) { c.At = c.At.Add(-1) }, "no samples": func(c *CostRecord) { c.Samples = 0 },
		"negative fixed": func(c *CostRecord) { c.Fixed = -1 }, "negative token": func(c *CostRecord) { c.PerToken = -1e-9 },
		"negative error": func(c *CostRecord) { c.Error = -0.1 }, "infinite": func(c *CostRecord) { c.Fixed = math.Inf(1) },
		"no number": func(c *CostRecord) { c.PerToken = math.NaN() }, "no number for an error": func(c *CostRecord) { c.Error = math.NaN() },
	} {
		c := good
		change(&c)
		if s, ok := c.Restore(500, now); ok {
			t.Errorf("%s: %v", name, s)
		}
	}
}

func TestCosts(t *testing.T) {
	var none *Costs
	if none.Of(1) != ([Tiers]CostRecord{}) {
		t.Error("nobody knows something")
	}
	var c Costs
	var wg sync.WaitGroup
	source := c.Source()
	for i := range uint32(4) {
		wg.Go(func() {
			for n := range 100 {
				c.Set(source, i, Host, CostRecord{Samples: n})
				c.Set(source, i, Tier(200), CostRecord{Samples: n})
				c.Of(3 - i)
			}
		})
	}
	wg.Wait()
	c.Forget(2)
	if c.Of(1)[Host].Samples != 99 || c.Of(1)[Disk].Samples != 0 || c.Of(2) != ([Tiers]CostRecord{}) {
		t.Errorf("%+v", c.engines)
	}
}

// TestCostSources: what one Manager says of an engine is nothing of another's, and together they are believed where they are dear.
func TestCostSources(t *testing.T) {
	var c Costs
	at := time.Unix(1000, 0)
	one, other := c.Source(), c.Source()
	cheap := CostRecord{Fixed: 0.1, PerToken: 0.002, Samples: 9, At: at}
	dear := CostRecord{Fixed: 0.5, PerToken: 0.001, Samples: 3, Error: 0.2, At: at.Add(time.Second)}
	want := func(what string, r CostRecord) {
		t.Helper()
		if got := c.Of(7)[Host]; got != r {
			t.Errorf("%s: %+v, want %+v", what, got, r)
		}
	}
	if c.Changes() != 0 {
		t.Error("changed before anything was said")
	}
	c.Set(one, 7, Host, cheap)
	want("one", cheap)
	if c.Changes() != 1 {
		t.Errorf("%d changes", c.Changes())
	}
	c.Set(other, 7, Host, dear)
	want("both", CostRecord{Fixed: 0.5, PerToken: 0.002, Samples: 3, Error: 0.2, At: dear.At})
	c.Withdraw(other, 7)
	want("the other has gone", cheap)
	before := c.Changes()
	c.Withdraw(other, 8)
	want("and of another engine", cheap)
	if c.Changes() != before {
		t.Error("nothing taken back is a change")
	}
	c.Set(other, 7, Host, dear)
	c.Set(one, 7, Host, CostRecord{})
	want("one knows nothing any more", dear)
	c.Set(one, 7, Host, cheap)
	dear.At = at.Add(CostFreshness + 1)
	c.Set(other, 7, Host, dear)
	want("one is old", dear)
	c.Withdraw(one, 7)
	c.Withdraw(other, 7)
	want("both have gone", CostRecord{})
	if len(c.engines) != 0 {
		t.Error("something is kept of an engine that nobody speaks of")
	}
}
