package remote

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/indexer"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/indexer/indexpb"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
	"github.com/perigee-llm/perigee/internal/script"
)

// adopting is a gateway that takes a snapshot into a store.
type adopting struct {
	t       testing.TB
	rank    *local.Rank
	begun   Rank
	through int64
	void    bool
	claims  int
}

func (a *adopting) Begin(r Rank) bool {
	a.begun = r
	a.rank.AdoptGroups(r.BlockSize, r.Groups)
	return true
}

func (a *adopting) Claims(claims []index.Claim) error {
	a.claims += len(claims)
	if o := a.rank.Adopt(a.begun.BlockSize, claims); o.Result != index.Applied {
		return fmt.Errorf("%v", o.Result)
	}
	return nil
}

func (a *adopting) End(through int64) { a.through = through }
func (a *adopting) Void()             { a.void = true }

// batches are what an engine publishes: chains that grow, branch and shrink on several tiers, and blocks that return under their hashes.
func batches(rng *rand.Rand, n int) (out [][]*prefix.Event) {
	type block struct {
		hash, parent prefix.Hash // parent 0: none
		tokens       []uint32
	}
	var held, gone []block
	next := prefix.Hash(1)
	store := func() *prefix.Event {
		e := &prefix.Event{Kind: prefix.Stored, BlockSize: 4, Tier: prefix.Tier(rng.IntN(2))}
		var at prefix.Hash
		if len(held) > 0 && rng.IntN(3) > 0 {
			at = held[rng.IntN(len(held))].hash
			e.Parent, e.HasParent = at, true
		}
		for range 1 + rng.IntN(20) {
			b := block{next, at, []uint32{rng.Uint32(), rng.Uint32(), rng.Uint32(), rng.Uint32()}}
			held = append(held, b)
			e.Hashes, e.Tokens = append(e.Hashes, b.hash), append(e.Tokens, b.tokens...)
			at = next
			next++
		}
		return e
	}
	remove := func() *prefix.Event {
		i := rng.IntN(len(held))
		b := held[i]
		gone = append(gone, b)
		held[i] = held[len(held)-1]
		held = held[:len(held)-1]
		return &prefix.Event{Kind: prefix.Removed, AnyTier: true, Hashes: []prefix.Hash{b.hash}}
	}
	again := func() *prefix.Event {
		i := rng.IntN(len(gone))
		b := gone[i]
		gone[i] = gone[len(gone)-1]
		gone = gone[:len(gone)-1]
		held = append(held, b)
		return &prefix.Event{Kind: prefix.Stored, BlockSize: 4, Hashes: []prefix.Hash{b.hash}, Tokens: b.tokens, Parent: b.parent, HasParent: b.parent != 0}
	}
	for range n {
		var b []*prefix.Event
		for range 1 + rng.IntN(3) {
			switch k := rng.IntN(6); {
			case len(held) > 100 && k < 2:
				b = append(b, remove())
			case len(gone) > 20 && k < 3:
				b = append(b, again())
			default:
				b = append(b, store())
			}
		}
		out = append(out, b)
	}
	return out
}

// TestSplice takes a snapshot while the engine goes on publishing, applies what it published from the snapshot's number on, and wants the
// claims of whoever has seen all: never more, and less only where a store up to the snapshot's end found no parent.
func TestSplice(t *testing.T) {
	rng := script.Rand(t)
	published := batches(rng, 3000)
	s := local.New(local.Options{})
	warm := s.Open(local.Engine{No: 1, Base: "m"}, 2)
	warm.Mark(index.Exact)
	var applied atomic.Int64
	apply := func(r *local.Rank, from, to int) (orphans int) {
		for i := from; i < to; i++ {
			for _, e := range published[i] {
				if r.Apply(e).Result == index.Orphan {
					orphans++
				}
			}
			if r == warm {
				applied.Store(int64(i + 1))
			}
		}
		return orphans
	}
	apply(warm, 0, 1500)  // some 30,000 blocks: several parts
	var last atomic.Int64 // that the service was told
	x := serveSnapshots(t, s, func(uint32, int32) (indexer.Position, bool) {
		last.Store(applied.Load())
		return indexer.Position{Next: last.Load(), Print: 77, Printed: true, Whole: true}, true
	})
	var wg sync.WaitGroup
	wg.Go(func() { apply(warm, 1500, len(published)) })
	cold := local.New(local.Options{})
	a := &adopting{t: t, rank: cold.Open(local.Engine{No: 1000, Base: "m"}, 2)}
	if err := x.Snapshot(t.Context(), "m", a); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	b := a.begun
	if b.Engine != 1000 || b.Rank != 2 || b.Print != 77 || !b.Printed || !b.Whole || b.Base != "m" || b.Next < 1500 || a.void || a.through < b.Next || a.through != last.Load() || a.claims < 5000 {
		t.Errorf("%+v, through %d, %d claims, void %v", b, a.through, a.claims, a.void)
	}
	t.Logf("the snapshot began at batch %d and ended at %d, with %d claims", b.Next, a.through, a.claims)
	orphans := apply(a.rank, int(b.Next), int(a.through))
	apply(a.rank, int(a.through), len(published))
	held, got, want := heldAfter(published), claimsOf(t, cold), claimsOf(t, s)
	missing := 0
	for c := range got {
		if held[c.Hash] != c.Bits {
			t.Fatalf("%+v is claimed, and the engine holds it on %b", c, held[c.Hash])
		}
	}
	for c := range want {
		if !got[c] {
			missing++
		}
	}
	if missing > 0 && orphans == 0 || missing > len(want)/100 {
		t.Errorf("%d claims of %d are missing, %d orphans", missing, len(want), orphans)
	}
}

// TestSnapshotVoid: a rank whose stream is no longer to be believed in the end, or has begun anew, is void.
func TestSnapshotVoid(t *testing.T) {
	for about, end := range map[string]func() (indexer.Position, bool){
		"no longer believed": func() (indexer.Position, bool) { return indexer.Position{Next: 9}, false },
		"begun anew":         func() (indexer.Position, bool) { return indexer.Position{Next: 4}, true },
	} {
		s := local.New(local.Options{})
		s.Open(local.Engine{No: 1, Base: "m"}, 0).Apply(&prefix.Event{Kind: prefix.Stored, BlockSize: 4, Tokens: tokens(4), Hashes: []prefix.Hash{1}})
		begun := false
		x := serveSnapshots(t, s, func(uint32, int32) (indexer.Position, bool) {
			if begun {
				return end()
			}
			begun = true
			return indexer.Position{Next: 5}, true
		})
		sink := &telling{}
		if err := x.Snapshot(t.Context(), "m", sink); err != nil || strings.Join(sink.parts, ", ") != "begin 1000/0 at 5, 1 claims, void" {
			t.Errorf("%s: %v, %v", about, sink.parts, err)
		}
	}
}

// heldAfter is what the engine holds in the end, by its own hashes: the tiers.
func heldAfter(published [][]*prefix.Event) map[prefix.Hash]uint8 {
	held := map[prefix.Hash]uint8{}
	for _, b := range published {
		for _, e := range b {
			for _, h := range e.Hashes {
				if e.Kind == prefix.Stored {
					held[h] |= 1 << e.Tier
				} else {
					delete(held, h)
				}
			}
		}
	}
	return held
}

// claimsOf lists all claims of a store's only rank.
func claimsOf(t *testing.T, s *local.Store) map[index.Claim]bool {
	out := map[index.Claim]bool{}
	var part [1000]index.Claim
	for _, c := range s.Copyings("m") {
		for done := false; !done; {
			n, end, void := c.Next(part[:])
			if void {
				t.Fatal("void")
			}
			for _, claim := range part[:n] {
				out[claim] = true
			}
			done = end
		}
	}
	return out
}

// serveSnapshots serves a store whose engine n is 1001-n to the gateway.
func serveSnapshots(t *testing.T, s *local.Store, position func(uint32, int32) (indexer.Position, bool)) *Index {
	srv := indexer.New(indexer.Options{Store: s, Position: position, URL: func(no uint32) (string, bool) { return fmt.Sprintf("http://%d", no), true }})
	socket := filepath.Join(t.TempDir(), "index")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(l) })
	x, err := NewIndex(Options{Endpoints: []string{"unix:" + socket}, Engines: numbers(6)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		x.Close()
		srv.Close(0)
		wg.Wait()
	})
	return x
}

// telling writes down what it is handed.
type telling struct {
	parts []string
	fault error
}

func (s *telling) say(format string, args ...any) {
	s.parts = append(s.parts, fmt.Sprintf(format, args...))
}

func (s *telling) Begin(r Rank) bool {
	s.say("begin %d/%d at %d", r.Engine, r.Rank, r.Next)
	return r.Rank != 9
}

func (s *telling) Claims(c []index.Claim) error {
	s.say("%d claims", len(c))
	return s.fault
}
func (s *telling) End(through int64) { s.say("end %d", through) }
func (s *telling) Void()             { s.say("void") }

// snapshots is a service that sends these parts.
type snapshots struct {
	service
	send []*indexpb.SnapshotPart
	err  error
}

func (s *snapshots) Snapshot(_ *indexpb.SnapshotRequest, out grpc.ServerStreamingServer[indexpb.SnapshotPart]) error {
	for _, p := range s.send {
		if err := out.Send(p); err != nil {
			return err
		}
	}
	return s.err
}

func beginPart(r *indexpb.Rank) *indexpb.SnapshotPart {
	return &indexpb.SnapshotPart{Part: &indexpb.SnapshotPart_Rank{Rank: r}}
}

func claimsPart(c *indexpb.Claims) *indexpb.SnapshotPart {
	return &indexpb.SnapshotPart{Part: &indexpb.SnapshotPart_Claims{Claims: c}}
}

func endPart(e *indexpb.RankEnd) *indexpb.SnapshotPart {
	return &indexpb.SnapshotPart{Part: &indexpb.SnapshotPart_End{End: e}}
}

// TestHostileSnapshots: what cannot be is rejected, and a rank that was begun is void.
func TestHostileSnapshots(t *testing.T) {
	d := &indexpb.Domain{Base: "m", BlockSize: 4}
	good := beginPart(&indexpb.Rank{Engine: "http://a", Domain: d, Next: 5})
	one := claimsPart(&indexpb.Claims{Names: make([]byte, 16), Parents: make([]byte, 8), Hashes: make([]byte, 8), Tiers: []byte{1}})
	end := endPart(&indexpb.RankEnd{Through: 6})
	for _, c := range []struct {
		about string
		parts []*indexpb.SnapshotPart
		want  string
	}{
		{"as it should be", []*indexpb.SnapshotPart{good, one, one, end}, "begin 1/0 at 5, 1 claims, 1 claims, end 6"},
		{"void", []*indexpb.SnapshotPart{good, one, endPart(&indexpb.RankEnd{Void: true})}, "begin 1/0 at 5, 1 claims, void"},
		{"of an engine that we do not have", []*indexpb.SnapshotPart{beginPart(&indexpb.Rank{Engine: "http://z", Domain: d}), one, endPart(&indexpb.RankEnd{})}, ""},
		{"unwanted", []*indexpb.SnapshotPart{beginPart(&indexpb.Rank{Engine: "http://a", Rank: 9, Domain: d}), one, endPart(&indexpb.RankEnd{})}, "begin 1/9 at 0"},
		{"of a later version", []*indexpb.SnapshotPart{{}, good, end}, "begin 1/0 at 5, end 6"},
		{"cut off", []*indexpb.SnapshotPart{good, one}, "begin 1/0 at 5, 1 claims, void; it ends within a rank"},
		{"claims of nobody", []*indexpb.SnapshotPart{one}, "claims of no rank"},
		{"end of nobody", []*indexpb.SnapshotPart{good, end, end}, "begin 1/0 at 5, end 6; the end of no rank"},
		{"a rank within", []*indexpb.SnapshotPart{good, good}, "begin 1/0 at 5, void; a rank within a rank"},
		{"before it begins", []*indexpb.SnapshotPart{good, endPart(&indexpb.RankEnd{Through: 4})}, "begin 1/0 at 5, void; a rank that ends before it begins"},
		{"no block size", []*indexpb.SnapshotPart{beginPart(&indexpb.Rank{Engine: "http://a"})}, "a rank that cannot be"},
		{"a rank below zero", []*indexpb.SnapshotPart{beginPart(&indexpb.Rank{Engine: "http://a", Rank: -1, Domain: d})}, "a rank that cannot be"},
		{"a batch below zero", []*indexpb.SnapshotPart{beginPart(&indexpb.Rank{Engine: "http://a", Next: -1, Domain: d})}, "a rank that cannot be"},
		{"a window beyond all", []*indexpb.SnapshotPart{beginPart(&indexpb.Rank{Engine: "http://a", Window: 1 << 31, Domain: d})}, "a KV cache group that cannot be"},
		{"short columns", []*indexpb.SnapshotPart{good, claimsPart(&indexpb.Claims{Names: make([]byte, 16), Tiers: []byte{1}})}, "begin 1/0 at 5, void; its columns differ in length"},
		{"no tier", []*indexpb.SnapshotPart{good, claimsPart(&indexpb.Claims{Names: make([]byte, 16), Parents: make([]byte, 8), Hashes: make([]byte, 8), Tiers: []byte{64}})}, "begin 1/0 at 5, void; a claim of no tier"},
	} {
		t.Run(c.about, func(t *testing.T) {
			got, err := snapshotOf(t, &snapshots{send: c.parts}, nil)
			var refused *prefix.Rejected
			if errors.As(err, &refused) {
				got = strings.TrimPrefix(got+"; "+strings.TrimPrefix(refused.Err.Error(), "the answer contradicts itself: "), "; ")
			} else if err != nil {
				t.Error(err)
			}
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
	fault := errors.New("full")
	if got, err := snapshotOf(t, &snapshots{send: []*indexpb.SnapshotPart{good, one, end}}, fault); err != fault || got != "begin 1/0 at 5, 1 claims, void" {
		t.Errorf("%s, %v", got, err)
	}
	if got, err := snapshotOf(t, &snapshots{send: []*indexpb.SnapshotPart{good, one}, err: context.DeadlineExceeded}, nil); outcome(err, false) != Outcome(prefix.TimedOut) || got != "begin 1/0 at 5, 1 claims, void" {
		t.Errorf("%s, %v", got, err)
	}
}

func snapshotOf(t *testing.T, s *snapshots, fault error) (string, error) {
	n := network{"one:80": s.serveSnapshots(t)}
	sink := &telling{fault: fault}
	err := n.index(t, n.options("one")).Snapshot(t.Context(), "m", sink)
	return strings.Join(sink.parts, ", "), err
}

func (s *snapshots) serveSnapshots(t *testing.T) *service {
	return s.serveAs(t, s)
}

// TestSnapshotElsewhere: an endpoint that gives none is passed over, as long as nothing of one was handed over.
func TestSnapshotElsewhere(t *testing.T) {
	d := &indexpb.Domain{Base: "m", BlockSize: 4}
	good := &snapshots{send: []*indexpb.SnapshotPart{beginPart(&indexpb.Rank{Engine: "http://a", Domain: d}), endPart(&indexpb.RankEnd{})}}
	n := network{"two:80": good.serveSnapshots(t)}
	sink := &telling{}
	if err := n.index(t, n.options("nobody", "two")).Snapshot(t.Context(), "m", sink); err != nil || len(sink.parts) != 2 {
		t.Errorf("%v, %v", sink.parts, err)
	}
}

// FuzzSnapshot: whatever comes, a sink is told of ranks that begin and end, and of claims in between.
func FuzzSnapshot(f *testing.F) {
	d := &indexpb.Domain{Base: "m", BlockSize: 4}
	for _, p := range []*indexpb.SnapshotPart{
		beginPart(&indexpb.Rank{Engine: "http://a", Domain: d, Next: 5}), endPart(&indexpb.RankEnd{Through: 6}),
		claimsPart(&indexpb.Claims{Names: make([]byte, 32), Parents: make([]byte, 16), Hashes: make([]byte, 16), Tiers: []byte{1, 0x3f}}),
	} {
		b, err := proto.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, b, b)
	}
	f.Fuzz(func(t *testing.T, a, b, c []byte) {
		rank := local.New(local.Options{}).Open(local.Engine{No: 1, Base: "m"}, 0)
		s := snapshot{into: &adopting{t: t, rank: rank}, engines: fleet("")}
		good, _ := proto.Marshal(beginPart(&indexpb.Rank{Engine: "http://a", Domain: d}))
		for _, raw := range [][]byte{good, a, b, c} {
			var p indexpb.SnapshotPart
			if proto.Unmarshal(raw, &p) != nil || s.part(&p) != nil {
				return
			}
		}
	})
}
