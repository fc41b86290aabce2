package api

import "sync"

// Memory for bodies that is used again, in bytes: as long as usual ones are, in steps of a page of the runtime's, to which that rounds those of more than 32 KiB up, too.
// A shorter one costs little to make; a longer one costs more to read and to send than its memory does, and would be much to keep.
const (
	lentStep = 8 << 10
	mostLent = onItsWord + lentStep
)

// lent is memory for one request's body, used again when nobody can read what is in it any more: another client's body will be there. Those who can are
// the request's goroutine, until the request lets its question go, and who sends it to an engine, until [upstream.Pieces.Sent]. All who have an attempt's pieces
// are counted; if there is anybody left in the end, the memory is not used again. A pair's halves live on goroutines of their own, and one may outlive its request:
// their body's memory is not used again either.
//
// It belongs to the request's goroutine.
type lent struct {
	room    []byte
	readers int // attempts whose pieces may still be read
}

// lents are those that nobody has, by their steps.
var lents [mostLent/lentStep + 1]sync.Pool

// lend returns memory of at least so many bytes, nil where none is kept for such bodies.
func lend(size int64) *lent {
	if size <= lentStep || size > mostLent {
		return nil
	}
	steps := (size + lentStep - 1) / lentStep
	if m, ok := lents[steps].Get().(*lent); ok {
		return m
	}
	return &lent{room: make([]byte, steps*lentStep)}
}

// giveBack has it used again, unless somebody may still read it. Nil is nobody's.
func (m *lent) giveBack() {
	if m == nil || m.readers > 0 {
		return
	}
	if spoil {
		for i := range m.room {
			m.room[i] = 0xdb // whoever reads it still, sees what no body has
		}
	}
	lents[len(m.room)/lentStep].Put(m)
}
