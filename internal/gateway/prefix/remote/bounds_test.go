package remote

import (
	"context"
	"errors"
	"net"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/indexer/indexpb"
)

// stuck answers when the caller has given up, and says for how long it was asked to answer.
func stuck(given *atomic.Int64) func(context.Context, *indexpb.LookupRequest) (*indexpb.LookupResponse, error) {
	return func(ctx context.Context, _ *indexpb.LookupRequest) (*indexpb.LookupResponse, error) {
		if d, ok := ctx.Deadline(); ok {
			given.Store(int64(time.Until(d)))
		}
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// TestDeadline: a service that does not answer costs 100 ms and no more, and is told so; with another behind it, it gets half of that.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var first, second atomic.Int64
		n := network{"one:80": (&service{lookup: stuck(&first)}).serve(t), "two:80": (&service{lookup: stuck(&second)}).serve(t)}
		o := n.options("one")
		o.Timeout = 0
		begin := time.Now()
		if got := look(t.Context(), n.index(t, o), 16); got != "unavailable: timeout" || time.Since(begin) != 100*time.Millisecond {
			t.Errorf("%s after %v", got, time.Since(begin))
		}
		if d := time.Duration(first.Load()); d < 90*time.Millisecond || d > 100*time.Millisecond { // the wire rounds it
			t.Errorf("the service was given %v", d)
		}

		o = n.options("one", "two")
		o.Timeout = 0
		begin = time.Now()
		if got := look(t.Context(), n.index(t, o), 16); got != "unavailable: timeout" || time.Since(begin) != 100*time.Millisecond {
			t.Errorf("two: %s after %v", got, time.Since(begin))
		}
		if a, b := time.Duration(first.Load()), time.Duration(second.Load()); a > 50*time.Millisecond || b > 50*time.Millisecond || b < 40*time.Millisecond {
			t.Errorf("the services were given %v and %v", a, b)
		}
	})
}

// TestNobodyListens: an address that takes connections and says nothing is late, not a reason to wait.
func TestNobodyListens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := network{"one:80": (&service{lookup: holds(8)}).serve(t)}
		o := n.options("void", "one")
		o.Timeout = 100 * time.Millisecond
		o.DialContext = dialVoid(o.DialContext)
		x := n.index(t, o)
		begin := time.Now()
		if got := look(t.Context(), x, 16); got != "1/0:[8 8 8 8]" || time.Since(begin) > 60*time.Millisecond {
			t.Errorf("%s after %v", got, time.Since(begin))
		}
	})
}

// TestCallerLeaves: what ends with the caller is not put down to the service, and is not asked elsewhere.
func TestCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var given atomic.Int64
		asked := &service{lookup: holds(8)}
		n := network{"one:80": (&service{lookup: stuck(&given)}).serve(t), "two:80": asked.serve(t)}
		ctx, cancel := context.WithCancel(t.Context())
		defer time.AfterFunc(10*time.Millisecond, cancel).Stop()
		o := n.options("one", "two")
		tried := 0
		o.Hooks.Tried = func(string, Outcome, time.Duration) { tried++ }
		if got := look(ctx, n.index(t, o), 16); got != "unavailable: timeout" || asked.asked > 0 || tried != 1 {
			t.Errorf("%s; %d tried, the other asked %d times", got, tried, asked.asked)
		}
	})
}

// TestOverloadedHere: one look-up more than may be out is refused at once, and there is room again when one is back.
func TestOverloadedHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s := (&service{lookup: func(ctx context.Context, r *indexpb.LookupRequest) (*indexpb.LookupResponse, error) {
			<-release
			return holds(8)(ctx, r)
		}}).serve(t)
		n := network{"one:80": s}
		o := n.options("one")
		o.MaxInFlight = 2
		outcomes := map[Outcome]int{}
		var mu sync.Mutex
		o.Hooks.LookedUp = func(o Outcome, _ time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			outcomes[o]++
		}
		x := n.index(t, o)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if got := look(t.Context(), x, 16); got != "1/0:[8 8 8 8]" {
					t.Error(got)
				}
			})
		}
		synctest.Wait()
		if got := look(t.Context(), x, 16); got != "unavailable: overloaded" || x.InFlight() != 2 {
			t.Errorf("%s, %d in flight", got, x.InFlight())
		}
		close(release)
		wg.Wait()
		if got := look(t.Context(), x, 16); got != "1/0:[8 8 8 8]" || x.InFlight() != 0 {
			t.Errorf("%s, %d in flight", got, x.InFlight())
		}
		if want := (map[Outcome]int{Hit: 3, Outcome(prefix.Overloaded): 1}); !reflect.DeepEqual(outcomes, want) {
			t.Errorf("%v, want %v", outcomes, want)
		}
	})
}

// TestRestless: a service whose engines change with each question is given up, and one that changes once is not.
func TestRestless(t *testing.T) {
	edition := uint64(1)
	s := (&service{lookup: func(_ context.Context, r *indexpb.LookupRequest) (*indexpb.LookupResponse, error) {
		edition++
		m := said()
		m.Edition = edition
		return &indexpb.LookupResponse{Model: m}, nil
	}}).serve(t)
	n := network{"one:80": s}
	x := n.index(t, n.options("one"))
	if got := look(t.Context(), x, 16); got != "unavailable: not_ready" || s.asked != maxAsked {
		t.Errorf("%s after %d questions", got, s.asked)
	}
	s.lookup, s.asked = holds(8), 0
	if got := look(t.Context(), x, 16); got != "1/0:[8 8 8 8]" || s.asked != 2 {
		t.Errorf("%s after %d questions", got, s.asked)
	}
}

// TestReconnects: a connection that broke is made anew by the look-ups that follow.
func TestReconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := network{"one:80": (&service{lookup: holds(8)}).serve(t)}
		o := n.options("one")
		var there atomic.Bool
		o.DialContext = func(ctx context.Context, address string) (net.Conn, error) {
			if !there.Load() {
				return nil, errors.New("nobody is there yet")
			}
			return n.dial(ctx, address)
		}
		x := n.index(t, o)
		if got := look(t.Context(), x, 16); got != "unavailable: unreachable" {
			t.Error(got)
		}
		there.Store(true)
		time.Sleep(3 * time.Second) // more than the longest pause between two dials
		if got := look(t.Context(), x, 16); got != "1/0:[8 8 8 8]" {
			t.Error(got)
		}
	})
}

func TestToken(t *testing.T) {
	s := (&service{lookup: holds(8)}).serve(t)
	n := network{"one:80": s}
	o := n.options("one")
	var now Secrets
	o.Secrets = func() Secrets { return now }
	x := n.index(t, o)
	for _, token := range []string{"", "secret", "another"} {
		now.Token, s.token = token, ""
		look(t.Context(), x, 16)
		want := "Bearer " + token
		if token == "" {
			want = ""
		}
		if s.token != want {
			t.Errorf("came with %q, want %q", s.token, want)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, c := range []struct{ list, fault string }{
		{"http://a:1, https://b,unix:/run/x", ""},
		{"", "is not http"}, {"a:1", "is not http"}, {"ftp://a", "is not http"}, {"http://a/path", "is not http"}, {"http://:1", "is not http"}, {"unix:", "no path"},
		{"http://u:p@a", "is not http"},
	} {
		_, err := ParseEndpoints(c.list)
		if (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%q: %v, want %q", c.list, err, c.fault)
		}
	}
	if _, err := NewIndex(Options{MaxInFlight: -1}); err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("not all faults: %v", err)
	}
	if _, err := NewKVIndexer(Options{}, nil); err == nil {
		t.Error("nobody says what pages there are")
	}
	if codes.OK.String() != "OK" {
		t.Error("the scripts' names of statuses have changed")
	}
}
