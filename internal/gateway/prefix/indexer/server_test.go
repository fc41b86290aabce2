package indexer

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/indexer/indexpb"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a server in memory with a store behind it.
type world struct {
	t      *testing.T
	store  *local.Store
	server *Server
	conn   *grpc.ClientConn
	client indexpb.PrefixIndexClient
}

// newWorld serves with these options; engine n is at http://n, and 9 is at none.
func newWorld(t *testing.T, o Options) *world {
	w := &world{t: t, store: local.New(local.Options{})}
	o.Store = w.store
	o.URL = func(no uint32) (string, bool) { return fmt.Sprintf("http://%d", no), no != 9 }
	w.server = New(o)
	l := bufconn.Listen(1 << 20)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := w.server.Serve(l); err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	w.conn, w.client = conn, indexpb.NewPrefixIndexClient(conn)
	t.Cleanup(func() {
		_ = conn.Close()
		w.server.Close(time.Second)
		w.server.Close(time.Second)
		wg.Wait()
	})
	return w
}

// open makes a rank of an engine known, exact and with the first n tokens of 0, 1, 2 … in blocks of a size.
func (w *world) open(no uint32, rank int32, blockSize, n int) *local.Rank {
	r := w.store.Open(local.Engine{No: no, Base: "m", Adapters: []string{"tuned"}}, rank)
	r.Mark(index.Exact)
	e := &prefix.Event{Kind: prefix.Stored, BlockSize: blockSize, Tokens: sequence(n)}
	for i := range n / blockSize {
		e.Hashes = append(e.Hashes, prefix.Hash(100*int(no)+i))
	}
	if len(e.Hashes) > 0 {
		if o := r.Apply(e); o.Result != index.Applied {
			w.t.Fatalf("%+v", o)
		}
	}
	return r
}

func sequence(n int) []uint32 {
	t := make([]uint32, n)
	for i := range t {
		t[i] = uint32(i)
	}
	return t
}

// names are those of the first n tokens.
func names(blockSize, n int) (b []byte) {
	root := chain.Root{Model: "m", BlockSize: blockSize}
	for _, k := range root.Key().Append(nil, sequence(n), blockSize) {
		name := k.Bytes()
		b = append(b, name[:]...)
	}
	return b
}

func (w *world) model(name string) *indexpb.Model {
	w.t.Helper()
	r, err := w.client.Lookup(w.t.Context(), &indexpb.LookupRequest{Model: name})
	if err != nil || r.Model == nil || len(r.Engines) > 0 {
		w.t.Fatalf("%v, %v", r, err)
	}
	return r.Model
}

func TestLookup(t *testing.T) {
	w := newWorld(t, Options{})
	nothing := w.model("m")
	if nothing.Edition == 0 || len(nothing.Engines) > 0 {
		t.Errorf("of nothing: %v", nothing)
	}
	w.open(3, 1, 4, 12)
	w.open(3, 0, 4, 8)
	w.open(2, 0, 8, 16)
	w.open(9, 0, 4, 16) // nobody knows where
	blind := w.store.Open(local.Engine{No: 1, Base: "m"}, 0)
	m := w.model("m")
	if len(m.Domains) != 2 || m.Domains[0].BlockSize != 4 || m.Domains[1].BlockSize != 8 || m.Domains[0].Base != "m" || strings.Join(m.Engines, " ") != "http://1 http://2 http://3" {
		t.Fatalf("%v", m)
	}
	r, err := w.client.Lookup(t.Context(), &indexpb.LookupRequest{Model: "m", Edition: m.Edition, Names: [][]byte{names(4, 20), names(8, 20)}})
	want := "[1 2 2] [0 0 1] [16 16 16 16 8 8 8 8 12 12 12 12] [0]"
	if got := fmt.Sprint(r.GetEngines(), r.GetRanks(), r.GetDepths(), r.GetBlind()); err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
	if m := w.model("tuned"); m.Lora != "tuned" || len(m.Engines) != 2 {
		t.Errorf("%v", m)
	}
	blind.Close() // the names are of another edition now
	r, err = w.client.Lookup(t.Context(), &indexpb.LookupRequest{Model: "m", Edition: m.Edition, Names: [][]byte{names(4, 20)}})
	if err != nil || r.Model == nil || len(r.Model.Engines) != 2 || r.Model.Edition == m.Edition || len(r.Engines) > 0 {
		t.Errorf("%v, %v", r, err)
	}
	if n := len(w.server.models.mu.known); n > 2 {
		t.Errorf("%d models remembered", n)
	}
	for i := range 100 {
		w.model(fmt.Sprint("nobody's", i))
	}
	if n := len(w.server.models.mu.known); n > 2 {
		t.Errorf("%d models remembered, and most are nobody's", n)
	}
}

// TestSameEdition: two servers that know the same have one edition, whatever their numbers of engines.
func TestSameEdition(t *testing.T) {
	a, b := newWorld(t, Options{}), newWorld(t, Options{})
	a.open(1, 0, 4, 4)
	a.open(2, 0, 4, 4)
	b.server.o.URL = func(no uint32) (string, bool) { return map[uint32]string{1: "http://2", 5: "http://1"}[no], true }
	b.open(1, 0, 4, 12)
	b.open(5, 0, 4, 4)
	if x, y := a.model("m"), b.model("m"); x.Edition != y.Edition {
		t.Errorf("%v, %v", x, y)
	}
}

func TestRefusals(t *testing.T) {
	w := newWorld(t, Options{})
	w.open(1, 0, 4, 12)
	m := w.model("m")
	for _, c := range []struct {
		about string
		names [][]byte
		want  codes.Code
	}{
		{"no names", nil, codes.OK},
		{"names that are none", [][]byte{make([]byte, 17)}, codes.InvalidArgument},
		{"more domains than there are", [][]byte{nil, nil}, codes.InvalidArgument},
		{"as many names as may be", [][]byte{make([]byte, 16*MaxNames)}, codes.OK},
		{"one more", [][]byte{make([]byte, 16*(MaxNames+1))}, codes.OutOfRange},
		{"more bytes than may be", [][]byte{make([]byte, MaxRequest)}, codes.ResourceExhausted},
	} {
		_, err := w.client.Lookup(t.Context(), &indexpb.LookupRequest{Model: "m", Edition: m.Edition, Names: c.names})
		if status.Code(err) != c.want {
			t.Errorf("%s: %v, want %v", c.about, err, c.want)
		}
	}
}

// TestBusy: what is beyond the bound is refused at once and before its message is there, and every call that ends makes room.
func TestBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := make(chan codes.Code, 10)
		w := newWorld(t, Options{MaxInFlight: 2, Hooks: Hooks{Answered: func(method string, c codes.Code, _ time.Duration) {
			if method != "Lookup" {
				t.Errorf("of %s", method)
			}
			refused <- c
		}}})
		// Streams whose message never comes: they have been admitted, and nothing has been read.
		open := func() (grpc.ClientStream, context.CancelFunc) {
			ctx, cancel := context.WithCancel(t.Context())
			s, err := w.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, indexpb.PrefixIndex_Lookup_FullMethodName)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return s, cancel
		}
		_, cancel1 := open()
		_, cancel2 := open()
		if n, _ := w.server.InFlight(); n != 2 {
			t.Errorf("%d in flight", n)
		}
		_, err := w.client.Lookup(t.Context(), &indexpb.LookupRequest{Model: "m"})
		if status.Code(err) != codes.ResourceExhausted || <-refused != codes.ResourceExhausted {
			t.Errorf("%v", err)
		}
		if _, err := healthpb.NewHealthClient(w.conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
			t.Errorf("health: %v", err)
		}
		cancel1()
		synctest.Wait()
		if _, err := w.client.Lookup(t.Context(), &indexpb.LookupRequest{Model: "m"}); err != nil || <-refused != codes.OK {
			t.Errorf("%v", err)
		}
		cancel2()
		synctest.Wait()
		if n, _ := w.server.InFlight(); n != 0 {
			t.Errorf("%d in flight at the end", n)
		}
		_, cancel3 := open() // and leave it
		defer cancel3()
		time.Sleep(maxLookup)
		synctest.Wait()
		if n, _ := w.server.InFlight(); n != 0 {
			t.Errorf("%d in flight, whose messages never came", n)
		}
	})
}

// TestSnapshotsAreFew: one whose reader does not read keeps its place for a while, and not for ever.
func TestSnapshotsAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{MaxSnapshots: 1, Position: func(uint32, int32) (Position, bool) { return Position{}, true }})
		w.open(1, 0, 4, 4*50_000) // 1.6 MB: more than what is buffered on the way
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if _, err := w.client.Snapshot(ctx, &indexpb.SnapshotRequest{Model: "m"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		second := func() codes.Code {
			s, err := w.client.Snapshot(ctx, &indexpb.SnapshotRequest{Model: "m"})
			if err == nil {
				_, err = s.Recv()
			}
			return status.Code(err)
		}
		if c := second(); c != codes.ResourceExhausted {
			t.Errorf("the second: %v", c)
		}
		time.Sleep(maxSnapshot)
		synctest.Wait()
		if c := second(); c != codes.OK {
			t.Errorf("after the first was given up: %v", c)
		}
	})
	w := newWorld(t, Options{})
	if s, err := w.client.Snapshot(t.Context(), &indexpb.SnapshotRequest{Model: "m"}); err == nil {
		if _, err = s.Recv(); status.Code(err) != codes.Unimplemented {
			t.Errorf("without positions: %v", err)
		}
	}
}

// TestLate: a call whose deadline has passed when it arrives is refused before any work.
func TestLate(t *testing.T) {
	late, cancel := context.WithTimeout(t.Context(), -1)
	defer cancel()
	answered := codes.OK
	s := New(Options{Store: local.New(local.Options{}), Hooks: Hooks{Answered: func(_ string, c codes.Code, _ time.Duration) { answered = c }}})
	defer s.Close(0)
	info := &grpc.UnaryServerInfo{Server: s, FullMethod: indexpb.PrefixIndex_Lookup_FullMethodName}
	_, err := s.unary(late, nil, info, func(context.Context, any) (any, error) { panic("worked") })
	if status.Code(err) != codes.DeadlineExceeded || answered != codes.DeadlineExceeded {
		t.Errorf("%v, told %v", err, answered)
	}
}

func TestTokenAndHealth(t *testing.T) {
	w := newWorld(t, Options{Token: "secret"})
	for presented, want := range map[string]codes.Code{"": codes.Unauthenticated, "Bearer Secret": codes.Unauthenticated, "secret": codes.Unauthenticated, "Bearer secret": codes.OK} {
		ctx := t.Context()
		if presented != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", presented)
		}
		if _, err := w.client.Lookup(ctx, &indexpb.LookupRequest{Model: "m"}); status.Code(err) != want {
			t.Errorf("%q: %v, want %v", presented, err, want)
		}
	}
	health := func() string {
		r, err := healthpb.NewHealthClient(w.conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "perigee.index.v1.PrefixIndex"})
		return fmt.Sprint(r.GetStatus(), err)
	}
	if got := health(); got != "SERVING <nil>" {
		t.Error(got)
	}
	w.server.SetReady(false)
	if got := health(); got != "NOT_SERVING <nil>" {
		t.Error(got)
	}
}

// TestPositionIn: what the index could not take is not whole, whatever the numbers say.
func TestPositionIn(t *testing.T) {
	for state, want := range map[index.State]struct{ whole, use bool }{
		index.Exact: {true, true}, index.Partial: {false, true}, index.Hidden: {false, false}, index.CutOff: {false, false},
	} {
		if p, use := (Position{Next: 3, Whole: true}).In(state); p != (Position{Next: 3, Whole: want.whole}) || use != want.use {
			t.Errorf("%v: %+v, %v", state, p, use)
		}
	}
	if p, use := (Position{}).In(index.Exact); p.Whole || !use {
		t.Errorf("%+v, %v", p, use)
	}
}
