package remote

import (
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/indexer"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
	"github.com/perigee-llm/perigee/internal/script"
)

// serveStore serves a store on a listener until the test is over. The service's engine n is at http://n.
func serveStore(t testing.TB, s *local.Store, l net.Listener) {
	serve(t, indexer.Options{Store: s, URL: urlOf}, l)
}

func urlOf(no uint32) (string, bool) { return fmt.Sprintf("http://%d", no), true }

// serve serves on a listener until the test is over.
func serve(t testing.TB, o indexer.Options, l net.Listener) {
	srv := indexer.New(o)
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(l) })
	t.Cleanup(func() {
		srv.Close(0)
		wg.Wait()
	})
}

// numbers names the same engines for the gateway, with other numbers.
func numbers(engines uint32) func(string) map[string]uint32 {
	m := map[string]uint32{}
	for no := range engines {
		m[fmt.Sprintf("http://%d", no+1)] = 1000 - no
	}
	return func(string) map[string]uint32 { return m }
}

// TestSameAsLocal asks a service over a unix socket and its index directly, while its engines come and go, and wants one answer.
func TestSameAsLocal(t *testing.T) {
	rng := script.Rand(t)
	s := local.New(local.Options{})
	socket := filepath.Join(t.TempDir(), "index")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	serveStore(t, s, l)
	x, err := NewIndex(Options{Endpoints: []string{"unix:" + socket}, Engines: numbers(6), Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	w := fleetOf{s: s, ranks: map[[2]int]*local.Rank{}}
	for i := range 300 {
		w.change(rng)
		q := prefix.Query{Model: []string{"m", "tuned", "alias"}[rng.IntN(3)], Tokens: tokens(rng.IntN(70))}
		if rng.IntN(3) == 0 {
			q.Salt = "s"
		}
		if rng.IntN(4) == 0 {
			q.LoRA = "tuned"
		}
		var near, far prefix.Match
		if err := s.Lookup(t.Context(), &q, &near); err != nil {
			t.Fatal(err)
		}
		if err := x.Lookup(t.Context(), &q, &far); err != nil {
			if m, _ := s.Model(q.Model); len(m.Engines) > 0 {
				t.Fatalf("step %d: %v", i, err)
			}
			continue
		}
		if want := translated(&near, s, q.Model); !reflect.DeepEqual(far.Held, want.Held) || !reflect.DeepEqual(far.Blind, want.Blind) {
			t.Fatalf("step %d: %+v\nfrom afar %+v\nhere      %+v", i, q, far, *want)
		}
	}
}

// translated is a match with the gateway's numbers, and blind for those that the service does not follow.
func translated(m *prefix.Match, s *local.Store, model string) *prefix.Match {
	out := &prefix.Match{}
	for _, h := range m.Held {
		h.Engine = 1001 - h.Engine
		out.Held = append(out.Held, h)
	}
	followed := map[uint32]bool{}
	is, _ := s.Model(model)
	for _, no := range is.Engines {
		followed[no] = true
	}
	for no := range uint32(6) {
		if !followed[no+1] || m.IsBlind(no+1) {
			out.Blind = append(out.Blind, 1000-no)
		}
	}
	order(out)
	return out
}

// fleetOf are engines that come, store, fall silent and go.
type fleetOf struct {
	s     *local.Store
	ranks map[[2]int]*local.Rank
}

func (w *fleetOf) change(rng *rand.Rand) {
	at := [2]int{1 + rng.IntN(6), rng.IntN(2)}
	r := w.ranks[at]
	switch {
	case r == nil:
		r = w.s.Open(local.Engine{No: uint32(at[0]), Base: "m", Names: []string{"m", "alias"}, Adapters: []string{"tuned"}}, int32(at[1]))
		w.ranks[at] = r
	case rng.IntN(8) == 0:
		r.Close()
		delete(w.ranks, at)
		return
	case rng.IntN(4) == 0:
		r.Withdraw()
	}
	r.Mark([]index.State{index.Exact, index.Exact, index.Partial, index.Hidden}[rng.IntN(4)])
	size, n := []int{4, 8}[at[0]%2], rng.IntN(10)
	e := &prefix.Event{Kind: prefix.Stored, BlockSize: size, Tokens: tokens(size * n), Tier: prefix.Tier(rng.IntN(prefix.Tiers))}
	if rng.IntN(3) == 0 {
		e.Salt = "s"
	}
	if rng.IntN(4) == 0 {
		e.LoRA = "tuned"
	}
	for range n {
		e.Hashes = append(e.Hashes, prefix.Hash(rng.Uint64()))
	}
	if n > 0 {
		r.Apply(e)
	}
}

// BenchmarkLookup looks 512 blocks up, all of them held by 8 of 64 engines, over loopback TCP and over a unix socket; "here" is the same
// without the way.
func BenchmarkLookup(b *testing.B) {
	s := local.New(local.Options{})
	q := prefix.Query{Model: "m", Tokens: tokens(512 * 16)}
	for no := range uint32(64) {
		r := s.Open(local.Engine{No: no + 1, Base: "m"}, 0)
		r.Mark(index.Exact)
		e := &prefix.Event{Kind: prefix.Stored, BlockSize: 16, Tokens: q.Tokens}
		if no >= 8 {
			e.Salt = "others"
		}
		for i := range 512 {
			e.Hashes = append(e.Hashes, prefix.Hash(i+1))
		}
		r.Apply(e)
	}
	run := func(b *testing.B, src prefix.Source) {
		var m prefix.Match
		if err := src.Lookup(b.Context(), &q, &m); err != nil || len(m.Held) != 8 {
			b.Fatal(err, len(m.Held))
		}
		b.ReportAllocs()
		for b.Loop() {
			m.Reset()
			if err := src.Lookup(b.Context(), &q, &m); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("here", func(b *testing.B) { run(b, s) })
	for _, kind := range []string{"tcp", "unix"} {
		b.Run(kind, func(b *testing.B) {
			address := "127.0.0.1:0"
			if kind == "unix" {
				address = filepath.Join(b.TempDir(), "index")
			}
			l, err := net.Listen(kind, address)
			if err != nil {
				b.Fatal(err)
			}
			serveStore(b, s, l)
			endpoint := "http://" + l.Addr().String()
			if kind == "unix" {
				endpoint = "unix:" + address
			}
			x, err := NewIndex(Options{Endpoints: []string{endpoint}, Engines: numbers(64), Costs: new(prefix.Costs), Timeout: 10 * time.Second})
			if err != nil {
				b.Fatal(err)
			}
			defer x.Close()
			run(b, x)
		})
	}
}
