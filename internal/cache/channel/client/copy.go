package client

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/perigee-llm/perigee/internal/cache/copysum"
)

// move is a page that is copied: src over dst, which is as long. sum is the checksum of what was stored in dst; of a publish, block is whose page it is.
type move struct {
	dst, src []byte
	sum      uint64
	block    int
}

// batchBytes is how much is asked for before it is copied: whatever the caller's function does between two small pages is waited for, and one allocation of 32
// bytes there was a tenth of copying 16 KiB. Behind each batch a context's end is seen.
const batchBytes = 2 << 20

// pastBytes is how many bytes are restored past the cache, of a batch: as much as a core's own cache holds would not be in it anyway when the last of them is.
const pastBytes = 1 << 20

// copyAll copies pages, by so many goroutines: page says what one is, in their order. It returns how many of the first were copied; all if there is no error.
// A batch of past bytes or more goes past the cache.
func copyAll(ctx context.Context, list []move, copiers, past int, page func(i int, m *move) error) (copied int, err error) {
	for copied < len(list) && err == nil {
		at, bytes := copied, 0
		for ; at < len(list) && bytes < copiers*batchBytes; at++ {
			if err = ctx.Err(); err == nil {
				err = page(at, &list[at])
			}
			if err != nil {
				break
			}
			bytes += len(list[at].src)
		}
		way := copysum.Through
		if bytes >= past {
			way = copysum.Past
		}
		copyBatch(list[copied:at], copiers, way)
		copied = at
	}
	return copied, err
}

// copyBatch copies pages by so many goroutines, of which one is the caller's own, and returns when none of them is at it.
func copyBatch(list []move, copiers int, way func(dst, src []byte) uint64) {
	if copiers = min(copiers, len(list)); copiers <= 1 {
		for i := range list {
			list[i].sum = way(list[i].dst, list[i].src)
		}
		copysum.Fence()
		return
	}
	var next atomic.Int64
	work := func() {
		defer copysum.Fence()
		for {
			i := int(next.Add(1)) - 1
			if i >= len(list) {
				return
			}
			list[i].sum = way(list[i].dst, list[i].src)
		}
	}
	var wg sync.WaitGroup
	for range copiers - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
}

// moves are lists of pages, lent for as long as a publish or a restore takes: in memory that is new each page of it costs more than what is written there.
var moves = sync.Pool{New: func() any { return new([]move) }}

// keptMoves bounds the lists that are kept: a part of a plan, and more than a piece of a publish.
const keptMoves = 1024

// keep gives a list back, without the pages.
func keep(at *[]move, list []move) {
	if list = list[:cap(list)]; len(list) > keptMoves {
		return
	}
	clear(list)
	*at = list
	moves.Put(at)
}

// sizedMoves is n empty moves, in the memory of list if it has as many.
func sizedMoves(list []move, n int) []move {
	if cap(list) < n {
		return make([]move, n)
	}
	clear(list[:n])
	return list[:n]
}
