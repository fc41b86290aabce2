package index

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// The workload of the benchmarks: prompts of 8,192 tokens in blocks of 16, each on one engine or on several. With 2,048 prompts there are
// 1,048,576 different blocks.
const (
	w1Block   = 16
	w1Tokens  = 8192
	w1Blocks  = w1Tokens / w1Block
	w1Prompts = 2048
)

type w1 struct {
	engines, prompts, copies int
}

func (w w1) blocks() int { return w.prompts * w1Blocks }

func w1Prompt(p int) []uint32 {
	r := rand.New(rand.NewPCG(uint64(p), 1024))
	tokens := make([]uint32, w1Tokens)
	for i := range tokens {
		tokens[i] = uint32(r.IntN(150000))
	}
	return tokens
}

// each calls do for all that engines store, one event after the other: per blocks of a prompt in each. With own hashes no two engines
// have one for the same block.
func (w w1) each(per int, own bool, do func(engine int, e *prefix.Event)) {
	for p := range w.prompts {
		w.eachOf(p, per, own, do)
	}
}

// eachOf is each for one prompt.
func (w w1) eachOf(p, per int, own bool, do func(engine int, e *prefix.Event)) {
	tokens := w1Prompt(p)
	r := rand.New(rand.NewPCG(uint64(p), 7))
	same := make([]prefix.Hash, w1Blocks)
	for i := range same {
		same[i] = prefix.Hash(r.Uint64())
	}
	for j := range w.copies {
		hashes := same
		if own && j > 0 {
			hashes = slices.Clone(same)
			for i := range hashes {
				hashes[i] += prefix.Hash(j)
			}
		}
		for i := 0; i < w1Blocks; i += per {
			e := prefix.Event{Hashes: hashes[i : i+per], Tokens: tokens[i*w1Block : (i+per)*w1Block], BlockSize: w1Block}
			if i > 0 {
				e.HasParent, e.Parent = true, hashes[i-1]
			}
			do((p+7*j)%w.engines, &e)
		}
	}
}

// load returns an index that has been told all, and its holders.
func (w w1) load(per int, own bool) (*Index, []Holder) {
	ix := New(Config{Model: "m", BlockSize: w1Block})
	holders := make([]Holder, w.engines)
	for i := range holders {
		holders[i] = ix.Open(uint32(i), 0)
		ix.Mark(holders[i], Exact)
	}
	w.each(per, own, func(engine int, e *prefix.Event) {
		if out := ix.Apply(holders[engine], e); out.Result != Applied || out.Blocks != per {
			panic(out.Result.String())
		}
	})
	return ix, holders
}

// naive is an index as one writes it first: maps.
type naive struct {
	holders map[chain.Key]map[int]uint8
	aliases map[aliasKey]chain.Key
}

type aliasKey struct {
	engine int
	hash   prefix.Hash
}

func newNaive() *naive {
	return &naive{map[chain.Key]map[int]uint8{}, map[aliasKey]chain.Key{}}
}

func (n *naive) apply(engine int, e *prefix.Event) {
	at := chain.Root{Model: "m", BlockSize: w1Block}.Key()
	if e.HasParent {
		at = n.aliases[aliasKey{engine, e.Parent}]
	}
	for i, hash := range e.Hashes {
		at = at.Next(e.Tokens[i*w1Block:(i+1)*w1Block], nil)
		if n.holders[at] == nil {
			n.holders[at] = map[int]uint8{}
		}
		n.holders[at][engine] |= 1 << e.Tier
		n.aliases[aliasKey{engine, hash}] = at
	}
}

func (w w1) loadNaive() *naive {
	n := newNaive()
	w.each(w1Blocks, false, n.apply)
	return n
}

func (n *naive) lookup(tokens []uint32, into *prefix.Match) {
	into.Reset()
	depth := map[int]int{}
	at := chain.Root{Model: "m", BlockSize: w1Block}.Key()
	for i := 0; i+w1Block <= len(tokens); i += w1Block {
		at = at.Next(tokens[i:i+w1Block], nil)
		held := n.holders[at]
		more := false
		for engine := range held {
			if i == 0 || depth[engine] == i {
				depth[engine], more = i+w1Block, true
			}
		}
		if !more {
			break
		}
	}
	for engine, d := range depth {
		into.Held = append(into.Held, prefix.Held{Engine: uint32(engine), Depth: prefix.Depth{int32(d), int32(d), int32(d), int32(d)}})
	}
	slices.SortFunc(into.Held, func(a, b prefix.Held) int { return cmp.Compare(a.Engine, b.Engine) })
}

// score is what a policy does with a match: the deepest of the engines that it may choose from, which are all.
func score(m *prefix.Match) (best uint32) {
	deepest := int32(0)
	for i := range m.Held {
		if d := m.Held[i].Depth.Any(); d > deepest {
			best, deepest = m.Held[i].Engine, d
		}
	}
	return best
}
