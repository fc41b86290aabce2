package index

import (
	"sync"
	"sync/atomic"
)

// epochs keeps memory from being used again while a reader may look at it. Each reader says in which epoch it entered; what the writer
// takes out of sight is put aside with the epoch of that moment, and is used again when all readers that are inside have entered
// later. So readers read plain memory, and neither wait nor try again.
//
// Versions that readers check afterwards were not taken: in Go every word that they read would have to be stored atomically, 5 ns each,
// and a reader that is overtaken has to begin again.
type epochs struct {
	now     atomic.Uint64 // from 1
	readers atomic.Pointer[[]*reader]
	idle    sync.Pool // of readers that were here lately: mostly the one that this processor used last
	aside   []retired // the writer's, oldest first
	taken   int       // of aside
	batch   int       // what is put aside before readers are asked: reclaimBatch, or less in tests
}

// reader is one look-up's place: its epoch, and the memory that it works with. There are as many as there ever were look-ups at once.
type reader struct {
	inside atomic.Uint64 // the epoch it entered in, 0 outside
	walk
	_ [64]byte // what another reader writes is not on our cache line
}

// retired is something that no reader will find any more, and one may still hold.
type retired struct {
	epoch uint64
	kind  retiredKind
	no    uint32
}

type retiredKind uint32

const (
	aBlock retiredKind = iota
	aSet
	aTenure
)

func (e *epochs) init() {
	e.batch = reclaimBatch
	e.now.Store(1)
	e.readers.Store(&[]*reader{})
}

// enter returns a reader for the caller alone, until leave.
func (e *epochs) enter() *reader {
	now := e.now.Load()
	if r, _ := e.idle.Get().(*reader); r != nil && r.inside.CompareAndSwap(0, now) {
		return r
	}
	for {
		all := e.readers.Load()
		for _, r := range *all {
			if r.inside.CompareAndSwap(0, now) {
				return r
			}
		}
		r := &reader{}
		r.inside.Store(now)
		more := append(append([]*reader(nil), *all...), r)
		if e.readers.CompareAndSwap(all, &more) {
			return r
		}
	}
}

func (e *epochs) leave(r *reader) {
	r.inside.Store(0)
	e.idle.Put(r)
}

// retire puts aside what has just been taken out of sight.
func (e *epochs) retire(kind retiredKind, no uint32) {
	e.aside = append(e.aside, retired{e.now.Load(), kind, no})
}

// reclaimBatch is what is put aside before it is worth asking all readers: with 16 bytes each it fits into the processor's first cache.
const reclaimBatch = 512

// reclaim calls give for what no reader can hold any more.
func (e *epochs) reclaim(give func(retired)) {
	if len(e.aside)-e.taken < e.batch {
		return
	}
	oldest := e.now.Add(1)
	for _, r := range *e.readers.Load() {
		if in := r.inside.Load(); in != 0 {
			oldest = min(oldest, in)
		}
	}
	for e.taken < len(e.aside) && e.aside[e.taken].epoch < oldest {
		give(e.aside[e.taken])
		e.taken++
	}
	if e.taken*2 >= len(e.aside) {
		e.aside = e.aside[:copy(e.aside, e.aside[e.taken:])]
		e.taken = 0
	}
}
