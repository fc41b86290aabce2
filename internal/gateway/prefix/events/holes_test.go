package events_test

import (
	"bytes"
	"testing"
	"testing/synctest"

	"github.com/tinylib/msgp/msgp"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
)

// inOne is a batch of several events.
func inOne(events ...[]byte) []byte {
	b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), 1.5)
	b = append(msgp.AppendArrayHeader(b, uint32(len(events))), bytes.Join(events, nil)...)
	return msgp.AppendInt(b, 0)
}

// link is the event of a chain.
func link(first, blocks int, parent bool) []byte {
	b := chain(first, blocks, parent)
	return b[len(inOne())-1 : len(b)-1]
}

// named is an event with hashes alone.
func named(kind string, fields ...string) []byte {
	b := msgp.AppendString(msgp.AppendMapHeader(nil, uint32(2+len(fields)/2)), "type")
	b = msgp.AppendArrayHeader(msgp.AppendString(msgp.AppendString(b, kind), "block_hashes"), 1)
	b = msgp.AppendUint64(b, 77)
	for _, f := range fields {
		b = msgp.AppendString(b, f)
	}
	return b
}

// TestStoresThatAreNotFollowed: a stream is whole as long as all is followed that its engine stores. Then there is more than is claimed, until the
// engine holds nothing.
func TestStoresThatAreNotFollowed(t *testing.T) {
	cleared := msgp.AppendString(msgp.AppendArrayHeader(nil, 1), "AllBlocksCleared")
	sized := bytes.Replace(link(17, 1, true), append([]byte{16}, msgp.AppendNil(nil)...), append([]byte{8}, msgp.AppendNil(nil)...), 1)
	for name, c := range map[string]struct {
		events [][]byte
		whole  bool
	}{
		"nothing":                     {nil, true},
		"a parent that nobody knows":  {[][]byte{link(49, 1, true)}, true}, // a copy of it was said to be gone
		"a medium that nobody knows":  {[][]byte{bytes.Replace(link(17, 1, true), []byte("GPU"), []byte("TAP"), 1)}, false},
		"fields that do not fit":      {[][]byte{sized}, false},
		"a hash that nobody knows":    {[][]byte{named("BlockStored", "medium", "CPU")}, false},
		"no hashes":                   {[][]byte{msgp.AppendString(msgp.AppendArrayHeader(nil, 1), "BlockStored")}, false},
		"a removal of what is not":    {[][]byte{named("BlockRemoved")}, true},
		"a type that nobody knows":    {[][]byte{named("BlockMoved")}, true},
		"then it holds nothing":       {[][]byte{sized, cleared}, true},
		"when it has held nothing":    {[][]byte{cleared, sized}, false},
		"unreadable, then nothing":    {[][]byte{named("BlockStored", "medium", "TAP"), cleared}, true},
		"unreadable, when it had not": {[][]byte{cleared, named("BlockStored", "medium", "TAP"), link(1, 1, false)}, false},
	} {
		inWorld(t, events.Options{}, func(w *world) {
			store := local.New(local.Options{})
			e := newEngine(t, &w.net, "engine-1", "kv")
			target := w.target(1, prefixes, e.source(0))
			target.Open = func(rank int32) events.Claims {
				return store.Open(local.Engine{No: 1, Base: "m", Names: []string{"m"}}, rank)
			}
			w.follow(target)
			e.publishRaw(chain(1, 1, false), false)
			e.publishRaw(inOne(c.events...), false)
			synctest.Wait()
			var m prefix.Match
			if err := store.Lookup(t.Context(), &prefix.Query{Model: "m", Tokens: []uint32{1}}, &m); err != nil {
				t.Fatal(err)
			}
			s := w.f.Status()[0].Stream
			if s.State != stream.Exact || s.Whole != c.whole || m.IsBlind(1) == c.whole || !c.whole && s.PartWhy != stream.Unplaced {
				t.Errorf("%s: %+v, blind %v", name, s, m.IsBlind(1))
			}
			e.publishRaw(inOne(cleared), false)
			synctest.Wait()
			if s := w.f.Status()[0].Stream; !s.Whole {
				t.Errorf("%s: it holds nothing, and is %+v", name, s)
			}
			e.stop()
		})
	}
}
