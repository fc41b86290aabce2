//go:build linux

package manager

import (
	"bytes"
	"context"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/perigee-llm/perigee/internal/cache/channel/client"
	"github.com/perigee-llm/perigee/internal/cache/core"
)

// engineMemory is an engine's host pool as SGLang makes it: a memfd that nobody can seal, the keys of all pages and then their values.
type engineMemory struct {
	file *os.File
	mem  []byte
	page int
}

func newMemory(t testing.TB, pages, page int) *engineMemory {
	t.Helper()
	e, err := makeMemory(pages, page)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Munmap(e.mem)
		e.file.Close()
	})
	return e
}

func makeMemory(pages, page int) (*engineMemory, error) {
	fd, err := unix.MemfdCreate("engine", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	e := &engineMemory{page: page, file: os.NewFile(uintptr(fd), "engine")}
	if err := unix.Fallocate(fd, 0, 0, int64(pages*page)); err != nil {
		return nil, err
	}
	e.mem, err = unix.Mmap(fd, 0, pages*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return e, err
}

// fill fills pages of the memory, from place on, with those of a prompt's blocks.
func (e *engineMemory) fill(prompt, place, blocks int) {
	page := make([]byte, e.page)
	for i := range blocks {
		fill(page, hashOf(prompt, i), 0, 0)
		e.set(place+i, page)
	}
}

// holds says how many of the prompt's first blocks lie in the memory, from place on.
func (e *engineMemory) holds(prompt, place, blocks int) int {
	page := make([]byte, e.page)
	for i := range blocks {
		if fill(page, hashOf(prompt, i), 0, 0); !bytes.Equal(page, e.get(place+i)) {
			return i
		}
	}
	return blocks
}

// pieces are where page i lies: keys and values.
func (e *engineMemory) pieces(pool uint32, i int) []core.Piece {
	half, rest := e.page/2, e.page-e.page/2
	pages := len(e.mem) / e.page
	return []core.Piece{
		{Pool: pool, Offset: uint64(i * half), Length: uint32(half)},
		{Pool: pool, Offset: uint64(pages*half + i*rest), Length: uint32(rest)},
	}
}

// pages are pages from on to to.
func (e *engineMemory) pages(pool uint32, from, to int) *core.Pages {
	p := &core.Pages{}
	for i := from; i < to; i++ {
		p.Counts = append(p.Counts, 2)
		p.Pieces = append(p.Pieces, e.pieces(pool, i)...)
	}
	return p
}

// at is the bytes of a page's pieces.
func (e *engineMemory) at(x core.Piece) []byte { return e.mem[x.Offset : x.Offset+uint64(x.Length)] }

func (e *engineMemory) get(i int) (page []byte) {
	for _, x := range e.pieces(0, i) {
		page = append(page, e.at(x)...)
	}
	return page
}

func (e *engineMemory) set(i int, page []byte) {
	for _, x := range e.pieces(0, i) {
		page = page[copy(e.at(x), page):]
	}
}

func (e *engineMemory) offer(t testing.TB, s *client.Session, pool uint32) {
	t.Helper()
	if err := s.OfferPool(context.Background(), pool, e.file, uint64(len(e.mem))); err != nil {
		t.Fatal(err)
	}
}

// restore restores what a query for the first n blocks finds into the memory, from place on.
func (e *engineMemory) restore(s *client.Session, pool uint32, prompt, place, n int) (client.RestoredInto, error) {
	a, err := s.Query(context.Background(), query(prompt, n))
	if err != nil || a.Lease == nil {
		return client.RestoredInto{}, err
	}
	return s.RestoreInto(a.Lease, 0, e.pages(pool, place, place+int(a.Lease.Hits[0])))
}

// gate holds copies back until it is opened.
type gate struct {
	reached chan int // gets the page that is held
	open    chan struct{}
}

func newGate() *gate { return &gate{make(chan int, 1), make(chan struct{})} }

// wait is for CopyForTesting.
func (g *gate) wait(page int) {
	select {
	case g.reached <- page:
	default:
	}
	<-g.open
}
