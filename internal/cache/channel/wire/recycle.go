package wire

// Publishes, seals and queries have hundreds of elements, and what a message leaves behind for the collector is as much as all else that a Manager does for
// a small page; so their memory may be used again.

// mostRecycled bounds the blocks whose memory is kept: a piece of a long run, and 200 KiB. Longer ones are rare.
const mostRecycled = 1024

// Recycle empties a decoded message for DecodeInto, which takes its memory, if it is of a kind and a size for which that is worth while. Nothing of it
// may be needed any more, nor of what it refers to.
func Recycle(m Message) (ok bool) {
	switch m := m.(type) {
	case *Publish:
		if cap(m.Blocks) > mostRecycled || cap(m.words) > mostRecycled*64 {
			return false
		}
		clear(m.Blocks) // what they refer to
		*m = Publish{Blocks: m.Blocks[:0], words: m.words[:0]}
		return true
	case *Query:
		if len(m.Wants) == 0 || cap(m.Wants[0].Hashes) > mostRecycled {
			return false
		}
		*m = Query{spare: m.Wants[0].Hashes[:0]}
		return true
	case *Seal:
		if cap(m.Slots) > mostRecycled {
			return false
		}
		*m = Seal{Slots: m.Slots[:0]}
		return true
	}
	return false
}

// sized is a list of n elements in the memory of v if it has as many.
func sized[T any](v []T, n int) []T {
	if cap(v) < n {
		return make([]T, n)
	}
	return v[:n]
}
