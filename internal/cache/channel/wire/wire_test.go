package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/script"
)

// filler is a coder that gives fields random values.
type filler struct{ r *rand.Rand }

func (f *filler) u8(v *uint8)   { *v = uint8(f.r.Uint32()) }
func (f *filler) u16(v *uint16) { *v = uint16(f.r.Uint32()) }
func (f *filler) u32(v *uint32) { *v = f.r.Uint32() }
func (f *filler) u64(v *uint64) { *v = f.r.Uint64() }
func (f *filler) raw(b []byte) {
	for i := range b {
		b[i] = byte(f.r.Uint32())
	}
}
func (f *filler) blob(v *[]byte, _ int) {
	if n := f.r.IntN(9); n > 0 {
		*v = make([]byte, n)
		f.raw(*v)
	}
}
func (f *filler) text(v *string, _ int) { *v = "text"[:f.r.IntN(5)] }
func (f *filler) u32s(v *[]uint32, _ int) {
	for range f.r.IntN(4) {
		*v = append(*v, f.r.Uint32())
	}
}
func (f *filler) hashes(v *[]core.Hash, _ int) {
	for range f.r.IntN(4) {
		var h core.Hash
		f.raw(h[:])
		*v = append(*v, h)
	}
}
func (f *filler) pieces(v *[]core.Piece, _ int) {
	for range f.r.IntN(4) {
		*v = append(*v, core.Piece{Pool: f.r.Uint32(), Offset: f.r.Uint64(), Length: f.r.Uint32()})
	}
}
func (f *filler) count(_, _, _ int) int { return f.r.IntN(4) }

// forgetRoom takes from a message what is not said.
func forgetRoom(m Message) {
	if p, ok := m.(*Publish); ok {
		p.words = nil
	}
}

func TestRoundTrip(t *testing.T) {
	r := script.Rand(t)
	for k, make := range makers {
		if make == nil {
			continue
		}
		for range 50 {
			m := make()
			m.fields(&filler{r})
			switch m := m.(type) { // what is a flag is one bit
			case *Seal:
				m.Summed = r.IntN(2) == 1
			case *Restored:
				m.OK = r.IntN(2) == 1
			case *Fetch:
				m.All = r.IntN(2) == 1
			}
			h := Header{Descriptors: uint16(r.IntN(MaxDescriptors)), Ref: r.Uint64(), Epoch: r.Uint64(), Session: r.Uint32()}
			b := Append([]byte("before"), h, m)[len("before"):]
			got, err := ParseHeader(b)
			if err != nil || int(got.Length) != len(b)-HeaderSize || got.Kind != Kind(k) {
				t.Fatalf("%T: head %+v, %v", m, got, err)
			}
			if got.Ref != h.Ref || got.Epoch != h.Epoch || got.Session != h.Session || got.Descriptors != h.Descriptors {
				t.Fatalf("%T: head %+v, want %+v", m, got, h)
			}
			back, err := Decode(got.Kind, b[HeaderSize:])
			forgetRoom(back)
			if err != nil || !reflect.DeepEqual(back, m) {
				t.Fatalf("%T: %v\n got %+v\nwant %+v", m, err, back, m)
			}
			// Cut short or made longer it is refused.
			if n := len(b) - HeaderSize; n > 0 {
				if _, err := Decode(got.Kind, b[HeaderSize:len(b)-1-r.IntN(n)]); !errors.Is(err, ErrMalformed) {
					t.Fatalf("%T cut short: %v", m, err)
				}
			}
			if _, err := Decode(got.Kind, append(b[HeaderSize:], 0)); !errors.Is(err, ErrMalformed) {
				t.Fatalf("%T with a byte too many: %v", m, err)
			}
		}
	}
}

// byField is a writer, or a reader, that is not known as one: so it is shown each field.
type byField struct{ coder }

// TestFlat: what is written and read in one go is what its list of fields says.
func TestFlat(t *testing.T) {
	r := script.Rand(t)
	for _, make := range []func() Message{
		func() Message { return &Publish{} }, func() Message { return &Seal{} }, func() Message { return &Granted{} }, func() Message { return &Plan{} },
	} {
		for range 200 {
			m := make()
			m.fields(&filler{r})
			if s, ok := m.(*Seal); ok {
				s.Summed = r.IntN(2) == 1
			}
			var one, other writer
			m.fields(&one)
			m.fields(byField{&other})
			if !bytes.Equal(one.buf, other.buf) {
				t.Fatalf("%T\n    in one go %x\nfield by field %x", m, one.buf, other.buf)
			}
			cut := one.buf[:len(one.buf)-r.IntN(2)*r.IntN(len(one.buf))]
			a, b := make(), make()
			x, y := reader{rest: cut}, reader{rest: cut}
			a.fields(&x)
			b.fields(byField{&y})
			forgetRoom(a)
			if x.bad != y.bad || !x.bad && (len(x.rest) != len(y.rest) || !reflect.DeepEqual(a, b)) {
				t.Fatalf("%T: %x\n    in one go %+v, bad %v\nfield by field %+v, bad %v", m, cut, a, x.bad, b, y.bad)
			}
		}
	}
}

// TestFetchBytes: the bytes that the client in Python is held to as well (python/tests/session_check.py).
func TestFetchBytes(t *testing.T) {
	lines := core.Lines{Lines: []core.Line{{Pool: 3, Offset: 1 << 40, Distance: 512, Length: 4096}}, Places: []uint64{16}}
	pages := core.Pages{Counts: []uint32{1}, Pieces: []core.Piece{{Pool: 3, Offset: 1 << 40, Length: 4096}}}
	for want, m := range map[string]Message{
		"00000000" + "02000000" + "01" + "01000000" + "72" + "01000000" + strings.Repeat("ab", 32) + "00000000" + "00000000" +
			"01000000" + "03000000" + "0000000000010000" + "00020000" + "00100000" + "01000000" + "1000000000000000": &Fetch{
			Group: 2, All: true, Request: "r", Hashes: []core.Hash{core.Hash(bytes.Repeat([]byte{0xab}, 32))}, Lines: lines},
		"07000000" + "00000000" + "00" + "00000000" + "00000000" + "01000000" + "01000000" + "01000000" + "03000000" + "0000000000010000" + "00100000" +
			"00000000" + "00000000": &Fetch{Scope: 7, Pages: pages},
		"00" + "02" + "08000000" + "05000000": &Fetched{Outcome: core.Mismatch, Found: 8, Good: 5},
	} {
		if got := hex.EncodeToString(Append(nil, Header{}, m)[HeaderSize:]); got != want {
			t.Errorf("%T\n got %s\nwant %s", m, got, want)
		}
	}
}

// TestFollowBytes: as TestFetchBytes.
func TestFollowBytes(t *testing.T) {
	m := &Follow{Events: "tcp://e", Topic: "kv", Adapters: []Adapter{{Name: "l", Extra: "0f"}}}
	want := "07000000" + hex.EncodeToString([]byte("tcp://e")) + "00000000" + "02000000" + "6b76" + "01000000" + "01000000" + "6c" + "02000000" + "3066"
	if got := hex.EncodeToString(Append(nil, Header{}, m)[HeaderSize:]); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// TestRecycle: a message that is read into the memory of another is what was written, and refers to nothing that was.
func TestRecycle(t *testing.T) {
	r := script.Rand(t)
	var publish, seal, query Message = &Publish{}, &Seal{}, &Query{}
	for range 2000 {
		for _, used := range []*Message{&publish, &seal, &query} {
			m := newMessage((*used).Kind())
			m.fields(&filler{r})
			if s, ok := m.(*Seal); ok {
				s.Summed = r.IntN(2) == 1
			}
			b := Append(nil, Header{}, m)[HeaderSize:]
			if err := DecodeInto(*used, b); err != nil {
				t.Fatal(err)
			}
			if again := Append(nil, Header{}, *used)[HeaderSize:]; !bytes.Equal(again, b) {
				t.Fatalf("%T\n read %x\nwrote %x", m, b, again)
			}
			if q, ok := m.(*Query); ok && len(q.Wants) == 0 {
				*used = &Query{}
			} else if !Recycle(*used) {
				t.Fatalf("%T was not recycled", m)
			}
		}
	}
	if Recycle(&Seal{Slots: make([]Sealed, mostRecycled+1)}) || Recycle(&Ping{}) {
		t.Error("something was recycled that is too large, or too small")
	}
}

func TestBounds(t *testing.T) {
	head := Append(nil, Header{}, &Ping{})
	for name, c := range map[string]struct {
		change func(b []byte)
		want   error
	}{
		"reserved byte":      {func(b []byte) { b[5] = 1 }, ErrMalformed},
		"reserved word":      {func(b []byte) { b[31] = 1 }, ErrMalformed},
		"many descriptors":   {func(b []byte) { b[6] = MaxDescriptors + 1 }, ErrMalformed},
		"long short message": {func(b []byte) { b[1] = 0x11 }, ErrTooLong},
		"long unknown":       {func(b []byte) { b[3], b[4] = 1, 200 }, ErrTooLong},
		"unknown":            {func(b []byte) { b[4] = 200 }, ErrUnknown},
		"kind 0":             {func(b []byte) { b[4] = 0 }, ErrUnknown},
	} {
		b := bytes.Clone(head)
		c.change(b)
		if _, err := ParseHeader(b); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if _, err := ParseHeader(head[:HeaderSize-1]); !errors.Is(err, ErrMalformed) {
		t.Errorf("a short head: %v", err)
	}
	// A count that the payload cannot hold costs nothing.
	claim := []byte{0, 0xff, 0xff, 0, 0}
	if n := testing.AllocsPerRun(10, func() { Decode(KindSeal, claim) }); n > 4 {
		t.Errorf("%v allocations for a claim of 65,535 slots", n)
	}
}

func TestClasses(t *testing.T) {
	for c := core.StaleSession; c <= core.Overlap; c++ {
		if c == core.StaleRead { // no client's
			continue
		}
		if w, ok := fromCore[c]; !ok || w.String() == "other" {
			t.Errorf("the core's class %d has no number on the wire", c)
		}
	}
}

func FuzzDecode(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, make := range makers {
		if make != nil {
			m := make()
			m.fields(&filler{r})
			f.Add(Append(nil, Header{Ref: 1, Epoch: 2, Session: 3}, m))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseHeader(b)
		if err != nil {
			return
		}
		m, err := Decode(h.Kind, b[HeaderSize:])
		if err != nil {
			return
		}
		h.Length = uint32(len(b) - HeaderSize)
		again := Append(nil, h, m)
		if !bytes.Equal(again[4:], b[4:]) {
			t.Fatalf("%T\n read %x\nwrote %x", m, b, again)
		}
	})
}
