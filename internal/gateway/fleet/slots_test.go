package fleet

import "testing"

// TestSlotsAreUsedAgain holds that engines which come and go for weeks do not make every view larger.
func TestSlotsAreUsedAgain(t *testing.T) {
	r := NewRegistry(BreakerConfig{}, 0)
	r.Put(Spec{ID: "stays"})
	for range 100 {
		r.Put(Spec{ID: "comes and goes"})
		r.Remove("comes and goes")
	}
	if n := len(r.View().bySlot); n != 2 {
		t.Errorf("the view has %d slots after two engines were there at once, want 2", n)
	}
	if n := len(r.mu.departed); n > 1 {
		t.Errorf("%d departed engines at rest are remembered, at most the last", n)
	}
}
