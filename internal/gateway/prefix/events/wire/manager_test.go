package wire

import (
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/managerwire"
	"github.com/perigee-llm/perigee/internal/script"
)

// goldenEvents are the events of testdata/manager.hex, which testdata/manager.py writes with Python's msgpack.
func goldenEvents() (managerwire.Head, []managerwire.Event) {
	ns := managerwire.Namespace{}
	for i := range ns {
		ns[i] = byte(i)
	}
	name := func(n uint64) chain.Key { return chain.Key{Lo: n, Hi: n << 32} }
	const url = "http://10.0.0.7:8000"
	return managerwire.Head{Time: 1700000000.25, Epoch: 0xfeedfacecafebeef, Manager: "host-7"}, []managerwire.Event{
		{Kind: managerwire.Attached, Engine: url, Rank: managerwire.AllRanks, Namespace: ns, Instance: 1 << 63, Media: managerwire.AllMedia},
		{Kind: managerwire.Attached, Engine: url, Rank: 3, Namespace: ns, Instance: 7, Media: 1 << managerwire.CPU},
		{Kind: managerwire.BlockStored, Namespace: ns, Model: "meta-llama/Llama-3.3-70B-Instruct", BlockSize: 16, Chain: []chain.Key{name(1), name(2)},
			Hashes: [][]byte{{1, 2, 3, 4, 5, 6, 7, 8}, make([]byte, 32)}, Medium: managerwire.CPU},
		{Kind: managerwire.BlockStored, Namespace: ns, Model: "m", BlockSize: 128, Chain: []chain.Key{name(3)}, Parent: name(2), Medium: managerwire.Disk},
		{Kind: managerwire.BlockRemoved, Namespace: ns, Chain: []chain.Key{name(1)}, Medium: managerwire.External},
		{Kind: managerwire.BlockRemoved, Namespace: ns, Chain: []chain.Key{name(2)}},
		{Kind: managerwire.Cost, Engine: url, Instance: 7, Medium: managerwire.CPU, Fixed: 0.0005, PerToken: 1e-6, Samples: 300, Error: 0.25, Age: 0.5},
		{Kind: managerwire.Detached, Engine: url, Instance: 7},
		{Kind: managerwire.AllBlocksCleared, Namespace: ns},
		{Kind: managerwire.AllBlocksCleared},
	}
}

// read returns what a decoder makes of a batch.
func read(t testing.TB, payload []byte) (managerwire.Head, []managerwire.Event) {
	t.Helper()
	var d ManagerDecoder
	if err := d.Begin(payload); err != nil {
		t.Fatal(err)
	}
	var out []managerwire.Event
	for {
		switch step := d.Next(); step {
		case Event:
			e := d.Event
			e.Chain = slices.Clone(e.Chain)
			out = append(out, e)
		case End:
			return d.Head, out
		default:
			t.Fatalf("step %d, bad %v", step, d.Bad)
		}
	}
}

// TestManagerGolden holds the bytes themselves: somebody else's msgpack writes the same.
func TestManagerGolden(t *testing.T) {
	raw, err := os.ReadFile("testdata/manager.hex")
	if err != nil {
		t.Fatal(err)
	}
	want, err := hex.DecodeString(strings.Join(strings.Fields(string(raw)), ""))
	if err != nil {
		t.Fatal(err)
	}
	head, events := goldenEvents()
	if got := managerwire.AppendBatch(nil, head, events); hex.EncodeToString(got) != hex.EncodeToString(want) {
		t.Errorf("written %x\nwant %x", got, want)
	}
	wantEvents(t, want, head, events)
}

func wantEvents(t *testing.T, payload []byte, head managerwire.Head, events []managerwire.Event) {
	t.Helper()
	gotHead, got := read(t, payload)
	if gotHead != head || len(got) != len(events) {
		t.Fatalf("%+v with %d events, want %+v with %d", gotHead, len(got), head, len(events))
	}
	for i := range events {
		e := events[i]
		e.Hashes = nil // nobody here reads them
		if e.Kind != managerwire.Attached {
			e.Rank, e.Media = managerwire.AllRanks, managerwire.AllMedia // what is not said
		}
		if len(got[i].Chain) == 0 {
			got[i].Chain = nil
		}
		if !reflect.DeepEqual(got[i], e) {
			t.Errorf("event %d: %+v\nwant %+v", i, got[i], e)
		}
	}
}

// TestManagerRoundTrip: what is written is read, whatever it is.
func TestManagerRoundTrip(t *testing.T) {
	rng := script.Rand(t)
	for range 300 {
		head := managerwire.Head{Time: rng.Float64() * 1e9, Epoch: rng.Uint64()>>rng.IntN(63) + 1, Manager: long(rng, managerwire.MaxManager)}
		var events []managerwire.Event
		for range rng.IntN(20) {
			events = append(events, randomManagerEvent(rng))
		}
		wantEvents(t, managerwire.AppendBatch(nil, head, events), head, events)
	}
}

func long(rng *rand.Rand, most int) string { return strings.Repeat("x", 1+rng.IntN(most)) }

func randomManagerEvent(rng *rand.Rand) managerwire.Event {
	e := managerwire.Event{Kind: managerwire.Kind(rng.IntN(managerwire.Kinds))}
	for i := range e.Namespace {
		e.Namespace[i] = byte(rng.Uint32())
	}
	medium := managerwire.Medium(1 + rng.IntN(3))
	names := func() {
		for range 1 + rng.IntN(1<<rng.IntN(12)) {
			e.Chain = append(e.Chain, chain.Key{Lo: rng.Uint64(), Hi: rng.Uint64()})
		}
	}
	engine := func() { e.Engine, e.Instance = long(rng, managerwire.MaxEngine), rng.Uint64()>>rng.IntN(64) }
	switch e.Kind {
	case managerwire.BlockStored:
		names()
		e.Model, e.BlockSize, e.Medium = long(rng, managerwire.MaxModel), 1+rng.IntN(managerwire.MaxBlockSize), medium
		if rng.IntN(2) == 0 {
			e.Parent = chain.Key{Lo: rng.Uint64(), Hi: 1}
		}
	case managerwire.BlockRemoved:
		names()
		e.Medium = medium * managerwire.Medium(rng.IntN(2))
	case managerwire.Attached:
		engine()
		e.Rank, e.Media = int32(rng.IntN(managerwire.MaxRank+2)-1), managerwire.Media(rng.IntN(8)<<1)
	case managerwire.Detached:
		engine()
		e.Namespace = managerwire.Namespace{}
	case managerwire.Cost:
		engine()
		e.Namespace, e.Medium = managerwire.Namespace{}, medium
		e.Fixed, e.PerToken, e.Error, e.Age = rng.ExpFloat64(), rng.ExpFloat64(), rng.Float64(), rng.ExpFloat64()
		e.Samples = rng.Uint32()
	}
	return e
}

func TestSnapshotFrames(t *testing.T) {
	frames := managerwire.SnapshotHeader(1<<63, 9, 70000)
	h, err := ParseSnapshotHeader(frames[2])
	if err != nil || h != (SnapshotHeader{1 << 63, 9, 70000}) || string(frames[1]) != "header" || len(frames[0]) != 0 {
		t.Errorf("%+v %v", h, err)
	}
	for _, bad := range []string{
		`{}`, `{"epoch":1,"resume":2}`, `{"epoch":0,"resume":2,"records":0}`, `{"epoch":1,"resume":0,"records":1}`, `{"epoch":1,"resume":-1,"records":1}`, `[1]`, `{"epoch":"1","resume":2,"records":0}`,
		`{"epoch":1,"resume":9223372036854775807,"records":0}`,
	} {
		if h, err := ParseSnapshotHeader(fromJSON(t, bad)); err != ErrSnapshot {
			t.Errorf("%s: %+v %v", bad, h, err)
		}
	}
	if h, err := ParseSnapshotHeader(fromJSON(t, `{"x":[1],"records":0,"epoch":1,"resume":0}`)); err != nil || h.Epoch != 1 {
		t.Errorf("%+v %v", h, err)
	}
	if n, ok := managerwire.ReplayFrom([][]byte{nil, {0, 0, 0, 0, 0, 0, 1, 2}}); !ok || n != 258 {
		t.Error(n, ok)
	}
	if _, ok := managerwire.ReplayFrom([][]byte{nil, {1}}); ok || !managerwire.IsSnapshotRequest([][]byte{nil, []byte("snapshot.v1")}) || managerwire.IsSnapshotRequest([][]byte{nil, []byte("snapshot.v2")}) {
		t.Error("requests")
	}
	if n, _, _, ok := len(managerwire.Message(1, nil)), 0, 0, managerwire.SnapshotError("x"); n != 3 || len(ok) != 3 {
		t.Error(n)
	}
}

// FuzzManager: whatever comes in, events are sound, and the decoder reads the same with and without a past.
func FuzzManager(f *testing.F) {
	head, events := goldenEvents()
	whole := managerwire.AppendBatch(nil, head, events)
	f.Add(whole)
	for i := range events {
		one := managerwire.AppendBatch(nil, head, events[i:i+1])
		f.Add(one)
		f.Add(one[:len(one)-1-i])
	}
	f.Add(fromJSON(f, `[0,[{"type":"Cost","engine":"e","instance":1,"medium":"CPU","fixed_seconds":-1,"seconds_per_token":0}],null,{"epoch":1}]`))
	var used ManagerDecoder
	f.Fuzz(func(t *testing.T, payload []byte) {
		var fresh ManagerDecoder
		err := fresh.Begin(payload)
		if err2 := used.Begin(payload); err2 != err {
			t.Fatalf("%v, and %v with a past", err, err2)
		}
		_, _ = ParseSnapshotHeader(payload)
		if err != nil {
			return
		}
		for {
			step, step2 := fresh.Next(), used.Next()
			if step != step2 {
				t.Fatalf("step %d, and %d with a past", step, step2)
			}
			if step == Event {
				wantSoundManager(t, &fresh.Event, len(payload))
				if a, b := showManager(&fresh.Event), showManager(&used.Event); a != b {
					t.Fatalf("%s\nwith a past %s", a, b)
				}
			}
			if step == End || step == Broken {
				return
			}
		}
	})
}

// showManagers prints what a decoder makes of a Manager's payload.
func showManagers(c *script.Command, payload []byte) {
	var d ManagerDecoder
	if err := d.Begin(payload); err != nil {
		c.Print(err.Error())
		return
	}
	if d.Head != (managerwire.Head{Epoch: 1}) {
		c.Print(fmt.Sprintf("%+v", d.Head))
	}
	for step := d.Next(); step != End; step = d.Next() {
		switch step {
		case Event:
			c.Print(showManager(&d.Event))
		case Lost:
			c.Print("LOST")
		case Broken:
			c.Print("BROKEN")
			return
		}
	}
	for class, n := range d.Bad {
		if n > 0 {
			c.Print("bad:", Class(class).String(), fmt.Sprint(n))
		}
	}
}

func wantSoundManager(t *testing.T, e *managerwire.Event, payload int) {
	t.Helper()
	bad := len(e.Chain) > managerwire.MaxBlocks || 17*len(e.Chain) > payload || len(e.Engine) > managerwire.MaxEngine || len(e.Model) > managerwire.MaxModel ||
		e.Medium > managerwire.External || e.Media&^managerwire.AllMedia != 0 || e.Rank < managerwire.AllRanks || e.Rank > managerwire.MaxRank
	for _, v := range []float64{e.Fixed, e.PerToken, e.Error, e.Age} {
		bad = bad || e.Kind == managerwire.Cost && (!(v >= 0) || math.IsInf(v, 0))
	}
	switch e.Kind {
	case managerwire.BlockStored:
		bad = bad || e.Medium == managerwire.NoMedium || e.BlockSize <= 0 || e.BlockSize > managerwire.MaxBlockSize || e.Model == ""
	case managerwire.Cost:
		bad = bad || e.Medium == managerwire.NoMedium || e.Engine == ""
	case managerwire.Attached, managerwire.Detached:
		bad = bad || e.Engine == ""
	}
	if bad {
		t.Fatalf("%+v", e)
	}
}

func showManager(e *managerwire.Event) string {
	s := e.Kind.String()
	put := func(format string, a ...any) { s += fmt.Sprintf(format, a...) }
	switch e.Kind {
	case managerwire.BlockStored:
		put(" ns=%x model=%s block=%d medium=%s", e.Namespace[:2], e.Model, e.BlockSize, e.Medium)
		if !e.Parent.IsZero() {
			put(" parent=%x", e.Parent.Lo)
		}
	case managerwire.BlockRemoved:
		put(" ns=%x medium=%q", e.Namespace[:2], e.Medium)
	case managerwire.AllBlocksCleared:
		put(" ns=%x", e.Namespace[:2])
	case managerwire.Attached:
		put(" %s rank=%d instance=%d ns=%x media=%04b", e.Engine, e.Rank, e.Instance, e.Namespace[:2], e.Media)
	case managerwire.Detached:
		put(" %s instance=%d", e.Engine, e.Instance)
	case managerwire.Cost:
		put(" %s instance=%d %s %v+%v*n samples=%d error=%v age=%v", e.Engine, e.Instance, e.Medium, e.Fixed, e.PerToken, e.Samples, e.Error, e.Age)
	}
	for _, k := range e.Chain {
		put(" %x", k.Lo)
	}
	return s
}
