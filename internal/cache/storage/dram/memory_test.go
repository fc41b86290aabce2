package dram

import (
	"reflect"
	"testing"
	"unsafe"

	"github.com/perigee-llm/perigee/internal/script"
)

// lentMemory spoils what is given back, so that who looks at it sees nonsense, and knows what is not given back.
type lentMemory map[*byte]int

func (m lentMemory) Make(n int) []byte {
	words := make([]uint64, (n+7)/8)
	b := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n)
	m[&b[0]] = n
	return b
}

func (m lentMemory) Free(b []byte) {
	if m[&b[0]] != len(b) {
		panic("what is given back was not lent so")
	}
	delete(m, &b[0])
	for i := range b {
		b[i] = 0xdb
	}
}

// TestMemory: a Store whose tables lie elsewhere, and which becomes larger and smaller, gives back each that it needs no more, and looks at none of them again.
func TestMemory(t *testing.T) {
	r := script.Rand(t)
	for range 20 {
		m := lentMemory{}
		s := New(nil)
		s.LieIn(m)
		s.AddScope(0)
		var arenas []int
		at := map[Hash]int{}
		for step := range 4000 {
			switch n := r.IntN(200); {
			case n == 0 || len(arenas) == 0:
				arenas = append(arenas, s.AddArena(uint32(1+r.IntN(20_000)), 1, 0))
			case n == 1:
				i := r.IntN(len(arenas))
				for p := range s.Pages() {
					if s.ArenaOf(p) == arenas[i] {
						delete(at, s.Key(p).Hash)
						s.Doom(p)
						s.Free(p, func(uint32, uint32) {})
					}
				}
				s.RemoveArena(arenas[i])
				arenas = append(arenas[:i], arenas[i+1:]...)
			default:
				a := arenas[r.IntN(len(arenas))]
				h := blockHash(uint64(step))
				if _, _, free := s.Arena(a); free == 0 {
					p, ok := s.Victim(a, 0, false, Time(step))
					if !ok {
						t.Fatal("nothing may go")
					}
					delete(at, s.Key(p).Hash)
					s.Doom(p)
					s.Free(p, func(uint32, uint32) {})
				}
				p := s.Begin(&Newcomer{Key: Key{Hash: h}, Arena: a, Parts: 1})
				slot, _ := s.Grant(p, 0, 0)
				s.Seal(a, slot, uint64(step))
				s.Show(p, Retained, Time(step))
				at[h] = step
			}
			if step%500 != 0 {
				continue
			}
			if wrong := s.Check(); wrong != "" {
				t.Fatal(wrong)
			}
			for h, step := range at {
				p, ok := s.Find(Key{Hash: h})
				if !ok {
					t.Fatalf("block %d is gone", step)
				}
				if _, slot := s.PartOf(p, 0); slot.Word != uint64(step) {
					t.Fatalf("the checksum of block %d is %d", step, slot.Word)
				}
			}
		}
		tables := len(s.pages) + len(arenas) + 1 + len(s.index.old) + 1
		if s.ghosts.older != nil {
			tables++
		}
		if len(m) != tables {
			t.Errorf("%d tables, and %d are lent", tables, len(m))
		}
	}
}

// TestNoPointers: no collector looks into the tables, wherever they lie.
func TestNoPointers(t *testing.T) {
	for _, record := range []any{page{}, slot{}, indexEntry{}, ghostSet{}} {
		if at := pointerIn(reflect.TypeOf(record)); at != "" {
			t.Errorf("%T has a pointer: %s", record, at)
		}
	}
	if n := unsafe.Sizeof(page{}); n != 84 {
		t.Errorf("a record is %d bytes", n)
	}
}

func pointerIn(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			if at := pointerIn(t.Field(i).Type); at != "" {
				return t.Field(i).Name + " " + at
			}
		}
		return ""
	case reflect.Array:
		return pointerIn(t.Elem())
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32,
		reflect.Uint64, reflect.Float32, reflect.Float64:
		return ""
	}
	return t.String()
}
