package copysum

// Block is what all pieces of a Sum but the last are a multiple of, in bytes.
const Block = 1024

// Sum copies pieces past the cache, wherever they lie, and makes the checksum of all of them one behind the other. It is one goroutine's. The zero value is good.
type Sum struct {
	sums  [8]uint64
	total int
}

// CanSum says whether a Sum can be made here of so many bytes, of which the last piece has so many and all others multiples of Block.
func CanSum(total, last int) bool { return quick && total >= least && last >= 64 }

// Past copies a piece, and not the last one, to as many bytes. As after Past, Fence comes before anybody is told.
func (s *Sum) Past(dst, src []byte) {
	if len(src) == 0 {
		return
	}
	s.add(len(src))
	dst = dst[:len(src)]
	blocks(&s.sums, &dst[0], &src[0], len(src)/Block, aligned(dst))
}

// End copies the last piece as Past does, and returns the sum.
func (s *Sum) End(dst, src []byte) uint64 {
	s.add(len(src))
	dst = dst[:len(src)]
	pass(&s.sums, &dst[0], &src[0], len(src), aligned(dst))
	return merged(&s.sums, s.total)
}

func (s *Sum) add(n int) {
	if s.total == 0 {
		s.sums = first
	}
	s.total += n
}
