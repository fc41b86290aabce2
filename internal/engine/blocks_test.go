package engine

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/script"
)

// blocksOf gives r's prompt by hashes, as a trace would.
func blocksOf(c *Core, r Request) Request {
	chain := c.Chain(r, nil)
	if rest := len(r.Prompt) % c.cfg.BlockSize; rest > 0 {
		last := c.root
		if n := len(chain); n > 0 {
			last = chain[n-1]
		}
		chain = append(chain, last.next(r.Prompt[len(r.Prompt)-rest:]))
	}
	return Request{ID: r.ID, Blocks: chain, Length: len(r.Prompt), MaxTokens: r.MaxTokens}
}

// TestBlocksStandForTokens runs one engine on prompts and another on their hashes: the same must happen at the same times, down
// to preemptions and evictions.
func TestBlocksStandForTokens(t *testing.T) {
	rng := script.Rand(t)
	for range 40 {
		cfg := Config{BlockSize: 1 + rng.IntN(8), KVBlocks: 24 + rng.IntN(40), MaxRunning: 1 + rng.IntN(6), MaxBatchTokens: 16, KVEvents: true}
		a, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := New(cfg)
		compareCores(t, rng, a, b)
	}
}

func compareCores(t *testing.T, rng *rand.Rand, a, b *Core) {
	now := time.Duration(0)
	for id := range ID(120) {
		// The prompts are made of few pieces, so that they share beginnings, and often are the same.
		r := Request{ID: id, MaxTokens: 1 + rng.IntN(20)}
		for range 1 + rng.IntN(3) {
			piece := rng.IntN(3)
			r.Prompt = append(r.Prompt, promptOf([]string{"0:9", "20:25", "40:47"}[piece])...)
		}
		errA, errB := a.Submit(now, r), b.Submit(now, blocksOf(b, r))
		if !reflect.DeepEqual(errA, errB) {
			t.Fatalf("request %d: %v with tokens, %v with hashes", id, errA, errB)
		}
		now += time.Duration(rng.IntN(200)) * time.Millisecond
		gotA, gotB := outline(a.Advance(now, nil)), outline(b.Advance(now, nil))
		if !reflect.DeepEqual(gotA, gotB) {
			t.Fatalf("by request %d:\n%v with tokens\n%v with hashes", id, gotA, gotB)
		}
		if la, lb := a.Load(), b.Load(); la != lb {
			t.Fatalf("by request %d:\n%+v with tokens\n%+v with hashes", id, la, lb)
		}
	}
}

// outline is what must be equal of the actions: not the answer's tokens, which come from another seed, nor the hashes of the
// blocks that hold them.
func outline(actions []Action) []Action {
	for i := range actions {
		actions[i].Token = 0
		if e := actions[i].Event; e != nil {
			actions[i].Event = &KVEvent{Kind: e.Kind, Hashes: make([]BlockHash, len(e.Hashes)), HasParent: e.HasParent, BlockSize: e.BlockSize}
		}
	}
	return actions
}

func TestBlocksThatDoNotFit(t *testing.T) {
	c, err := New(Config{BlockSize: 4})
	if err != nil {
		t.Fatal(err)
	}
	two := []BlockHash{{1, 1}, {2, 2}}
	for _, x := range []struct {
		name string
		r    Request
		want error
	}{
		{"too short", Request{Blocks: two, Length: 4}, ErrBlocks},
		{"too long", Request{Blocks: two, Length: 9}, ErrBlocks},
		{"negative", Request{Blocks: two, Length: -8}, ErrBlocks},
		{"tokens too", Request{Blocks: two, Length: 8, Prompt: promptOf("0:8")}, ErrBlocks},
		{"nothing", Request{Blocks: []BlockHash{}}, ErrEmptyPrompt},
		{"fits", Request{Blocks: two, Length: 5}, nil},
	} {
		if err := c.Submit(0, x.r); !errors.Is(err, x.want) {
			t.Errorf("%s: error %v, want %v", x.name, err, x.want)
		}
	}
}

// TestAnswersBehindHashesDiffer: two prompts that share their full blocks and differ in the begun one share no block that the
// answer completes.
func TestAnswersBehindHashesDiffer(t *testing.T) {
	c, err := New(Config{BlockSize: 4, MaxBatchTokens: 256})
	if err != nil {
		t.Fatal(err)
	}
	for i, last := range []BlockHash{{7, 7}, {8, 8}, {7, 7}} {
		if err := c.Submit(c.clock, Request{ID: ID(i), Blocks: []BlockHash{{1, 1}, last}, Length: 6, MaxTokens: 8}); err != nil {
			t.Fatal(err)
		}
		for at, ok := c.Next(); ok; at, ok = c.Next() {
			c.Advance(at, nil)
		}
	}
	// Of 6 and 7 tokens (the last one's KV is never computed) there are 3 full blocks: the shared one, and two of each answer.
	if got := c.Load().CachedBlocks; got != 5 {
		t.Errorf("%d blocks are cached, want 5", got)
	}
	if got := c.Cached([]BlockHash{{1, 1}, {7, 7}}); got != 1 {
		t.Errorf("%d blocks of the prompt are cached, want 1: the other one is not full", got)
	}
}
