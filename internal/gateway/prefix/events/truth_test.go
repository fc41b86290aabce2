package events_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
	"github.com/perigee-llm/perigee/internal/script"
)

// honest is an engine that tells what it does. Some of its batches do not arrive, and some of these are in no replay either. Its blocks have one
// token, of two, behind at most four others, and it may have two hashes for the same tokens.
type honest struct {
	*rand.Rand
	*engine
	names  int
	blocks []*honestBlock
	log    []string
}

type honestBlock struct {
	hash   uint64
	parent *honestBlock
	path   string
	kind   int
	on     [2]bool      // the device, the host
	since  [2]time.Time // when it came there
	left   [2]time.Time // when it was there last
}

func (x *honest) pick(good func(*honestBlock) bool) *honestBlock {
	var all []*honestBlock
	for _, b := range x.blocks {
		if good(b) {
			all = append(all, b)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[x.IntN(len(all))]
}

func (x *honest) block(parent *honestBlock) *honestBlock {
	path, kind := string("ab"[x.IntN(2)]), x.IntN(x.names)
	if parent != nil {
		path = parent.path + path
	}
	for _, b := range x.blocks {
		if b.parent == parent && b.path == path && b.kind == kind {
			return b
		}
	}
	b := &honestBlock{hash: uint64(len(x.blocks) + 1), parent: parent, path: path, kind: kind}
	x.blocks = append(x.blocks, b)
	return b
}

var media = [2]string{"GPU", "CPU"}

func (x *honest) stores(b *honestBlock, tier int) []byte {
	if !b.on[tier] {
		b.on[tier], b.since[tier] = true, time.Now()
	}
	e := msgp.AppendString(msgp.AppendArrayHeader(nil, 7), "BlockStored")
	e = msgp.AppendUint64(msgp.AppendArrayHeader(e, 1), b.hash)
	if b.parent != nil {
		e = msgp.AppendUint64(e, b.parent.hash)
	} else {
		e = msgp.AppendNil(e)
	}
	e = msgp.AppendUint32(msgp.AppendArrayHeader(e, 1), uint32(b.path[len(b.path)-1]))
	return msgp.AppendString(msgp.AppendNil(msgp.AppendInt(e, 1)), media[tier])
}

func (x *honest) removes(b *honestBlock, tier int) []byte {
	b.on[tier], b.left[tier] = false, time.Now()
	e := msgp.AppendString(msgp.AppendArrayHeader(nil, 3), "BlockRemoved")
	return msgp.AppendString(msgp.AppendUint64(msgp.AppendArrayHeader(e, 1), b.hash), media[tier])
}

// act does something and returns its event; nil: nothing was to be done.
func (x *honest) act() []byte {
	switch n := x.IntN(10); {
	case n == 0 && x.IntN(6) == 0:
		for _, b := range x.blocks {
			for tier := range b.on {
				if b.on[tier] {
					x.removes(b, tier)
				}
			}
		}
		return msgp.AppendString(msgp.AppendArrayHeader(nil, 1), "AllBlocksCleared")
	case n < 4:
		parent := x.pick(func(b *honestBlock) bool { return b.on[0] && len(b.path) < 5 })
		if x.IntN(3) == 0 {
			parent = nil
		}
		return x.stores(x.block(parent), 0)
	case n < 5:
		if b := x.pick(func(b *honestBlock) bool { return b.on[0] }); b != nil {
			return x.stores(b, 1)
		}
	default:
		tier := x.IntN(2)
		b := x.pick(func(b *honestBlock) bool {
			return b.on[tier] && (tier == 1 || !slices.ContainsFunc(x.blocks, func(c *honestBlock) bool { return c.parent == b && c.on[0] }))
		})
		if b != nil {
			return x.removes(b, tier)
		}
	}
	return nil
}

func (x *honest) step() {
	event := x.act()
	if event == nil {
		return
	}
	lost := x.IntN(12) == 0
	x.log = append(x.log, fmt.Sprintf("%v lost %v: %q", time.Now().Format("05.000"), lost, event))
	x.publishRaw(inOne(event), lost)
	if !lost || x.IntN(2) == 0 {
		return
	}
	x.mu.Lock()
	x.oldest = x.seq // it is in no replay
	x.mu.Unlock()
	x.log = append(x.log, "for good")
	x.publishRaw(inOne(), false)
}

// was tells when blocks with this path were there last, on a tier or on a faster one.
func (x *honest) was(path string, tier int) (last time.Time) {
	for _, b := range x.blocks {
		for t := 0; t <= tier && b.path == path; t++ {
			switch {
			case b.on[t]:
				return time.Now()
			case b.left[t].After(last):
				last = b.left[t]
			}
		}
	}
	return last
}

// stays tells whether a block with this path has been on a tier, or on a faster one, for more than a second.
func (x *honest) stays(path string, tier int) bool {
	return slices.ContainsFunc(x.blocks, func(b *honestBlock) bool {
		for t := range tier + 1 {
			if b.path == path && b.on[t] && time.Since(b.since[t]) > time.Second {
				return true
			}
		}
		return false
	})
}

// TestTruth: from the socket to a match, nothing is believed for longer than a second after it has become wrong, whatever is lost, and an
// engine that is not blind is credited with all that it has.
func TestTruth(t *testing.T) {
	r := script.Rand(t)
	var losses, proven, credited uint64
	for i := range 200 {
		inWorld(t, events.Options{}, func(w *world) {
			store := local.New(local.Options{})
			x := &honest{Rand: rand.New(rand.NewPCG(r.Uint64(), 5)), engine: newEngine(t, &w.net, "engine-1", "kv"), names: 1 + i%3}
			target := w.target(1, prefixes, x.source(0))
			target.Open = func(rank int32) events.Claims {
				return store.Open(local.Engine{No: 1, Base: "m", Names: []string{"m"}}, rank)
			}
			defer x.stop()
			w.follow(target)
			var m prefix.Match
			for range 200 {
				x.step()
				if x.IntN(3) == 0 {
					pass(time.Duration(x.IntN(600)) * time.Millisecond)
				}
				prompt, q := "", prefix.Query{Model: "m"}
				for range 5 {
					prompt += string("ab"[x.IntN(2)])
					q.Tokens = append(q.Tokens, uint32(prompt[len(prompt)-1]))
				}
				synctest.Wait() // a look-up during a change may miss what moves
				m.Reset()
				if err := store.Lookup(w.t.Context(), &q, &m); err != nil {
					w.t.Fatal(err)
				}
				for tier := range media {
					n := 0
					for n < len(prompt) && x.stays(prompt[:n+1], tier) {
						n++
					}
					if got := int(m.Of(1)[tier]); !m.IsBlind(1) && got < n {
						w.t.Fatalf("of %s %d are credited on the %s, which has %d: %s\n%s", prompt, got, media[tier], n, w.about(), strings.Join(x.log, "\n"))
					}
					for n := 1; n <= int(m.Of(1)[tier]); n++ {
						credited++
						if wrong := time.Since(x.was(prompt[:n], tier)); wrong > time.Second {
							w.t.Fatalf("%s is credited on the %s, and has gone %v ago: %s\n%s", prompt[:n], media[tier], wrong, w.about(), strings.Join(x.log, "\n"))
						}
					}
				}
			}
			s := w.f.Status()[0]
			losses, proven = losses+s.Stream.Losses, proven+s.Events.Proven
		})
	}
	if t.Logf("%d losses for good, %d blocks proven, %d credited", losses, proven, credited); losses == 0 || proven == 0 || credited == 0 {
		t.Error("nothing was on trial")
	}
}
