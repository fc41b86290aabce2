package wire

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tinylib/msgp/msgp"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/script"
)

// TestAgainstModel writes random events in every form that an engine may choose and reads them back.
func TestAgainstModel(t *testing.T) {
	rng := script.Rand(t)
	var d Decoder
	for range 500 {
		var want []prefix.Event
		payload, bad := randomBatch(rng, &want)
		if err := d.Begin(payload); err != nil {
			t.Fatalf("%x: %v", payload, err)
		}
		before := d.Bad[BadField]
		var got []prefix.Event
		for step := d.Next(); step != End; step = d.Next() {
			if step == Broken {
				t.Fatalf("%x: broken", payload)
			}
			if step == Event {
				got = append(got, clone(d.Event))
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%x\n%s", payload, diff)
		}
		if n := d.Bad[BadField] - before; n != uint64(bad) {
			t.Fatalf("%x: %d bad events, want %d", payload, n, bad)
		}
		most := 1 + rng.IntN(8)
		joined, events := readJoined(&d, payload, most)
		if diff := cmp.Diff(apart(want), apart(joined)); diff != "" || events != len(want) {
			t.Fatalf("%x joined up to %d: %d events, want %d\n%s", payload, most, events, len(want), diff)
		}
	}
}

// readJoined reads a batch with removals joined, and tells how many events it had.
func readJoined(d *Decoder, payload []byte, most int) (got []prefix.Event, events int) {
	if d.Begin(payload) != nil {
		return nil, 0
	}
	for step := d.Next(); step != End && step != Broken; step = d.Next() {
		if step == Event {
			events += 1 + d.Join(most)
			got = append(got, clone(d.Event))
		}
	}
	return got, events
}

// apart makes each removal of several blocks as many of one.
func apart(events []prefix.Event) (all []prefix.Event) {
	for _, e := range events {
		if e.Kind != prefix.Removed {
			all = append(all, e)
			continue
		}
		for i := range e.Hashes {
			one := e
			one.Hashes = e.Hashes[i : i+1]
			all = append(all, one)
		}
	}
	return all
}

// TestJoin: what stands behind a removal, and how much of it is joined to it.
func TestJoin(t *testing.T) {
	for name, c := range map[string]struct {
		batch string
		most  int
		want  int // hashes
		then  Step
	}{
		"one a block":    {`[0,[["BlockRemoved",[1],"GPU"],["BlockRemoved",[2],"GPU"],{"type":"BlockRemoved","block_hashes":[3,4]}]]`, 99, 2, Event},
		"at most":        {`[0,[["BlockRemoved",[1]],["BlockRemoved",[2,3]],["BlockRemoved",[4]]]]`, 2, 3, Event},
		"other tier":     {`[0,[["BlockRemoved",[1],"GPU"],["BlockRemoved",[2],"CPU"]]]`, 99, 1, Event},
		"other group":    {`[0,[["BlockRemoved",[1],"GPU",0],["BlockRemoved",[2],"GPU",1]]]`, 99, 1, Event},
		"nothing inside": {`[0,[["BlockRemoved",[1]],["BlockRemoved",[]],["BlockRemoved",[2]]]]`, 99, 2, End},
		"a store":        {`[0,[["BlockRemoved",[1]],["BlockStored",[2],null,[1],1],["BlockRemoved",[3]]]]`, 99, 1, Event},
		"a bad one":      {`[0,[["BlockRemoved",[1]],["BlockRemoved",7],["BlockRemoved",[3]]]]`, 99, 1, Lost},
		"the end":        {`[0,[["BlockRemoved",[1]],["BlockRemoved",[2]]],3]`, 99, 2, End},
	} {
		var d Decoder
		if err := d.Begin(fromJSON(t, c.batch)); err != nil {
			t.Fatal(name, err)
		}
		if s := d.Next(); s != Event {
			t.Fatal(name, s)
		}
		d.Join(c.most)
		if n := len(d.Event.Hashes); n != c.want {
			t.Errorf("%s: %d hashes, want %d", name, n, c.want)
		}
		if s := d.Next(); s != c.then {
			t.Errorf("%s: then step %d, want %d", name, s, c.then)
		}
	}
}

func clone(e prefix.Event) prefix.Event {
	e.Hashes, e.Tokens = slices.Clone(e.Hashes), slices.Clone(e.Tokens)
	if e.Extras != nil {
		extras := make([][]byte, len(e.Extras))
		for i, x := range e.Extras {
			extras[i] = slices.Clone(x)
		}
		e.Extras = extras
	}
	return e
}

func randomBatch(rng *rand.Rand, want *[]prefix.Event) (payload []byte, bad int) {
	n := rng.IntN(6)
	var events []byte
	for range n {
		if rng.IntN(8) == 0 {
			events = append(events, fuzzText(rng, `{"type":"BlockStored","block_hashes":7}`, `["BlockStored",[1],null,["x"],1]`)...)
			bad++
			continue
		}
		e := randomEvent(rng)
		if last := len(*want) - 1; e.Kind == prefix.Removed && last >= 0 && (*want)[last].Kind == prefix.Removed && rng.IntN(2) == 0 {
			hashes := e.Hashes
			e = (*want)[last] // but for its hashes: they can be joined
			e.Hashes = hashes
		}
		*want = append(*want, e)
		events = append(events, encode(rng, &e)...)
	}
	if rng.IntN(2) == 0 {
		payload = msgp.AppendMapHeader(nil, 2)
		payload = append(msgp.AppendArrayHeader(msgp.AppendString(payload, "events"), uint32(n)), events...)
		return msgp.AppendFloat64(msgp.AppendString(payload, "ts"), 1.5), bad
	}
	payload = msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), 1.5)
	payload = append(msgp.AppendArrayHeader(payload, uint32(n)), events...)
	return msgp.AppendInt(payload, 0), bad
}

func randomEvent(rng *rand.Rand) prefix.Event {
	e := prefix.Event{Kind: prefix.EventKind(rng.IntN(3))}
	if e.Kind == prefix.Cleared {
		return e
	}
	for range 1 + rng.IntN(40) {
		e.Hashes = append(e.Hashes, prefix.Hash(rng.Uint64()|1))
	}
	e.Tier, e.Group = prefix.Tier(rng.IntN(int(prefix.Tiers))), rng.IntN(3)
	if e.Kind == prefix.Removed {
		if rng.IntN(4) == 0 {
			e.Tier, e.AnyTier = prefix.Device, true
		}
		return e
	}
	e.BlockSize = 1 + rng.IntN(20)
	for range len(e.Hashes) * e.BlockSize {
		e.Tokens = append(e.Tokens, uint32(rng.Uint64()>>(32+rng.IntN(32))))
	}
	if rng.IntN(2) == 0 {
		e.Parent, e.HasParent = prefix.Hash(rng.Uint64()|1), true
	} else if rng.IntN(2) == 0 {
		e.Salt = "tenant"
	}
	if rng.IntN(2) == 0 {
		e.LoRA = "adapter"
	}
	if rng.IntN(3) == 0 {
		e.Extras = make([][]byte, len(e.Hashes))
		x := append([]byte("a\x02\x00\x00\x00s\x03\x00\x00\x00imgi"), 0, 0, 0, 0, 0, 0, 0, 0)
		binary.LittleEndian.PutUint32(x[len(x)-8:], rng.Uint32())
		e.Extras[rng.IntN(len(e.Extras))] = x
	}
	return e
}

// encode writes an event as a map or an array, its numbers and hashes in one of their forms.
func encode(rng *rand.Rand, e *prefix.Event) []byte {
	asBytes, bigrams := rng.IntN(3) == 0, rng.IntN(3) == 0
	hash := func(b []byte, h prefix.Hash) []byte {
		switch {
		case asBytes:
			return msgp.AppendBytes(b, binary.BigEndian.AppendUint64(bytes.Repeat([]byte{7}, 24), uint64(h)))
		case rng.IntN(2) == 0:
			return msgp.AppendInt64(b, int64(h))
		}
		return msgp.AppendUint64(b, uint64(h))
	}
	hashes := msgp.AppendArrayHeader(nil, uint32(len(e.Hashes)))
	for _, h := range e.Hashes {
		hashes = hash(hashes, h)
	}
	tokens := msgp.AppendArrayHeader(nil, uint32(len(e.Tokens)))
	for _, v := range e.Tokens {
		if bigrams {
			tokens = msgp.AppendArrayHeader(tokens, 2)
			tokens = msgp.AppendUint32(tokens, v)
		}
		tokens = msgp.AppendUint32(tokens, v)
	}
	parent := msgp.AppendNil(nil)
	if e.HasParent {
		parent = hash(nil, e.Parent)
	}
	medium := msgp.AppendString(nil, map[prefix.Tier]string{prefix.Device: "GPU", prefix.Host: "CPU", prefix.Disk: "DISK", prefix.External: "EXTERNAL"}[e.Tier])
	if e.AnyTier {
		medium = msgp.AppendNil(nil)
	}
	size, group := msgp.AppendInt(nil, e.BlockSize), msgp.AppendInt(nil, e.Group)
	null := msgp.AppendNil(nil)
	lora := null
	if e.LoRA != "" {
		lora = msgp.AppendString(nil, e.LoRA)
	}
	type kv struct {
		key   string
		value []byte
	}
	list := []kv{{"type", msgp.AppendString(nil, [...]string{"BlockStored", "BlockRemoved", "AllBlocksCleared"}[e.Kind])}}
	switch e.Kind {
	case prefix.Removed:
		list = append(list, kv{"block_hashes", hashes}, kv{"medium", medium}, kv{"group_idx", group})
	case prefix.Stored:
		list = append(list, kv{"block_hashes", hashes}, kv{"parent_block_hash", parent}, kv{"token_ids", tokens}, kv{"block_size", size},
			kv{"lora_id", null}, kv{"medium", medium}, kv{"lora_name", lora}, kv{"extra_keys", encodeExtras(e)}, kv{"group_idx", group})
	}
	var out []byte
	if rng.IntN(2) == 0 {
		out = msgp.AppendArrayHeader(nil, uint32(len(list)))
		for _, f := range list {
			out = append(out, f.value...)
		}
		return out
	}
	rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	out = msgp.AppendMapHeader(nil, uint32(len(list)))
	for _, f := range list {
		out = append(msgp.AppendString(out, f.key), f.value...)
	}
	return out
}

func encodeExtras(e *prefix.Event) []byte {
	if e.Extras == nil && e.Salt == "" && e.LoRA == "" {
		return msgp.AppendNil(nil)
	}
	out := msgp.AppendArrayHeader(nil, uint32(len(e.Hashes)))
	for i := range e.Hashes {
		var keys []byte
		n := uint32(0)
		if e.LoRA != "" {
			keys, n = msgp.AppendString(keys, e.LoRA), n+1
		}
		if e.Extras != nil && e.Extras[i] != nil {
			x := e.Extras[i]
			keys, n = msgp.AppendString(msgp.AppendArrayHeader(keys, 2), "img"), n+1
			keys = msgp.AppendUint64(keys, binary.LittleEndian.Uint64(x[len(x)-8:]))
		}
		if e.Salt != "" && i == 0 {
			keys, n = msgp.AppendString(keys, e.Salt), n+1
		}
		out = append(msgp.AppendArrayHeader(out, n), keys...)
	}
	return out
}

func fuzzText(rng *rand.Rand, choices ...string) []byte {
	return fromJSON(panics{}, choices[rng.IntN(len(choices))])
}

// panics stands for a test where there is none.
type panics struct{ testing.TB }

func (panics) Helper()                           {}
func (panics) Fatalf(format string, args ...any) { panic(format) }
