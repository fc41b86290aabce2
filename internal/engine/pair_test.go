package engine

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/script"
)

// pairRoom is a room in the plainest form.
type pairRoom struct {
	id       ID // of the prefill half, if there
	prompt   []uint32
	prefill  bool
	joined   bool
	computed bool
	until    time.Duration // when it is closed if nothing happens; meaningful if it waits
	waits    bool
}

// pairs drives one engine that is sent halves of both kinds, and keeps the rooms and the halves in the plainest form.
type pairs struct {
	c     *Core
	rng   *rand.Rand
	now   time.Duration
	last  ID
	rooms map[string]*pairRoom
	fetch map[ID]time.Duration // decode halves that are being fetched, to when they give up
	open  map[ID]*Request      // decode halves and whole requests that have not ended
	took  int
}

// TestPairsAgainstModel throws halves of pairs, joins, departures, handovers and aborts at a small engine, and compares what becomes of the rooms with
// the plain form of them; in the end nothing is held.
func TestPairsAgainstModel(t *testing.T) {
	rng := script.Rand(t)
	took := 0
	for i := range 80 {
		c, err := New(Config{
			BlockSize: 1 + rng.IntN(5), KVBlocks: 20 + rng.IntN(40), MaxRunning: 1 + rng.IntN(6), MaxWaiting: 2 + rng.IntN(10), MaxBatchTokens: 6 + rng.IntN(30),
			PageBytes: rng.IntN(2) * 16, KVEvents: rng.IntN(2) == 0, NoReuse: rng.IntN(3) == 0, Pairing: Pairing(i % 2),
			MeetFor: 20 * time.Millisecond, HoldFor: 30 * time.Millisecond, FetchFor: 25 * time.Millisecond,
			Timing: Timing{StepFixed: time.Millisecond, PrefillPerToken: time.Microsecond},
		})
		if err != nil {
			t.Fatal(err)
		}
		p := &pairs{c: c, rng: rng, rooms: map[string]*pairRoom{}, fetch: map[ID]time.Duration{}, open: map[ID]*Request{}}
		for range 300 {
			p.now += time.Duration(rng.IntN(3000)) * time.Microsecond
			p.advance(t)
			p.one(t)
			p.advance(t)
		}
		for at, ok := c.Next(); ok; at, ok = c.Next() {
			p.now = max(p.now, at)
			p.advance(t)
		}
		if l := c.Load(); l.Running+l.Waiting+l.UsedTokens+l.TotalTokens+l.Meeting+l.Joined+l.Held+l.Fetching != 0 || len(p.rooms)+len(p.open)+len(c.rooms)+len(c.live) != 0 || c.pool.free != c.cfg.KVBlocks {
			t.Fatalf("at rest: %+v; rooms %v, requests %v; %d blocks free of %d", l, slices.Sorted(maps.Keys(p.rooms)), slices.Sorted(maps.Keys(p.open)), c.pool.free, c.cfg.KVBlocks)
		}
		took += p.took
	}
	if took < 100 {
		t.Errorf("%d handovers: the test shows too little", took)
	}
}

// one does one thing at random.
func (p *pairs) one(t *testing.T) {
	name := fmt.Sprint("r", p.rng.IntN(6))
	r := p.rooms[name]
	switch p.rng.IntN(8) {
	case 0, 1:
		p.submit(t, PrefillHalf, name)
	case 2:
		p.submit(t, DecodeHalf, "")
	case 3:
		p.submit(t, Whole, "")
	case 4:
		p.join(t, name)
	case 5:
		was := r != nil && r.joined
		if got := p.c.Leave(p.now, name, p.rng.IntN(3) > 0); got != was {
			t.Fatalf("Leave %s = %t", name, got)
		}
	case 6:
		p.answerFetch(t)
	case 7:
		if ids := slices.Sorted(maps.Keys(p.open)); len(ids) > 0 && p.rng.IntN(3) == 0 {
			id := ids[p.rng.IntN(len(ids))]
			if !p.c.Abort(p.now, id) {
				t.Fatalf("request %d cannot be aborted", id)
			}
			delete(p.open, id)
			delete(p.fetch, id)
		} else if r != nil && r.prefill && !p.c.Abort(p.now, r.id) {
			t.Fatalf("the prefill half of %s cannot be aborted", name)
		}
	}
}

func (p *pairs) submit(t *testing.T, h Half, name string) {
	p.last++
	req := Request{ID: p.last, Prompt: randomPrompt(p.rng), MaxTokens: 1 + p.rng.IntN(8), Half: h, Room: name}
	req.Prompt = req.Prompt[:min(len(req.Prompt), p.c.cfg.MaxModelLen-8, 20)]
	r := p.rooms[name]
	err := p.c.Submit(p.now, req)
	switch {
	case h == PrefillHalf && r != nil && r.prefill:
		if !errors.Is(err, ErrRoomTaken) {
			t.Fatalf("two prefill halves in %s: %v", name, err)
		}
		return
	case err != nil:
		if !errors.Is(err, ErrQueueFull) {
			t.Fatal(err)
		}
		return
	case h != PrefillHalf:
		p.open[req.ID] = &req
		return
	case r == nil:
		r = &pairRoom{}
		p.rooms[name] = r
	}
	r.id, r.prompt, r.prefill = req.ID, req.Prompt, true
	r.waits, r.until = !r.joined && p.c.cfg.Pairing == Push, p.now+p.c.cfg.MeetFor
}

func (p *pairs) join(t *testing.T, name string) {
	r := p.rooms[name]
	err := p.c.Join(p.now, name)
	switch {
	case r != nil && r.joined:
		if !errors.Is(err, ErrRoomTaken) {
			t.Fatalf("two decode engines in %s: %v", name, err)
		}
	case r == nil && p.c.cfg.Pairing == Pull:
		if !errors.Is(err, ErrNoRoom) {
			t.Fatalf("joined %s, which is not there: %v", name, err)
		}
	case r == nil:
		if errors.Is(err, ErrQueueFull) {
			return
		}
		p.rooms[name] = &pairRoom{joined: true, waits: true, until: p.now + p.c.cfg.MeetFor}
		fallthrough
	default:
		if err != nil {
			t.Fatal(err)
		}
		r = p.rooms[name]
		r.joined, r.waits = true, !r.prefill || r.computed
		if r.computed {
			r.until = p.now + p.c.cfg.HoldFor
		}
	}
}

// answerFetch brings the KV of a decode half, or another's, or nothing.
func (p *pairs) answerFetch(t *testing.T) {
	ids := slices.Sorted(maps.Keys(p.fetch))
	if len(ids) == 0 {
		return
	}
	id := ids[p.rng.IntN(len(ids))]
	delete(p.fetch, id)
	req := p.open[id]
	h := Handover{Prompt: rootHash("", "").next(req.Prompt), Length: len(req.Prompt), Token: 7}
	ok := false
	switch p.rng.IntN(4) {
	case 0:
		ok = p.c.NotFetched(p.now, id)
	case 1:
		h.Length++
		fallthrough
	default:
		ok = p.c.Fetched(p.now, id, h)
	}
	if !ok || p.c.Fetched(p.now, id, h) {
		t.Fatalf("the fetch of %d", id)
	}
}

func (p *pairs) advance(t *testing.T) {
	t.Helper()
	for _, a := range p.c.Advance(p.now, nil) {
		p.take(t, a)
	}
	p.check(t)
}

// take compares an action with the rooms.
func (p *pairs) take(t *testing.T, a Action) {
	t.Helper()
	r := p.rooms[a.Room]
	switch a.Kind {
	case Fetch:
		if a.Missing+a.Cached != len(p.open[a.ID].Prompt)-1+int(p.c.cfg.Pairing) {
			t.Fatalf("%+v of %d tokens", a, len(p.open[a.ID].Prompt))
		}
		p.fetch[a.ID] = a.At + p.c.cfg.FetchFor
	case Ready:
		if r == nil || !r.joined || !r.computed || r.id != a.ID || *a.Handover != (Handover{rootHash("", "").next(r.prompt), len(r.prompt), a.Handover.Token, a.Handover.Cached}) {
			t.Fatalf("%+v: %+v", a, r)
		}
	case Closed:
		late := a.Reason == ReasonUnmatched || a.Reason == ReasonExpired
		if r == nil || a.HasID != r.prefill || late && (!r.waits || a.At != r.until || r.computed != (a.Reason == ReasonExpired)) || a.Reason == ReasonTaken && !r.computed {
			t.Fatalf("%+v: %+v", a, r)
		}
		if a.Reason == ReasonTaken {
			p.took++
		}
		delete(p.rooms, a.Room)
	case Ended, Token:
		p.end(t, a)
	}
}

func (p *pairs) end(t *testing.T, a Action) {
	for _, r := range p.rooms {
		if r.prefill && r.id == a.ID {
			if a.Kind == Ended || r.computed || a.Reason != ReasonLength {
				t.Fatalf("%+v: %+v", a, r)
			}
			r.computed, r.waits, r.until = true, true, a.At+p.c.cfg.HoldFor
			return
		}
	}
	if a.Reason == ReasonUnfetched && p.fetch[a.ID] != 0 && p.fetch[a.ID] != a.At {
		t.Fatalf("%+v: it was to be given up at %v", a, p.fetch[a.ID])
	}
	if a.Reason != Unfinished {
		delete(p.open, a.ID)
		delete(p.fetch, a.ID)
	}
}

// check: every block has as many holders as there are sequences, running, being fetched or in a room, that have it; nothing waits beyond its time.
func (p *pairs) check(t *testing.T) {
	t.Helper()
	held := map[int32]int32{}
	all := slices.Concat(p.c.running, p.c.fetching)
	for _, r := range p.c.holding {
		all = append(all, r.s)
	}
	for _, s := range all {
		for _, b := range s.blocks {
			held[b]++
		}
	}
	for b := range p.c.pool.blocks {
		if got := p.c.pool.blocks[b].refs; got != held[int32(b)] {
			t.Fatalf("block %d counts %d holders, %d sequences hold it", b, got, held[int32(b)])
		}
	}
	for name, r := range p.rooms {
		if r.waits && r.until <= p.now || p.c.rooms[name] == nil {
			t.Fatalf("%s is there at %v: %+v", name, p.now, r)
		}
	}
	if l := p.c.Load(); len(p.c.rooms) != len(p.rooms) || l.Meeting+l.Joined > p.c.cfg.MaxWaiting || l.Running+l.Fetching > p.c.cfg.MaxRunning {
		t.Fatalf("%d rooms, %+v", len(p.c.rooms), l)
	}
}
