package index

import (
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// Faults that other indexes were seen to have. Each test is one that must not be possible here.

// fleet is an index with exact engines, in blocks of 4 tokens.
type fleet struct {
	t       *testing.T
	ix      *Index
	engines []Holder
}

func newFleet(t *testing.T, engines int, c Config) *fleet {
	c.Model, c.BlockSize = "m", 4
	f := &fleet{t: t, ix: New(c)}
	for i := range engines {
		f.engines = append(f.engines, f.ix.Open(uint32(i), 0))
		f.ix.Mark(f.engines[i], Exact)
	}
	return f
}

// prompt makes the tokens of so many blocks. No two numbers share one.
func prompt(number, blocks int) []uint32 {
	tokens := make([]uint32, 4*blocks)
	for i := range tokens {
		tokens[i] = uint32(number<<16 + i)
	}
	return tokens
}

// event stores the blocks from..to of a prompt. Block i of prompt n has the hash n<<16+i+1.
func event(number, from, to int) *prefix.Event {
	e := &prefix.Event{Tokens: prompt(number, to)[4*from:], BlockSize: 4, Hashes: named(number, from, to)}
	if from > 0 {
		e.HasParent, e.Parent = true, prefix.Hash(number<<16+from)
	}
	return e
}

func named(number, from, to int) (hashes []prefix.Hash) {
	for i := from; i < to; i++ {
		hashes = append(hashes, prefix.Hash(number<<16+i+1))
	}
	return hashes
}

func (f *fleet) apply(engine int, e *prefix.Event, want Result) {
	f.t.Helper()
	if out := f.ix.Apply(f.engines[engine], e); out.Result != want {
		f.t.Errorf("engine %d: %+v, want %v", engine, out, want)
	}
}

// want tells how many blocks of a prompt an engine must be credited with.
func (f *fleet) want(number, blocks, engine, credited int) {
	f.t.Helper()
	var m prefix.Match
	f.ix.Lookup(&prefix.Query{Tokens: prompt(number, blocks)}, &m)
	if got := int(m.Of(uint32(engine)).Any()); got != 4*credited {
		f.t.Errorf("prompt %d on engine %d: %d tokens, want %d", number, engine, got, 4*credited)
	}
}

// Only the ten engines used last were kept of a prefix that 64 hold.
func TestFaultHotPrefixKeepsAFew(t *testing.T) {
	f := newFleet(t, 64, Config{})
	for e := range 64 {
		f.apply(e, event(1, 0, 8), Applied)
	}
	for e := range 64 {
		f.want(1, 8, e, 8)
	}
}

// One of sixteen events is lost: all behind it was dropped unseen. Here each says that it is an orphan, nothing is credited that cannot be
// known, and when the lost one comes again, all is there.
func TestFaultLostEventEndsTheChainUnseen(t *testing.T) {
	f := newFleet(t, 1, Config{})
	for i := range 16 {
		switch {
		case i < 3:
			f.apply(0, event(1, 32*i, 32*i+32), Applied)
		case i > 3:
			f.apply(0, event(1, 32*i, 32*i+32), Orphan)
		}
	}
	f.want(1, 512, 0, 96)
	for i := 3; i < 16; i++ { // replayed
		f.apply(0, event(1, 32*i, 32*i+32), Applied)
	}
	f.want(1, 512, 0, 512)
}

// An engine that was restarted kept its blocks.
func TestFaultRestartKeepsBlocks(t *testing.T) {
	f := newFleet(t, 2, Config{})
	f.apply(0, event(1, 0, 8), Applied)
	f.apply(1, event(1, 0, 8), Applied)
	f.ix.Withdraw(f.engines[0])
	f.want(1, 8, 0, 0)
	f.want(1, 8, 1, 8)
	f.apply(0, event(1, 8, 9), Orphan)
}

// Blocks behind a hole were counted.
func TestFaultHolesAreCounted(t *testing.T) {
	f := newFleet(t, 2, Config{})
	f.apply(0, event(1, 0, 100), Applied)
	f.apply(1, event(1, 0, 100), Applied)
	f.apply(1, &prefix.Event{Kind: prefix.Removed, Hashes: named(1, 0, 50)}, Applied)
	f.want(1, 100, 0, 100)
	f.want(1, 100, 1, 0)
}

// A prompt longer than an engine's bound left entries for ever.
func TestFaultLongPromptLeaks(t *testing.T) {
	f := newFleet(t, 1, Config{Limit: 50})
	f.apply(0, event(1, 0, 100), Exceeded)
	f.want(1, 100, 0, 0)
	for f.ix.Sweep(1000) {
	}
	if s := f.ix.Stats(); s != (Stats{}) {
		t.Errorf("%+v is left", s)
	}
}

// All blocks of one event were named as if each came first.
func TestFaultBlocksOfOneEventDoNotChain(t *testing.T) {
	f := newFleet(t, 1, Config{})
	f.apply(0, event(1, 0, 8), Applied)
	f.want(1, 8, 0, 8)
}

// An engine that evicted a block took it from all others.
func TestFaultEvictionHitsOthers(t *testing.T) {
	f := newFleet(t, 2, Config{})
	f.apply(0, event(1, 0, 8), Applied)
	f.apply(1, event(1, 0, 8), Applied)
	f.apply(1, &prefix.Event{Kind: prefix.Removed, Hashes: named(1, 0, 8)}, Applied)
	f.want(1, 8, 0, 8)
	f.want(1, 8, 1, 0)
}

// An engine with only the last of eight blocks had the whole prefix.
func TestFaultLastBlockCountsForAll(t *testing.T) {
	f := newFleet(t, 2, Config{})
	f.apply(0, event(1, 0, 8), Applied)
	f.apply(1, event(1, 0, 8), Applied)
	f.apply(1, &prefix.Event{Kind: prefix.Removed, Hashes: named(1, 0, 7)}, Applied)
	f.want(1, 8, 1, 0)
}

// After 10,000 blocks of one model nothing more was taken in, and nothing ever left.
func TestFaultModelFillsUp(t *testing.T) {
	f := newFleet(t, 4, Config{})
	for p := range 100 {
		f.apply(p%4, event(p+1, 0, 256), Applied)
	}
	for p := range 100 {
		f.want(p+1, 256, p%4, 256)
		f.apply(p%4, &prefix.Event{Kind: prefix.Removed, Hashes: named(p+1, 0, 256), AnyTier: true}, Applied)
	}
	if s := f.ix.Stats(); s != (Stats{}) {
		t.Errorf("%+v is left", s)
	}
}
