package manager

import (
	"slices"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/storage/hostpool"
	"github.com/perigee-llm/perigee/internal/cache/storage/pool"
)

// copyJob is a copy between slots and an engine's own memory that the core has asked for. It is done in batches of pages, by as
// many workers as have the time, and its end is told once, when the last batch has come back: whatever became of those who wanted it.
type copyJob struct {
	id    core.CopyID
	by    asker
	out   bool
	slots []core.PlanSlot
	pages core.Pages
	bytes int64
	first []int                     // of each page's pieces; they are pages.Pieces[first[i]:first[i+1]]
	pools map[uint32]*hostpool.Pool // those of the pieces

	// Guarded by the copier's lock.
	next     int // the first page that no worker has
	end      int // the first page that is not to be copied any more
	busy     int // batches that workers have
	lined    bool
	mismatch bool
	// in is each page's end, written by the worker that has it.
	in []core.CopiedPage
}

func newCopyJob(id core.CopyID, by *asker, out bool, slots []core.PlanSlot, pages core.Pages, pool func(uint32) *hostpool.Pool) *copyJob {
	j := &copyJob{id: id, by: *by, out: out, slots: slots, pages: pages, end: len(slots), pools: map[uint32]*hostpool.Pool{}}
	j.first = make([]int, 1, len(slots)+1)
	at := 0
	for i := range slots {
		_, at = pages.Page(i, at)
		j.first = append(j.first, at)
		j.bytes += int64(slots[i].Bytes)
	}
	for i, x := range pages.Pieces {
		if i == 0 || x.Pool != pages.Pieces[i-1].Pool {
			j.pools[x.Pool] = pool(x.Pool)
		}
	}
	if !out {
		j.in = make([]core.CopiedPage, len(slots))
	}
	return j
}

// line is one session's copies in one direction, oldest first.
type line struct {
	session uint32
	jobs    []*copyJob
}

// copier makes copies in a bounded number of goroutines: its own, and those of connections, which help with the copies that they have asked for (help). Sessions have turns, a batch each; restores go before publishes, since
// a request waits for them, but for one batch in four, so that nobody waits for ever. What may wait is bounded by the core's limits.
type copier struct {
	m    *Manager
	wg   sync.WaitGroup
	most int // goroutines that copy at once
	mu   struct {
		sync.Mutex
		more   *sync.Cond
		active int        // goroutines that copy
		turns  [2][]*line // of publishes, and of restores
		ahead  int        // batches of restores since the last one of a publish
		closed bool
	}
}

// copyBatch is how many bytes a worker copies before it looks again, at least a page: some 40 µs, of which the look takes a hundredth, and small
// enough for two workers to share the 2 MiB of 128 small pages.
const copyBatch = 256 << 10

// restoresAhead is how many batches of restores go before one of publishes that wait.
const restoresAhead = 3

func (c *copier) start(m *Manager, workers int) {
	c.m, c.most = m, workers
	c.mu.more = sync.NewCond(&c.mu)
	for range workers {
		c.wg.Go(c.work)
	}
}

// add takes a copy in. It never waits. helped says that whoever asks for it says help then.
func (c *copier) add(j *copyJob, helped bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	lane := &c.mu.turns[lane(j.out)]
	session := j.by.s.id.Number
	j.lined = true
	if at := slices.IndexFunc(*lane, func(l *line) bool { return l.session == session }); at >= 0 {
		(*lane)[at].jobs = append((*lane)[at].jobs, j)
	} else {
		*lane = append(*lane, &line{session, []*copyJob{j}})
	}
	if !helped || !c.mayHelp(j) {
		c.mu.more.Signal() // whoever takes a batch wakes the next if there is more
	}
}

// helpMost is up to how many bytes the goroutine of whoever asks copies: behind it there may be other messages on its connection, which wait for half a
// millisecond or two.
const helpMost = 8 << 20

// wakeWorth is how long what is left must take for another goroutine to be woken for it: on a virtual machine an idle processor takes some 100 µs
// to come, and waking it costs 10 here.
const wakeWorth = 200 * time.Microsecond

// mayHelp says that nobody waits but j, and that somebody more may copy.
func (c *copier) mayHelp(j *copyJob) bool {
	own, other := c.mu.turns[lane(j.out)], c.mu.turns[1-lane(j.out)]
	return j.lined && c.mu.active < c.most && len(other) == 0 && len(own) == 1 && own[0].jobs[0] == j && len(own[0].jobs) == 1
}

// own takes the next batch of a job for whoever has asked for it; ok is false if others are to be left to it.
func (c *copier) own(j *copyJob) (from, to int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mayHelp(j) {
		return 0, 0, false
	}
	_, from, to = c.batch(&c.mu.turns[lane(j.out)])
	return from, to, true
}

// help copies of a job what it may in the goroutine of whoever has asked for it: there is a processor already, and the answer goes out there. Others are
// woken when it is seen that they would come before the end. It says whether the job has ended.
func (c *copier) help(j *copyJob) (ended bool) {
	began, bytes, alone := time.Now(), int64(0), true
	for bytes < helpMost {
		from, to, ok := c.own(j)
		if !ok {
			break
		}
		if c.copy(j, from, to) {
			return true
		}
		for i := from; i < to; i++ {
			bytes += int64(j.slots[i].Bytes)
		}
		if left := j.bytes - bytes; alone && left > 0 && float64(time.Since(began))*float64(left) > float64(wakeWorth)*float64(bytes) {
			alone = false
			c.wake()
		}
	}
	c.wake() // for what is left of it, if anything is
	return false
}

func (c *copier) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting() {
		c.mu.more.Signal()
	}
}

func lane(out bool) int {
	if out {
		return 1
	}
	return 0
}

// stop lets a copy end with the batches that workers have.
func (c *copier) stop(j *copyJob) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if j.next < j.end {
		j.end, j.mismatch = j.next, false
	}
	c.mu.more.Signal() // somebody has to see that it has ended
}

// close waits until everything that was taken in has ended. Nothing is added any more.
func (c *copier) close() {
	c.mu.Lock()
	c.mu.closed = true
	c.mu.more.Broadcast()
	c.mu.Unlock()
	c.wg.Wait()
}

func (c *copier) work() {
	for {
		j, from, to := c.take()
		if j == nil {
			return
		}
		if c.copy(j, from, to) {
			c.m.copyEnded(j, nil)
		}
	}
}

// copy does a batch and brings it back. It says whether the job has ended.
func (c *copier) copy(j *copyJob, from, to int) (ended bool) {
	bad, mismatch := -1, false
	if from < to {
		began := time.Now()
		bad, mismatch = c.m.copyPages(j, from, to)
		hostpool.Fence() // the batch is told of from here on
		c.m.counts.copyNanos[lane(j.out)].Add(int64(time.Since(began)))
	}
	return c.give(j, bad, mismatch)
}

// take waits for a batch: pages from to to of a job, none for one that has only to be seen to its end. nil: there will be no more.
func (c *copier) take() (j *copyJob, from, to int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		lane := &c.mu.turns[1]
		if len(*lane) == 0 || len(c.mu.turns[0]) > 0 && c.mu.ahead >= restoresAhead {
			lane = &c.mu.turns[0]
		}
		if len(*lane) > 0 && c.mu.active < c.most {
			c.mu.ahead++
			if lane == &c.mu.turns[0] {
				c.mu.ahead = 0
			}
			j, from, to = c.batch(lane)
			if c.waiting() && c.mu.active < c.most {
				c.mu.more.Signal()
			}
			return j, from, to
		}
		if c.mu.closed {
			return nil, 0, 0
		}
		c.mu.more.Wait()
	}
}

// batch takes the next batch of the session whose turn it is.
func (c *copier) batch(lane *[]*line) (j *copyJob, from, to int) {
	l := (*lane)[0]
	*lane = (*lane)[1:]
	j = l.jobs[0]
	from = min(j.next, j.end)
	for bytes := 0; j.next < j.end && bytes < copyBatch; j.next++ {
		bytes += int(j.slots[j.next].Bytes)
	}
	to = max(from, min(j.next, j.end))
	j.busy++
	c.mu.active++
	if j.next >= j.end {
		l.jobs, j.lined = l.jobs[1:], false
	}
	if len(l.jobs) > 0 {
		*lane = append(*lane, l)
	}
	return j, from, to
}

// waiting says that there is something to be copied.
func (c *copier) waiting() bool { return len(c.mu.turns[0])+len(c.mu.turns[1]) > 0 }

// give brings a batch back, with the first page of it that could not be copied, or -1. It says whether the job has ended.
func (c *copier) give(j *copyJob, bad int, mismatch bool) (ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	j.busy--
	if c.mu.active--; c.mu.active == c.most-1 && c.waiting() {
		c.mu.more.Signal() // who could not copy while so many did
	}
	if j.out && bad >= 0 && bad < j.end {
		j.end, j.mismatch = bad, mismatch
	}
	return j.busy == 0 && !j.lined // whose end came nearer may still be in line: then whoever takes it from there ends it
}

// copyPages copies some pages of a job. For a restore it says which one is the first that could not be; what is behind it is of no use.
func (m *Manager) copyPages(j *copyJob, from, to int) (bad int, mismatch bool) {
	if m.opt.CopyForTesting == nil {
		return m.copyRun(j, from, to)
	}
	bad = -1
	for i := from; i < to && bad < 0; i++ {
		if j.slots[i].Bytes > 0 {
			m.opt.CopyForTesting(j.by.s.id, j.out, i) // which may wait, and so without the lock
		}
		bad, mismatch = m.copyRun(j, i, i+1)
	}
	return bad, mismatch
}

// copyRun is copyPages of a batch. Between its pages nothing is locked or counted: an instruction that does so waits until what was stored past the caches has arrived, which
// takes a quarter of the time that 16 KiB take.
func (m *Manager) copyRun(j *copyJob, from, to int) (bad int, mismatch bool) {
	bytes := 0
	m.mem.RLock() // for each batch, so that nobody waits long for the arenas
	defer func() {
		m.mem.RUnlock()
		m.counts.copiedBytes[lane(j.out)].Add(int64(bytes))
	}()
	seen := lookups{m: m, j: j}
	for i := from; i < to; i++ {
		if j.slots[i].Bytes == 0 {
			continue
		}
		sum, err := seen.copyPage(i)
		switch {
		case err == nil:
			bytes += int(j.slots[i].Bytes)
			if j.out && sum != j.slots[i].Checksum {
				return i, true
			}
		case j.out:
			return i, false
		}
		if !j.out {
			j.in[i] = core.CopiedPage{OK: err == nil, Checksum: sum}
		}
	}
	return -1, false
}

// lookups are what a batch has looked up last: most often all of its pages lie in one arena and one pool. The arenas are held for as long as it is used.
type lookups struct {
	m       *Manager
	j       *copyJob
	arena   *pool.Arena // nil: none yet
	arenaID uint32
	pool    *hostpool.Pool // nil: none yet
	poolID  uint32
}

// slotOf is the bytes of a slot.
func (l *lookups) slotOf(s *core.PlanSlot) ([]byte, error) {
	if l.arena == nil || l.arenaID != s.Slot.Arena {
		l.arena, l.arenaID = l.m.mem.arenas[s.Slot.Arena], s.Slot.Arena
		if l.arena == nil {
			return nil, errNoArena
		}
	}
	return l.arena.Slot(s.Slot.Index, s.Bytes), nil
}

func (l *lookups) poolOf(id uint32) *hostpool.Pool {
	if l.pool == nil || l.poolID != id {
		l.pool, l.poolID = l.j.pools[id], id
	}
	return l.pool
}

// copyPage copies page i between its slot and where else it lies, and returns the checksum of what was copied: of a page that is changed before or while it is copied out a mismatch is
// found, and one that is changed behind it has been copied already.
func (l *lookups) copyPage(i int) (sum uint64, err error) {
	slot, err := l.slotOf(&l.j.slots[i])
	if err != nil {
		return 0, err
	}
	return l.move(i, slot)
}

// move copies between a slot and page i's pieces, and returns the checksum of what was copied.
func (l *lookups) move(i int, slot []byte) (sum uint64, err error) {
	j := l.j
	all := j.pages.Pieces[j.first[i]:j.first[i+1]]
	for pieces, part := all, slot; len(pieces) > 0 && err == nil; {
		n, bytes := 0, 0
		for ; n < len(pieces) && pieces[n].Pool == pieces[0].Pool; n++ {
			bytes += int(pieces[n].Length)
		}
		runs := func(k int) (at uint64, length int) { return pieces[k].Offset, int(pieces[k].Length) }
		switch pool := l.poolOf(pieces[0].Pool); {
		case n == len(all) && j.out:
			sum, err = pool.Write(part[:bytes], n, runs)
		case n == len(all):
			sum, err = pool.Read(part[:bytes], n, runs)
		case j.out:
			err = pool.WritePart(part[:bytes], n, runs)
		default:
			err = pool.ReadPart(part[:bytes], n, runs)
		}
		if n < len(all) && n == len(pieces) && err == nil {
			sum = xxh3.Hash(slot) // no pool had all of it
		}
		pieces, part = pieces[n:], part[bytes:]
	}
	return sum, err
}
