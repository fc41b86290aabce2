package wire

import (
	"encoding/binary"
	"testing"
)

// TestExtrasAreBounded: a small number takes nine bytes in its canonical form, and a batch has 16 MiB at most: what a decoder keeps must not be
// 144 MiB.
func TestExtrasAreBounded(t *testing.T) {
	list := func(b []byte, n int) []byte { return binary.BigEndian.AppendUint32(append(b, 0xdd), uint32(n)) }
	text := func(b []byte, s string) []byte { return append(append(b, 0xa0|byte(len(s))), s...) }
	// batch is a store of blocks of one token, whose extra keys are what key appends.
	batch := func(blocks int, key func([]byte) []byte) []byte {
		b := list(nil, 2) // [ts, [event]]
		b = list(append(b, 0xc0), 1)
		b = list(text(list(b, 9), "BlockStored"), blocks)
		for i := range blocks {
			b = binary.BigEndian.AppendUint64(append(b, 0xcf), uint64(i+1))
		}
		b = list(append(b, 0xc0), blocks)
		b = append(append(b, make([]byte, blocks)...), 1, 0xc0, 0xc0, 0xc0)
		b = list(b, blocks)
		for range blocks {
			b = key(b)
		}
		return b
	}
	numbers := func(n int) func([]byte) []byte {
		return func(b []byte) []byte { return append(list(b, n), make([]byte, n)...) }
	}
	long := func(n int) func([]byte) []byte {
		return func(b []byte) []byte {
			return append(binary.BigEndian.AppendUint32(append(list(b, 1), 0xdb), uint32(n)), make([]byte, n)...)
		}
	}
	for name, c := range map[string]struct {
		payload []byte
		good    bool
	}{
		"few":                  {batch(100, numbers(100)), true},
		"as many as there may": {batch(1, numbers(MaxExtra/9)), true},
		"one too many":         {batch(1, numbers(MaxExtra/9+1)), false},
		"one block of all":     {batch(1, numbers(8<<20)), false},
		"one inside":           {batch(1, func(b []byte) []byte { return numbers(8 << 20)(list(b, 1)) }), false},
		"a long text":          {batch(1, long(8<<20)), false},
		"all blocks":           {batch(3000, numbers(400)), false},
	} {
		var d Decoder
		if err := d.Begin(c.payload); err != nil {
			t.Fatal(err)
		}
		step := d.Next()
		if good := step == Event; good != c.good || !good && d.Bad[Oversized] != 1 {
			t.Errorf("%s: step %d, bad %v; good should be %v", name, step, d.Bad, c.good)
		}
		if cap(d.extra) > 3*MaxExtras/2 {
			t.Errorf("%s: %d bytes are kept", name, cap(d.extra))
		}
	}
}
