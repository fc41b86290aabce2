//go:build !race

// A hundred thousand blocks are told one after the other, which the race detector stretches to a minute; there is one goroutine.

package events

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
	"github.com/perigee-llm/perigee/internal/script"
)

// recorder is an index that notes what it is told.
type recorder struct {
	nobody
	told   []prefix.Event
	pools  []int64
	closed bool
	result index.Result // of everything
}

func (r *recorder) Apply(e *prefix.Event) index.Outcome {
	c := *e
	c.Hashes, c.Tokens = slices.Clone(e.Hashes), slices.Clone(e.Tokens)
	r.told = append(r.told, c)
	return index.Outcome{Result: r.result, Blocks: len(e.Hashes)}
}

func (r *recorder) Close()              { r.closed = true }
func (r *recorder) Expect(tokens int64) { r.pools = append(r.pools, tokens) }

func (r *recorder) hashes() (all []prefix.Hash) {
	for i := range r.told {
		all = append(all, r.told[i].Hashes...)
	}
	return all
}

// storedBatch is a batch with stores of so many blocks each, of one token, behind nobody. Hashes count on from first.
func storedBatch(first int, blocks ...int) []byte {
	b := msgp.AppendArrayHeader(msgp.AppendNil(msgp.AppendArrayHeader(nil, 2)), uint32(len(blocks)))
	for _, n := range blocks {
		b = msgp.AppendString(msgp.AppendArrayHeader(b, 5), "BlockStored")
		b = msgp.AppendArrayHeader(b, uint32(n))
		for i := range n {
			b = msgp.AppendUint64(b, uint64(first+i))
		}
		b = msgp.AppendNil(b)
		b = msgp.AppendArrayHeader(b, uint32(n))
		for i := range n {
			b = msgp.AppendUint32(b, uint32(first+i))
		}
		b = msgp.AppendInt(b, 1)
		first += n
	}
	return b
}

// recorded has feeds tell recorders; each is connected.
func recorded(t *testing.T, n int) (*applier, []*feed, []*recorder) {
	t.Helper()
	a, feeds := idle(t, Options{}, n)
	all := make([]*recorder, n)
	for i, f := range feeds {
		all[i] = &recorder{}
		f.claims = all[i]
		a.handle(message{feed: f, input: stream.Input{Kind: stream.Connected}})
	}
	return a, feeds, all
}

// TestLongBatchIsCut: while a batch of many blocks is applied, the others of the domain have their turns, and nothing of it is lost or changed.
func TestLongBatchIsCut(t *testing.T) {
	for name, blocks := range map[string][]int{
		"one event":         {3*turnBlocks + 100},
		"just two turns":    {turnBlocks, turnBlocks},
		"many short events": slices.Repeat([]int{7}, 5000),
	} {
		t.Run(name, func(t *testing.T) {
			a, feeds, told := recorded(t, 2)
			long, short := feeds[0], feeds[1]
			total := 0
			for _, n := range blocks {
				total += n
			}
			long.offer(0, storedBatch(0, blocks...))
			long.offer(1, storedBatch(total, 1))
			seq, last := int64(0), 0
			for {
				short.offer(seq, storedBatch(int(seq), 1))
				seq++
				busy := a.takeTurn()
				busy = a.takeTurn() && busy
				if got := int(long.counts.Blocks); got-last > turnBlocks+7 {
					t.Errorf("a turn of %d blocks", got-last)
				}
				last = int(long.counts.Blocks)
				if len(told[1].told) != int(seq) {
					t.Fatalf("the other feed waits: %d of %d", len(told[1].told), seq)
				}
				if !busy || last == total+1 {
					break
				}
			}
			if want := int64(total/(turnBlocks+len(blocks)+7) + 1); seq < want {
				t.Errorf("%d turns, want %d", seq, want)
			}
			got := told[0].hashes()
			if len(got) != total+1 {
				t.Fatalf("%d blocks were told, want %d", len(got), total+1)
			}
			for i, h := range got {
				if h != prefix.Hash(i) {
					t.Fatalf("block %d is %d", i, h)
				}
			}
			if c := long.counts; c.Stored != uint64(len(blocks)+1) || c.BadBatches != 0 || c.Refused != 0 {
				t.Errorf("%+v", c)
			}
			if a.inUse != 0 || len(long.slots) != 0 || long.waiting.Load() != 0 || long.waitingBytes.Load() != 0 {
				t.Errorf("%d decoders, %d places and %d messages are left", a.inUse, len(long.slots), long.waiting.Load())
			}
		})
	}
}

// TestPausedFeed: what else may happen to a feed that has paused.
func TestPausedFeed(t *testing.T) {
	begin := func(t *testing.T) (*applier, *feed, *feed, []*recorder) {
		a, feeds, told := recorded(t, 2)
		feeds[0].offer(0, storedBatch(0, 3*turnBlocks))
		if !a.takeTurn() || !feeds[0].paused() || a.inUse != 1 {
			t.Fatal("it has not paused")
		}
		return a, feeds[0], feeds[1], told
	}
	drain := func(a *applier) {
		for a.takeTurn() {
		}
	}
	t.Run("ends", func(t *testing.T) {
		a, f, other, told := begin(t)
		f.abandon()
		f.step(time.Now(), stream.Input{Kind: stream.Closed})
		f.claims.Close()
		f.ended = true
		other.offer(0, storedBatch(0, 1))
		drain(a)
		if len(told[1].told) != 1 || len(told[0].hashes()) != turnBlocks-1 || a.inUse != 0 || f.paused() {
			t.Errorf("the other was told %d; of the one that ended %d blocks; %d decoders", len(told[1].told), len(told[0].hashes()), a.inUse)
		}
	})
	t.Run("drops", func(t *testing.T) {
		a, f, _, told := begin(t)
		f.drop()
		a.seeDropped()
		if before := f.m.Status(); before.Losses != 0 {
			t.Errorf("%+v", before)
		}
		drain(a)
		if n := len(told[0].hashes()); n != 3*turnBlocks || f.dropWaits {
			t.Errorf("%d blocks, and the drop waits: %v", n, f.dropWaits)
		}
		if s := f.m.Status(); s.Losses != 1 {
			t.Errorf("nobody has heard of the drop: %+v", s)
		}
	})
	t.Run("cannot wait", func(t *testing.T) {
		a, f, _, told := begin(t)
		f.step(time.Now(), stream.Input{Kind: stream.Renewed})
		if n := len(told[0].hashes()); n != 3*turnBlocks || f.paused() || a.inUse != 0 {
			t.Errorf("%d blocks", n)
		}
		drain(a)
	})
	t.Run("refused", func(t *testing.T) {
		a, f, _, told := begin(t)
		told[0].result = index.Exceeded
		drain(a)
		if len(told[0].told) != 2 || f.counts.Refused != 1 || f.cutOff.IsZero() {
			t.Errorf("told %d parts, %+v", len(told[0].told), f.counts)
		}
	})
	t.Run("too many", func(t *testing.T) {
		a, feeds, told := recorded(t, mostDecoders+2)
		for _, f := range feeds {
			f.offer(0, storedBatch(0, 2*turnBlocks))
		}
		for i := range feeds {
			a.takeTurn()
			if paused := feeds[i].paused(); paused != (i < mostDecoders) {
				t.Errorf("feed %d has paused: %v", i, paused)
			}
		}
		drain(a)
		for i := range told {
			if n := len(told[i].hashes()); n != 2*turnBlocks {
				t.Errorf("feed %d: %d blocks", i, n)
			}
		}
		if a.inUse != 0 {
			t.Errorf("%d decoders are in use", a.inUse)
		}
	})
}

// TestPartsSayTheSame tells one index events, and another their parts: stores, over and over, with hashes that mean other blocks than
// before and extra keys, behind each other; and removals.
func TestPartsSayTheSame(t *testing.T) {
	rng := script.Rand(t)
	whole, parts := index.New(index.Config{Model: "m", BlockSize: 2, Limit: 60}), index.New(index.Config{Model: "m", BlockSize: 2, Limit: 60})
	a, b := whole.Open(1, 0), parts.Open(1, 0)
	whole.Mark(a, index.Exact)
	parts.Mark(b, index.Exact)
	for n := range 3000 {
		e := prefix.Event{Kind: prefix.Stored, BlockSize: 2, Tier: prefix.Tier(rng.IntN(2))}
		blocks := 1 + rng.IntN(12)
		for range blocks {
			e.Hashes = append(e.Hashes, prefix.Hash(rng.IntN(80)))
		}
		switch rng.IntN(5) {
		case 0:
			e.Kind = prefix.Removed
		default:
			for range 2 * blocks {
				e.Tokens = append(e.Tokens, uint32(rng.IntN(2)))
			}
			if rng.IntN(4) == 0 {
				e.Extras = make([][]byte, blocks)
				e.Extras[rng.IntN(blocks)] = []byte{1}
			}
			e.HasParent, e.Parent = rng.IntN(2) == 0, prefix.Hash(rng.IntN(80))
		}
		want := whole.Apply(a, &e)
		var got index.Outcome
		for i := 0; i < blocks && got.Result == index.Applied; {
			j := i + 1 + rng.IntN(blocks-i)
			p := part(&e, i, j)
			o := parts.Apply(b, &p)
			got.Result = o.Result
			got.Blocks, got.Unknown, got.Moved = got.Blocks+o.Blocks, got.Unknown+o.Unknown, got.Moved+o.Moved
			i = j
		}
		if got != want {
			t.Fatalf("%+v: in parts %+v, whole %+v", e, got, want)
		}
		if want.Result == index.Exceeded {
			for _, x := range []struct {
				ix *index.Index
				h  index.Holder
			}{{whole, a}, {parts, b}} {
				x.ix.Withdraw(x.h)
				x.ix.Mark(x.h, index.Exact)
			}
		}
		if n%10 > 0 {
			continue // a copy looks at all numbers that blocks may have
		}
		if g, w := claims(parts, b), claims(whole, a); !slices.Equal(g, w) {
			t.Fatalf("%+v: in parts %v, whole %v", e, g, w)
		}
	}
}

// claims are all that a holder claims, in an order.
func claims(ix *index.Index, h index.Holder) (all []index.Claim) {
	var at index.Cursor
	var into [64]index.Claim
	for !at.Done {
		all = append(all, into[:ix.Copy(h, &at, into[:])]...)
	}
	slices.SortFunc(all, func(a, b index.Claim) int {
		return cmp.Or(cmp.Compare(a.Hash, b.Hash), cmp.Compare(a.Name.Lo, b.Name.Lo))
	})
	return all
}

// TestPool: the claims are told how large the pool is that a load report names, once, and nothing while nobody says.
func TestPool(t *testing.T) {
	a, feeds, told := recorded(t, 1)
	f := feeds[0]
	f.e.target.Worker = &fleet.Worker{Load: load.NewEngine(0, nil)}
	now := time.Now()
	say := func(at time.Duration, tokens load.Count) {
		f.e.target.Worker.Load.Observe(0, load.RankReport{At: now.Add(at), Capacity: tokens})
	}
	look := func(at time.Duration, want ...int64) {
		t.Helper()
		f.step(now.Add(at), stream.Input{Kind: stream.Dropped})
		if !slices.Equal(told[0].pools, want) {
			t.Errorf("after %v: told %v, want %v", at, told[0].pools, want)
		}
	}
	look(time.Minute)
	say(time.Minute, load.Known(4096))
	look(time.Minute + poolEvery/2)
	look(time.Minute+poolEvery, 4096)
	say(2*time.Minute, load.Count{})
	look(2*time.Minute, 4096)
	say(3*time.Minute, load.Known(0))
	look(3*time.Minute, 4096)
	f.e.target.Worker.Load.Forget()
	look(4*time.Minute, 4096)
	say(5*time.Minute, load.Known(8192))
	look(5*time.Minute, 4096, 8192)
	if a.inUse != 0 {
		t.Error(a.inUse)
	}
}
