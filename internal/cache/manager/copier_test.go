//go:build linux

package manager

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/perigee-llm/perigee/internal/cache/channel/client"
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/storage/hostpool"
	"github.com/perigee-llm/perigee/internal/script"
)

// jobOf is a copy of so many batches of one page each, for a session.
func jobOf(id, number int, out bool, batches int) *copyJob {
	by := &asker{s: &session{id: core.SessionID{Number: uint32(number)}}}
	slots := make([]core.PlanSlot, batches)
	pages := core.Pages{Counts: make([]uint32, batches)}
	for i := range slots {
		slots[i].Bytes, pages.Counts[i] = copyBatch, 1
		pages.Pieces = append(pages.Pieces, core.Piece{Length: copyBatch})
	}
	return newCopyJob(core.CopyID(id), by, out, slots, pages, func(uint32) *hostpool.Pool { return nil })
}

// TestTurns: sessions have turns, restores go first, and publishes are not kept waiting for ever.
func TestTurns(t *testing.T) {
	c := copier{most: 20}
	c.mu.more = sync.NewCond(&c.mu)
	for _, j := range []*copyJob{
		jobOf(1, 1, false, 2), jobOf(2, 1, false, 1), jobOf(3, 2, false, 3), // publishes of 1 and 2
		jobOf(4, 3, true, 3), jobOf(5, 3, true, 1), jobOf(6, 4, true, 4), // restores of 3 and 4
	} {
		c.add(j, false)
	}
	var got []string
	for range 14 {
		j, from, to := c.take()
		got = append(got, fmt.Sprintf("%d:%d", j.id, from))
		if to != from+1 {
			t.Errorf("a batch from %d to %d", from, to)
		}
		if ended := c.give(j, -1, false); ended != (to == len(j.slots)) {
			t.Errorf("%d has ended: %v", j.id, ended)
		}
	}
	want := "4:0 6:0 4:1 1:0 6:1 4:2 6:2 3:0 5:0 6:3 1:1 3:1 2:0 3:2"
	if s := strings.Join(got, " "); s != want {
		t.Errorf("batches\n got %s\nwant %s", s, want)
	}
	c.close()
	if j, _, _ := c.take(); j != nil {
		t.Error("a batch of nothing")
	}
}

// TestHelp: who asks copies himself while nobody else waits, and no more copy at once than may.
func TestHelp(t *testing.T) {
	c := copier{most: 2}
	c.mu.more = sync.NewCond(&c.mu)
	j, other := jobOf(1, 1, true, 4), jobOf(2, 2, true, 1)
	c.add(j, true)
	if from, to, ok := c.own(j); !ok || from != 0 || to != 1 {
		t.Errorf("the first batch: %d to %d, %v", from, to, ok)
	}
	if _, from, _ := c.take(); from != 1 {
		t.Errorf("a worker gets page %d", from)
	}
	if _, _, ok := c.own(j); ok {
		t.Error("three copy where two may")
	}
	got := make(chan int)
	go func() {
		_, from, _ := c.take() // waits for one of them to be done
		got <- from
	}()
	c.give(j, -1, false)
	if from := <-got; from != 2 {
		t.Errorf("then a worker gets page %d", from)
	}
	c.give(j, -1, false)
	c.add(other, true)
	for _, k := range []*copyJob{j, other} {
		if _, _, ok := c.own(k); ok {
			t.Errorf("job %d is helped with while another waits", k.id)
		}
	}
	for range 2 {
		k, _, _ := c.take()
		if ended := c.give(k, -1, false); ended != (k == other) {
			t.Errorf("job %d has ended: %v", k.id, ended)
		}
	}
	if !c.give(j, -1, false) || c.mu.active != 0 || c.waiting() {
		t.Errorf("at the end %d copy", c.mu.active)
	}
	if _, _, ok := c.own(j); ok {
		t.Error("what has ended is helped with")
	}
}

// TestCopyEnds plays random workers, bad pages and stops against the rules: a job ends once, with its last batch; what is told as good was copied, page by
// page, and nothing is handed out behind its end.
func TestCopyEnds(t *testing.T) {
	r := script.Rand(t)
	for range 2000 {
		c := copier{most: 20}
		c.mu.more = sync.NewCond(&c.mu)
		n := 1 + r.IntN(6)
		j := jobOf(1, 1, r.IntN(2) == 0, n)
		c.add(j, false)
		bad, stopAt := r.IntN(2*n), r.IntN(4*n)
		playCopy(t, r, &c, j, bad, stopAt)
	}
}

func playCopy(t *testing.T, r *rand.Rand, c *copier, j *copyJob, bad, stopAt int) {
	type batch struct{ from, to int }
	var out []batch
	copied := make([]bool, len(j.slots))
	ended := 0
	for step := 0; ended == 0; step++ {
		if step == stopAt {
			c.stop(j)
		}
		if j.lined && r.IntN(2) == 0 {
			from, to, ok := 0, 0, r.IntN(2) == 0
			if ok {
				from, to, ok = c.own(j)
			}
			if !ok {
				_, from, to = c.take()
			}
			out = append(out, batch{from, to})
			continue
		}
		if len(out) == 0 {
			continue
		}
		i := r.IntN(len(out))
		b := out[i]
		out = slices.Delete(out, i, i+1)
		first := -1
		for p := b.from; p < b.to; p++ {
			if p == bad {
				first = p
				break
			}
			copied[p] = true
		}
		if c.give(j, first, true) {
			ended++
		}
	}
	if len(out) > 0 || j.busy != 0 || j.lined {
		t.Fatalf("it ended with %d batches out", len(out))
	}
	if j.end > len(j.slots) || j.out && slices.Contains(copied[:j.end], false) {
		t.Fatalf("%d pages are good, and copied were %v", j.end, copied)
	}
	if j.mismatch && j.end != bad {
		t.Fatalf("page %d is told as bad, and it was %d", j.end, bad)
	}
}

// TestOfferedStress has engines publish and restore by both routes at once, in pools of their own, while blocks are evicted and flushed and sessions
// end in the middle: every page that is told as good is the one that was published.
func TestOfferedStress(t *testing.T) {
	m := begin(t, func(o *Options) { o.Instances, o.PoolBytes, o.Copiers = 2, 2*24*8192, 3 })
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	var wg sync.WaitGroup
	for k := range 2 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(k), 5))
			for life := range 3 {
				stressLife(t, m, r, fmt.Sprint("engine", k), rounds, life == 1)
			}
		})
	}
	for range 20 {
		m.Evict(3)
	}
	m.Flush(core.Namespace{})
	wg.Wait()
	m.settled()
}

// stressLife is one session of an engine with two threads.
func stressLife(t *testing.T, m *tester, r *rand.Rand, name string, rounds int, breaks bool) {
	s, err := m.tryDial(named(name))
	for client.ClassOf(err) != 0 { // its share is not free yet: what its last life held is still being fenced
		s, err = m.tryDial(named(name))
	}
	if err != nil {
		t.Error(err)
		return
	}
	defer s.Close()
	e, err := makeMemory(32, pageBytes)
	if err == nil {
		err = s.OfferPool(context.Background(), 0, e.file, 32*pageBytes)
	}
	if err != nil {
		t.Error(err)
		return
	}
	seed := r.Uint64()
	var wg sync.WaitGroup
	wg.Go(func() { stressPublish(t, s, e, rand.New(rand.NewPCG(seed, 1)), rounds) })
	wg.Go(func() {
		stressRestore(t, s, e, rand.New(rand.NewPCG(seed, 2)), rounds)
		if breaks {
			s.Close()
		}
	})
	wg.Wait()
}

func stressPublish(t *testing.T, s *client.Session, e *engineMemory, r *rand.Rand, rounds int) {
	for range rounds {
		p, n := r.IntN(5), 1+r.IntN(8)
		var err error
		if r.IntN(3) == 0 {
			_, err = publish(s, prompt(p, 0, n))
		} else {
			e.fill(p, 0, n)
			_, err = s.PublishFrom(context.Background(), prompt(p, 0, n), e.pages(0, 0, n))
		}
		if err != nil {
			select {
			case <-s.Done():
			default:
				t.Errorf("publish: %v", err)
			}
			return
		}
	}
}

func stressRestore(t *testing.T, s *client.Session, e *engineMemory, r *rand.Rand, rounds int) {
	for range rounds {
		p, n := r.IntN(5), 1+r.IntN(8)
		if r.IntN(3) == 0 {
			if _, err := restore(s, p, n); err != nil && client.ClassOf(err) == 0 {
				t.Errorf("restore: %v", err)
			}
			continue
		}
		for i := 16; i < 24; i++ {
			e.set(i, bytes.Repeat([]byte{0xee}, pageBytes))
		}
		got, err := e.restore(s, 0, p, 16, n)
		if err != nil && client.ClassOf(err) == 0 {
			t.Errorf("restore into: %v", err)
			return
		}
		if held := e.holds(p, 16, n); held < int(got.Good) {
			t.Errorf("%d pages of prompt %d are told as good, and %d are", got.Good, p, held)
		}
	}
}
