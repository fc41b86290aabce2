package events_test

import (
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
)

// nowhere are claims that are forgotten.
type nowhere struct{}

func (nowhere) Apply(e *prefix.Event) index.Outcome { return index.Outcome{Blocks: len(e.Hashes)} }
func (nowhere) Mark(index.State)                    {}
func (nowhere) Doubt()                              {}
func (nowhere) Withdraw()                           {}
func (nowhere) Settle()                             {}
func (nowhere) Close()                              {}

// TestABatchAllocatesNothing: from the socket's bytes to the index.
func TestABatchAllocatesNothing(t *testing.T) {
	apply := events.ForBenchmark(1, func(int32) events.Claims { return nowhere{} })
	p := chain(1, 32, false)
	if n := testing.AllocsPerRun(1000, func() { apply(0, p) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
