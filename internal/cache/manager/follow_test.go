//go:build linux

package manager

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/cache/channel/client"
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/follow/followtest"
	"github.com/perigee-llm/perigee/internal/cache/lore"
	"github.com/perigee-llm/perigee/internal/chain"
)

// pageTokens are the tokens of pages [from, to) of a prompt, the same ones for the same place.
func pageTokens(p, from, to int) (out []uint32) {
	for i := from * blockTokens; i < to*blockTokens; i++ {
		out = append(out, uint32(p*100000+i))
	}
	return out
}

// pageKeys are SGLang's keys of a prompt's first pages, behind a seed.
func pageKeys(seed []byte, p, n int) (out []core.Hash) {
	before := seed
	for i := range n {
		b := before
		for _, t := range pageTokens(p, i, i+1) {
			b = binary.LittleEndian.AppendUint32(b[:len(b):len(b)], t)
		}
		sum := sha256.Sum256(b)
		out, before = append(out, sum), sum[:]
	}
	return out
}

// pages publishes pages [from, to) of a prompt, with their tokens or without.
func pages(seed []byte, p, from, to int, tokens bool) *client.Publish {
	pub, keys := &client.Publish{}, pageKeys(seed, p, to)
	for i := from; i < to; i++ {
		b := wire.Block{Hash: keys[i]}
		if i > 0 {
			b.Parent = keys[i-1]
		}
		if tokens {
			b.Tokens = pageTokens(p, i, i+1)
		}
		pub.Blocks = append(pub.Blocks, b)
	}
	return pub
}

// told is the engine's event of pages [from, to), by names that are anybody's.
func told(p, from, to int) followtest.Stored {
	e := followtest.Stored{Page: blockTokens, Tokens: pageTokens(p, from, to)}
	for i := from; i < to; i++ {
		e.Names = append(e.Names, int64(p*1000+i))
	}
	if from > 0 {
		before := int64(p*1000 + from - 1)
		e.Parent = &before
	}
	return e
}

func pageNames(lora, salt string, p, n int) []chain.Key {
	return chain.Root{Model: "m", BlockSize: blockTokens, LoRA: lora, Salt: salt}.Key().Append(nil, pageTokens(p, 0, n), blockTokens)
}

// sglang is a session whose blocks are named by SGLang's keys.
func sglang(o *client.Options) {
	o.URL = "http://a:8000"
	o.Ranks[0].Hash.Algorithm = "sglang_sha256"
}

func follows(t *testing.T, s *client.Session, e *followtest.Engine, adapters ...wire.Adapter) {
	t.Helper()
	if err := s.Follow(t.Context(), &wire.Follow{Events: e.Events, Replay: e.Replay, Topic: "kv", Adapters: adapters}); err != nil {
		t.Fatal(err)
	}
}

// learnedBy waits until so many pages were learned from engines' events.
func (m *tester) learnedBy(n int) {
	m.t.Helper()
	m.until("learned", func(Status) bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		got, _ := m.followedAll()
		return got.Learned >= uint64(n)
	})
}

// TestLearned: gateways hear of blocks that were published without tokens, whether the engine's event comes before or after; they go by that name, and the counts say how many there are of which nobody knows.
func TestLearned(t *testing.T) {
	m := begin(t, telling, func(o *Options) { o.Admin = "127.0.0.1:0" })
	l := m.listen(t)
	e := followtest.Start(t)
	e.Publish(told(1, 0, 3)) // before anybody follows
	s := m.dial(sglang)
	names := pageNames("", "", 1, 8)
	if _, err := publish(s, pages(nil, 1, 0, 2, false)); err != nil {
		t.Fatal(err)
	}
	follows(t, s, e)
	l.until("what was stored before", func() bool { return l.holds(names[:2]...) })
	if _, err := publish(s, pages(nil, 1, 2, 6, false)); err != nil { // of the first the event was before, of the others it comes
		t.Fatal(err)
	}
	l.until("what was told before", func() bool { return l.holds(names[:3]...) })
	e.Publish(told(1, 3, 6))
	l.until("all", func() bool { return l.holds(names[:6]...) })
	if _, err := publish(s, pages(nil, 2, 0, 3, false)); err != nil { // of which no event tells
		t.Fatal(err)
	}
	_, metrics := m.admin("GET", "/metrics", nil)
	for _, want := range []string{
		"perigee_cache_events_unnamed_blocks_total 9", "perigee_cache_events_named_late_blocks_total 6", "perigee_cache_followed_engines 1",
		`perigee_cache_followed_batches_total{outcome="read"} 2`, `perigee_cache_followed_batches_total{outcome="missed"} 0`,
		`perigee_cache_followed_blocks_total{outcome="learned"} 6`, `perigee_cache_followed_blocks_total{outcome="orphan"} 0`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("no %q in the metrics", want)
		}
	}
	m.Flush([32]byte{})
	l.until("flushed", func() bool { return len(l.names) == 0 })
	s.Close()
	m.settled()
	if _, metrics := m.admin("GET", "/metrics", nil); !strings.Contains(metrics, "perigee_cache_followed_engines 0\n") || !strings.Contains(metrics, `perigee_cache_followed_blocks_total{outcome="learned"} 6`) {
		t.Error("what was learned is forgotten with the session, or the engine still followed")
	}
}

// TestLearnedApart: salts and adapters have names of their own, as they have with tokens.
func TestLearnedApart(t *testing.T) {
	for name, c := range map[string]struct{ lora, extra, salt string }{"salt": {salt: "tenant"}, "adapter": {lora: "tuned", extra: "0123abcd"}} {
		m := begin(t, telling)
		l := m.listen(t)
		e := followtest.Start(t)
		s := m.dial(sglang)
		follows(t, s, e, wire.Adapter{Name: "tuned", Extra: "0123abcd"})
		e.Followed()
		event := told(1, 0, 4)
		event.LoRA, event.Salt = c.lora, c.salt
		e.Publish(event)
		m.learnedBy(4)
		if _, err := publish(s, pages(nil, 1, 0, 4, false)); err != nil { // the same tokens without either
			t.Fatal(err)
		}
		if _, err := publish(s, pages(lore.Seed(c.extra, c.salt), 1, 0, 4, false)); err != nil {
			t.Fatal(err)
		}
		l.until(name, func() bool { return l.holds(pageNames(c.lora, c.salt, 1, 4)...) })
	}
}

// TestLearnedLies: an engine whose events say what is not has nothing named by them.
func TestLearnedLies(t *testing.T) {
	m := begin(t, telling)
	l := m.listen(t)
	e := followtest.Start(t)
	s := m.dial(sglang)
	follows(t, s, e)
	e.Followed()
	lie := told(1, 0, 4)
	lie.Tokens[5]++
	e.Publish(lie)
	m.learnedBy(4)
	if _, err := publish(s, pages(nil, 1, 0, 4, false)); err != nil {
		t.Fatal(err)
	}
	e.Publish(told(2, 0, 1))
	if _, err := publish(s, pages(nil, 2, 0, 1, false)); err != nil {
		t.Fatal(err)
	}
	l.until("the truth alone", func() bool { return l.holds(pageNames("", "", 2, 1)...) })
}

// TestLearnedParent: blocks that are published with their tokens behind one that this Manager has never had, since it is another one than before, are named.
func TestLearnedParent(t *testing.T) {
	m := begin(t, telling)
	l := m.listen(t)
	e := followtest.Start(t)
	e.Publish(told(1, 0, 3))
	s := m.dial(sglang)
	follows(t, s, e)
	m.learnedBy(3)
	if _, err := publish(s, pages(nil, 1, 3, 5, true)); err != nil {
		t.Fatal(err)
	}
	names := pageNames("", "", 1, 5)
	l.until("two blocks behind three", func() bool {
		return len(l.names) == 2 && l.names[names[3]] == names[2] && l.names[names[4]] == names[3]
	})
}

// TestLearnedCopies: also what the Manager copies itself.
func TestLearnedCopies(t *testing.T) {
	m := begin(t, telling)
	l := m.listen(t)
	e := followtest.Start(t)
	e.Publish(told(1, 0, 5))
	s := m.dial(sglang)
	follows(t, s, e)
	m.learnedBy(5)
	mem := newMemory(t, 16, pageBytes)
	mem.offer(t, s, 0)
	if got, err := s.PublishFrom(context.Background(), pages(nil, 1, 0, 5, false), mem.pages(0, 0, 5)); err != nil || got.Sealed != 5 {
		t.Fatalf("%+v, %v", got, err)
	}
	l.until("five blocks", func() bool { return l.holds(pageNames("", "", 1, 5)...) })
}

// TestNamedAgain: who publishes blocks again and knows their tokens names them.
func TestNamedAgain(t *testing.T) {
	m := begin(t, telling)
	l := m.listen(t)
	s := m.dial(reached("http://a:8000"))
	unnamed := prompt(1, 0, 5)
	for i := range unnamed.Blocks {
		unnamed.Blocks[i].Tokens = nil
	}
	for _, pub := range []*client.Publish{unnamed, prompt(1, 0, 5)} {
		if _, err := publish(s, pub); err != nil {
			t.Fatal(err)
		}
	}
	l.until("five blocks", func() bool { return l.holds(namesOf(1, 5)...) })
	m.Flush([32]byte{})
	l.until("flushed", func() bool { return len(l.names) == 0 })
}

// TestFollowRefused: what cannot be followed, or may not be dialled for a client, is refused, and the session goes on.
func TestFollowRefused(t *testing.T) {
	e := followtest.Start(t)
	fine := wire.Follow{Events: e.Events, Topic: "kv"}
	for name, c := range map[string]struct {
		options func(*Options)
		dial    func(*client.Options)
		change  func(*wire.Follow)
		want    wire.Class
	}{
		"nobody to tell":    {func(*Options) {}, sglang, func(*wire.Follow) {}, wire.NotBuilt},
		"other hashes":      {telling, reached("http://a:8000"), func(*wire.Follow) {}, wire.NotBuilt},
		"hashes of less":    {telling, func(o *client.Options) { sglang(o); o.Ranks[0].Hash.Tokens = blockTokens / 2 }, func(*wire.Follow) {}, wire.NotBuilt},
		"another machine":   {telling, sglang, func(f *wire.Follow) { f.Events = "tcp://10.0.0.1:5557" }, wire.Invalid},
		"a name":            {telling, sglang, func(f *wire.Follow) { f.Events = "tcp://localhost:5557" }, wire.Invalid},
		"a path":            {telling, sglang, func(f *wire.Follow) { f.Events = "ipc:///run/other.sock" }, wire.Invalid},
		"nothing":           {telling, sglang, func(f *wire.Follow) { f.Events = "" }, wire.Invalid},
		"a replay far away": {telling, sglang, func(f *wire.Follow) { f.Replay = "tcp://10.0.0.1:5557" }, wire.Invalid},
		"fine":              {telling, sglang, func(*wire.Follow) {}, 0},
	} {
		m := begin(t, c.options)
		s := m.dial(c.dial)
		f := fine
		c.change(&f)
		err := s.Follow(t.Context(), &f)
		if refused, is := errors.AsType[*client.Refused](err); c.want == 0 && err != nil || c.want != 0 && (!is || refused.Class != c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if c.want == 0 {
			if got := client.ClassOf(s.Follow(t.Context(), &f)); got != wire.Repeated {
				t.Errorf("twice: %v", got)
			}
		}
		if _, err := publish(s, prompt(1, 0, 2)); err != nil {
			t.Errorf("%s: the session has ended: %v", name, err)
		}
	}
}
