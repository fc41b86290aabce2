package engine

import (
	"testing"
	"time"
)

// BenchmarkDecodeStep is a step of a full batch: 256 sequences that decode.
func BenchmarkDecodeStep(b *testing.B) {
	c, err := New(Config{MaxModelLen: 400_000})
	if err != nil {
		b.Fatal(err)
	}
	fill := func() {
		for i := range 256 {
			p := promptOf("0:64")
			p[0] = uint32(i)
			if err := c.Submit(c.clock, Request{ID: ID(i), Prompt: p, MaxTokens: 1000}); err != nil {
				b.Fatal(err)
			}
		}
	}
	var buf []Action
	for b.Loop() {
		at, ok := c.Next()
		if !ok {
			b.StopTimer()
			fill()
			b.StartTimer()
			at, _ = c.Next()
		}
		buf = c.Advance(at, buf[:0])
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/256, "ns/token")
}

// BenchmarkRequest is one request of the size of the Mooncake traces from Submit to its last token: 15,000 prompt tokens of which half
// are cached, 16 output tokens.
func BenchmarkRequest(b *testing.B) {
	c, err := New(Config{})
	if err != nil {
		b.Fatal(err)
	}
	prompt := promptOf("0:15000")
	var buf []Action
	var now time.Duration
	id := ID(0)
	for b.Loop() {
		prompt = append([]uint32(nil), prompt...)
		prompt[7500] = uint32(id)
		id++
		if err := c.Submit(now, Request{ID: id, Prompt: prompt, MaxTokens: 16}); err != nil {
			b.Fatal(err)
		}
		for at, ok := c.Next(); ok; at, ok = c.Next() {
			now = at
			buf = c.Advance(at, buf[:0])
		}
	}
}

// TestDecodeStepAllocations holds the budget of a decode step: nothing is allocated for a token. Blocks that fill add to
// the chain and the cache's map, so the budget is a mean over the steps of some blocks.
func TestDecodeStepAllocations(t *testing.T) {
	c, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 64 {
		p := promptOf("0:64")
		p[0] = uint32(i)
		if err := c.Submit(0, Request{ID: ID(i), Prompt: p, MaxTokens: 2000}); err != nil {
			t.Fatal(err)
		}
	}
	var buf []Action
	perStep := testing.AllocsPerRun(800, func() {
		at, _ := c.Next()
		buf = c.Advance(at, buf[:0])
	})
	// 64 sequences fill 4 blocks a step, each with one buffer for its tokens and now and then a longer chain.
	if perStep > 8 {
		t.Errorf("%v allocations a step of 64 tokens, want at most 8", perStep)
	}
}
