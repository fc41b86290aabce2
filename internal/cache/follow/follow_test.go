package follow

import (
	"context"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/perigee-llm/perigee/internal/cache/follow/followtest"
	"github.com/perigee-llm/perigee/internal/cache/lore"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const page = 4

// student follows an engine, and keeps what it learns.
type student struct {
	*Follower
	t    *testing.T
	said []error
	had  bool // of the last

	mu      sync.Mutex
	changed chan struct{}
	lessons []lore.Lesson
}

func follow(t *testing.T, e *followtest.Engine, change ...func(*Options)) *student {
	t.Helper()
	s := &student{t: t, changed: make(chan struct{}, 1)}
	o := Options{Events: e.Events, Replay: e.Replay, Topic: "kv", Lore: lore.Options{Model: "m", BlockTokens: page}, Quiet: 20 * time.Millisecond}
	o.Learned = func(l []lore.Lesson) {
		s.mu.Lock()
		s.lessons = append(s.lessons, l...)
		s.mu.Unlock()
		s.look()
	}
	o.Said = func(err error, had bool) {
		s.mu.Lock()
		s.said, s.had = append(s.said, err), had
		s.mu.Unlock()
		s.look()
	}
	for _, f := range change {
		f(&o)
	}
	s.Follower = New(o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return s
}

func (s *student) look() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// until waits until something is so.
func (s *student) until(what string, is func() bool) {
	s.t.Helper()
	late := time.After(2 * time.Minute)
	for {
		s.mu.Lock()
		ok := is()
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-s.changed:
		case <-late:
			s.t.Fatalf("%s: %d lessons, %+v", what, len(s.lessons), s.Counts())
		}
	}
}

// pages is an event of pages [from, to) of a prompt, whose names are their places.
func pages(prompt uint32, from, to int) followtest.Stored {
	e := followtest.Stored{Page: page}
	if from > 0 {
		before := int64(prompt)<<32 + int64(from-1)
		e.Parent = &before
	}
	for i := from; i < to; i++ {
		e.Names = append(e.Names, int64(prompt)<<32+int64(i))
		for j := range page {
			e.Tokens = append(e.Tokens, prompt*1000+uint32(i*page+j))
		}
	}
	return e
}

// has tells whether the pages of a prompt were all learned, each behind the one before it.
func (s *student) has(prompt uint32, n int) bool {
	one := pages(prompt, 0, n)
	e := prefix.Event{Hashes: make([]prefix.Hash, n), Tokens: one.Tokens, BlockSize: page}
	for _, l := range lore.New(lore.Options{Model: "m", BlockTokens: page}).Apply(&e, nil) {
		if got, known := s.Of(l.Key); !known || got != l || !slices.Contains(s.lessons, l) {
			return false
		}
	}
	return true
}

// TestBeforeAndAfter: what was published before anybody listened is learned, what comes later, and what follows it; also of an event longer than is worked out at once.
func TestBeforeAndAfter(t *testing.T) {
	e := followtest.Start(t)
	e.Publish(pages(1, 0, 2), pages(2, 0, 1))
	e.Publish(pages(1, 2, 3))
	s := follow(t, e, never)
	s.until("what was before", func() bool { return s.has(1, 3) && s.has(2, 1) })
	e.Followed()
	e.Publish(pages(1, 3, 5))
	e.Publish(pages(3, 0, 3*part+7), pages(4, 0, most), pages(5, 0, 2))
	s.until("what came later", func() bool { return s.has(1, 5) && s.has(3, 3*part+7) && s.has(5, 2) })
	if c := s.Counts(); c.Batches != 4 || c.Missed != 0 || c.Bad != 0 || c.Orphans != 0 || c.Learned != uint64(5+1+3*part+7+most+2) || !c.Connected {
		t.Errorf("%+v", c)
	}
}

// TestParts: what is worked out in parts, of pages of any length, is what it is at once.
func TestParts(t *testing.T) {
	for size, n := range map[int]int{4: 3*part + 7, 64: 3 * part, partTokens / 2: 5, partTokens: 3, partTokens + 1: 3} {
		e := prefix.Event{BlockSize: size}
		for i := range n {
			e.Hashes = append(e.Hashes, prefix.Hash(i))
		}
		for i := range n * size {
			e.Tokens = append(e.Tokens, uint32(i))
		}
		o := lore.Options{Model: "m", BlockTokens: size}
		want := lore.New(o).Apply(&e, nil)
		if got := New(Options{Lore: o}).apply(&e, nil); len(got) != n || !slices.Equal(got, want) {
			t.Errorf("%d pages of %d tokens: %d lessons, others", n, size, len(got))
		}
	}
	if got := New(Options{Lore: lore.Options{BlockTokens: page}}).apply(&prefix.Event{Hashes: make([]prefix.Hash, 2*part)}, nil); len(got) != 0 {
		t.Errorf("%d lessons of pages without length", len(got))
	}
}

// TestFar: a number that no engine comes to is no batch, and what is counted stays what it is.
func TestFar(t *testing.T) {
	told := 0
	f := New(Options{Lore: lore.Options{BlockTokens: page}, Learned: func([]lore.Lesson) { told++ }})
	one := followtest.Batch(pages(1, 0, 1))
	for _, seq := range []int64{math.MaxInt64, math.MinInt64, -1, farthest + 1} {
		f.take(seq, one)
	}
	if c := f.Counts(); told != 0 || c.Bad != 2 || c.Missed != 0 || c.Batches != 0 {
		t.Errorf("%+v", c)
	}
	f.take(2, one)
	if c := f.Counts(); told != 1 || c.Missed != 2 || c.Batches != 1 {
		t.Errorf("%+v", c)
	}
}

// never is for who is not asked because it is quiet.
func never(o *Options) { o.Quiet = time.Hour }

// TestGap: a batch that was lost is asked for when the next one shows it.
func TestGap(t *testing.T) {
	e := followtest.Start(t)
	s := follow(t, e, never)
	e.Followed()
	e.Publish(pages(1, 0, 1))
	s.until("the first", func() bool { return s.has(1, 1) })
	e.Lose(pages(1, 1, 2))
	e.Publish(pages(1, 2, 3))
	s.until("what the next one shows", func() bool { return s.has(1, 3) })
}

// TestLost: if none comes it is asked for when it is quiet.
func TestLost(t *testing.T) {
	e := followtest.Start(t)
	e.Publish(pages(1, 0, 1))
	s := follow(t, e)
	s.until("what was before", func() bool { return s.has(1, 1) })
	e.Followed()
	e.PublishAndLose(pages(2, 0, 1), pages(2, 1, 2))
	s.until("what nothing shows", func() bool { return s.has(2, 2) })
	if c := s.Counts(); c.Missed != 0 || c.Orphans != 0 {
		t.Errorf("%+v", c)
	}
}

// TestGone: what no replay has is counted, and what follows it is not known; what begins anew is.
func TestGone(t *testing.T) {
	for name, change := range map[string]func(*Options){"no replay": func(o *Options) { o.Replay = "" }, "forgotten": func(*Options) {}} {
		e := followtest.Start(t)
		s := follow(t, e, change)
		e.Followed()
		e.Publish(pages(1, 0, 1))
		s.until(name, func() bool { return s.has(1, 1) })
		e.Lose(pages(1, 1, 2))
		e.Forget()
		e.Publish(pages(1, 2, 4), pages(2, 0, 1))
		s.until(name, func() bool { return s.has(2, 1) })
		if c := s.Counts(); c.Missed != 1 || c.Orphans != 2 || c.Learned != 2 || s.has(1, 2) {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// TestSpoiled: what is no batch costs itself.
func TestSpoiled(t *testing.T) {
	e := followtest.Start(t)
	s := follow(t, e)
	e.Followed()
	e.Raw([]byte("nonsense"))
	e.Raw(nil)
	e.Publish(pages(1, 0, 2))
	s.until("what follows nonsense", func() bool { return s.has(1, 2) })
	if c := s.Counts(); c.Bad != 2 || c.Batches != 3 || c.Missed != 0 {
		t.Errorf("%+v", c)
	}
}

// TestAway: an engine that is not there is said once, however often it is dialled, and so is that it is there; Run ends while there is nobody.
func TestAway(t *testing.T) {
	e := followtest.Start(t)
	e.Publish(pages(1, 0, 1))
	free := followtest.Start(t) // an address at which there will be nobody
	free.Stop()
	away := follow(t, free)
	s := follow(t, e)
	s.until("there", func() bool { return s.has(1, 1) && len(s.said) == 1 })
	away.until("away", func() bool { return len(away.said) == 1 })
	s.until("there, without an error", func() bool { return s.said[0] == nil })
	away.until("away, with one", func() bool { return away.said[0] != nil && !away.had })
	e.Stop()
	s.until("gone", func() bool { return len(s.said) == 2 && s.said[1] != nil && s.had })
	if c := s.Counts(); c.Connected || c.Learned != 1 || away.Counts().Connected {
		t.Errorf("%+v", c)
	}
}
