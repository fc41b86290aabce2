package dram

import "unsafe"

// Memory is where a Store's tables lie, if not in Go's heap. They have no pointers, and there they make it look large: a collector that lets it grow by a part of what
// it is, and keeps a tenth of it back for later, keeps back a tenth of the tables.
type Memory interface {
	// Make returns n bytes, more than 0, all zero, aligned to 8 and the caller's until Free.
	Make(n int) []byte
	// Free takes back what Make returned. Nobody looks at it any more.
	Free(b []byte)
}

// LieIn has the tables made there; nil is Go's heap. It is for a Store that has no arena.
func (s *Store) LieIn(m Memory) {
	mustBe(s.slotTotal == 0, "the tables of a Store were to be moved")
	s.memory, s.index.memory, s.ghosts.memory = m, m, m
}

// newTable is n records, all zero. T has no pointers: a test looks.
func newTable[T any](m Memory, n int) []T {
	if m == nil || n == 0 {
		return make([]T, n)
	}
	b := m.Make(n * int(unsafe.Sizeof(*new(T))))
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// freeTable ends a table, to which nothing refers any more.
func freeTable[T any](m Memory, t []T) {
	if m != nil && len(t) > 0 {
		m.Free(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(t))), len(t)*int(unsafe.Sizeof(t[0]))))
	}
}
