package manager

import (
	"testing"

	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/chain"
)

// TestNames compares with package chain: two prompts with a common beginning in one message, a continuation, and what cannot be named.
func TestNames(t *testing.T) {
	toks := func(n uint32) []uint32 { return []uint32{n, n, n, n} }
	h := func(n byte) core.Hash { return core.Hash{n} }
	root := chain.Root{Model: "m", BlockSize: 4, Salt: "s"}.Key()
	a := root.Next(toks(1), nil)
	b, c := a.Next(toks(2), nil), a.Next(toks(3), []byte("image"))
	d := b.Next(toks(4), nil)
	msg := &wire.Publish{Root: wire.Root{Salt: "s"}, Blocks: []wire.Block{
		{Hash: h(1), Tokens: toks(1)},
		{Hash: h(2), Parent: h(1), Tokens: toks(2)},
		{Hash: h(3), Parent: h(1), Tokens: toks(3), Extra: []byte("image")}, // not the one before it
		{Hash: h(4), Parent: h(2), Tokens: toks(4)},
		{Hash: h(5), Parent: h(77), Tokens: toks(5)},          // of a parent that is not here
		{Hash: h(6), Parent: h(4), Tokens: []uint32{1}},       // not full
		{Hash: h(7), Parent: h(6), Tokens: toks(7)},           // behind one without a name
		{Group: 1, Hash: h(2), Parent: h(1), Tokens: toks(2)}, // another group continues the message's parent
		{Group: 1, Hash: h(9), Parent: h(2), Tokens: toks(1)}, //
	}}
	up := chain.Key{Lo: 5, Hi: 6}
	msg.ParentChain = up
	g1 := up.Next(toks(2), nil)
	want := []chain.Key{a, b, c, d, {}, {}, {}, g1, g1.Next(toks(1), nil)}
	var list namedBlocks
	list.name(msg, "m", 4)
	for i, got := range list.blocks {
		if got.Chain != want[i] {
			t.Errorf("block %d: %v, want %v", i, got.Chain, want[i])
		}
		if n := recordHead + 4*len(msg.Blocks[i].Tokens) + len(msg.Blocks[i].Extra); len(got.Identity) != n || got.Identity[0] != 1 {
			t.Errorf("block %d has a record of %d bytes, want %d", i, len(got.Identity), n)
		}
	}
}
