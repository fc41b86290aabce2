package wire

import (
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// FuzzDecoder holds what is true of whatever comes out of a payload, and that a decoder reads the same with and without a past.
func FuzzDecoder(f *testing.F) {
	for _, name := range []string{"vllm_0.32.0.json", "sglang_0.5.23.json", "sglang_0.5.23_engine.json"} {
		for i, p := range captured(f, name) {
			f.Add(p)
			f.Add(p[:len(p)-1-i%len(p)/2])
		}
	}
	for _, s := range []string{
		`[0,[["BlockStored",[1,2],9,[1,2,3,4],2,null,"GPU","a",[["a"],["a",["img",0]]],1,"sliding_window",1024]],1]`,
		`{"events":[["BlockStored",["hex:0000000000000000aabbccddeeff0011"],0,[[1,2],[2,3]],2,3,"TAPE",{"cache_salt":"s"}]]}`,
		`[0,[null,{"type":"x"},["BlockRemoved","x"],["AllBlocksCleared"]]]`,
	} {
		f.Add(fromJSON(f, s))
	}
	var used Decoder // by all inputs of this process, one after another
	f.Fuzz(func(t *testing.T, payload []byte) {
		var fresh Decoder
		err := fresh.Begin(payload)
		if err2 := used.Begin(payload); err2 != err {
			t.Fatalf("%v, and %v with a past", err, err2)
		}
		if err != nil {
			return
		}
		var all []prefix.Event
		for {
			step, step2 := fresh.Next(), used.Next()
			if step != step2 {
				t.Fatalf("step %d, and %d with a past", step, step2)
			}
			if step == Event {
				all = append(all, clone(fresh.Event))
				if text(&fresh.Event) != text(&used.Event) {
					t.Fatalf("%s\nwith a past %s", text(&fresh.Event), text(&used.Event))
				}
			}
			if step == End || step == Broken {
				break
			}
		}
		joined, _ := readJoined(&used, payload, 5)
		for i := range joined {
			wantSound(t, &joined[i], len(payload))
		}
		if diff := cmp.Diff(apart(all), apart(joined)); diff != "" {
			t.Fatal(diff)
		}
	})
}

func wantSound(t *testing.T, e *prefix.Event, payload int) {
	t.Helper()
	n := len(e.Hashes)
	switch {
	case e.Kind == prefix.Cleared:
		if n > 0 {
			t.Fatal("a clear with hashes")
		}
		return
	case n == 0 || n > MaxHashes || n > payload:
		t.Fatalf("%d hashes", n)
	case e.Tier >= prefix.Tiers || e.Group < 0 || e.Group > MaxGroup || e.Window < 0:
		t.Fatalf("tier %d, group %d, window %d", e.Tier, e.Group, e.Window)
	case e.Tokens != nil && (len(e.Tokens) != n*e.BlockSize || len(e.Tokens) > MaxTokens):
		t.Fatalf("%d tokens, %d hashes, blocks of %d", len(e.Tokens), n, e.BlockSize)
	case e.Extras != nil && len(e.Extras) != n:
		t.Fatalf("%d extras, %d hashes", len(e.Extras), n)
	case e.Kind == prefix.Removed && (e.HasParent || e.Tokens != nil || e.Extras != nil):
		t.Fatal("a removal with content")
	case e.AnyTier && e.Kind != prefix.Removed, !e.HasParent && e.Parent != 0:
		t.Fatalf("%+v", e)
	}
	if slices.ContainsFunc(e.Extras, func(x []byte) bool { return len(x) > MaxExtra }) {
		t.Fatal("a long extra")
	}
}

func FuzzLoad(f *testing.F) {
	for _, s := range []string{`["LoadStat",3,2,4096,65536,0,512,6144,256,100000,2500000]`, `["LoadStat",3,2,4096,65536]`, `["LoadStat",3,2,4096,65536,null,1]`} {
		f.Add(fromJSON(f, s))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		r, err := ParseLoad(payload)
		if err != nil {
			return
		}
		if n, ok := r.Running.Get(); !ok || n < 0 {
			t.Fatalf("running %v", r.Running)
		}
		if c, ok := r.Capacity.Get(); ok && c <= 0 {
			t.Fatalf("capacity %d", c)
		}
		if r.PrefillBusy.IsKnown() != r.WaitingUncached.IsKnown() {
			t.Fatal("half a tail")
		}
	})
}

// TestLiesCostNothing: payloads whose lengths lie, and ones that nest as deep as they are long, take neither memory nor stack.
func TestLiesCostNothing(t *testing.T) {
	deep := append(fromJSON(t, `{"type":"BlockStored","x":null}`), 0)
	deep = append([]byte{0x92, 0x00, 0x91}, deep[:len(deep)-2]...)
	for range 1 << 20 {
		deep = append(deep, 0x91)
	}
	maps := append([]byte{0x92, 0x00, 0x91}, fromJSON(t, `["BlockStored",[1],null,[1],1,null,"GPU"]`)...)
	maps[3]++
	for range 1 << 16 {
		maps = append(maps, "\x81\xa9lora_name"...)
	}
	for name, p := range map[string][]byte{
		"hashes": fromJSON(t, `[0,[["BlockRemoved","raw:dd7fffffff"]]]`),
		"tokens": fromJSON(t, `[0,[["BlockStored",[1],null,"raw:dd00100000"]]]`),
		"extras": fromJSON(t, `[0,[["BlockStored",[1],null,[1],1,null,null,null,"raw:dd0000ffff"]]]`),
		"deep":   deep,
		"maps":   maps,
	} {
		least := uint64(math.MaxUint64) // the runtime's own allocations are counted too
		for range 5 {
			least = min(least, allocated(t, name, p))
		}
		if least > 4<<10 {
			t.Errorf("%s: %d bytes", name, least)
		}
	}
}

// allocated is how many bytes the process allocates while a payload is read.
func allocated(t *testing.T, name string, p []byte) uint64 {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var d Decoder
	if err := d.Begin(p); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for s := d.Next(); s != End && s != Broken; s = d.Next() {
	}
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
