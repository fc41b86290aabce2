package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/indexer/indexpb"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/remote/kvindexerpb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// service is what answers at one address, in memory: as perigee.index.v1 and as kv_indexer.v1, by functions.
type service struct {
	indexpb.UnimplementedPrefixIndexServer
	kvindexerpb.UnimplementedKVIndexerServer

	lookup func(ctx context.Context, r *indexpb.LookupRequest) (*indexpb.LookupResponse, error)
	match  func(ctx context.Context, r *kvindexerpb.MatchExternalKvPrefixRequest) (*kvindexerpb.MatchExternalKvPrefixResponse, error)

	listener *bufconn.Listener
	mu       sync.Mutex
	asked    int
	token    string
}

func (s *service) Lookup(ctx context.Context, r *indexpb.LookupRequest) (*indexpb.LookupResponse, error) {
	s.note(ctx)
	return s.lookup(ctx, r)
}

func (s *service) MatchExternalKvPrefix(ctx context.Context, r *kvindexerpb.MatchExternalKvPrefixRequest) (*kvindexerpb.MatchExternalKvPrefixResponse, error) {
	s.note(ctx)
	return s.match(ctx, r)
}

func (s *service) note(ctx context.Context) {
	md, _ := metadata.FromIncomingContext(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	s.token = strings.Join(md.Get("authorization"), ",")
}

// serve has the service answer until the test is over.
func (s *service) serve(t testing.TB) *service { return s.serveAs(t, s) }

// serveAs has somebody answer at the service's address.
func (s *service) serveAs(t testing.TB, as indexpb.PrefixIndexServer) *service {
	s.listener = bufconn.Listen(1 << 20)
	g := grpc.NewServer(grpc.MaxRecvMsgSize(16 << 20))
	indexpb.RegisterPrefixIndexServer(g, as)
	kvindexerpb.RegisterKVIndexerServer(g, s)
	var wg sync.WaitGroup
	wg.Go(func() { _ = g.Serve(s.listener) })
	t.Cleanup(func() {
		g.Stop()
		wg.Wait()
	})
	return s
}

// network dials services by their addresses; nobody is at others.
type network map[string]*service

func (n network) dial(ctx context.Context, address string) (net.Conn, error) {
	if s := n[address]; s != nil {
		return s.listener.DialContext(ctx)
	}
	return nil, errors.New("nobody is there")
}

// fleet are the engines that the gateway of these tests has.
func fleet(string) map[string]uint32 {
	return map[string]uint32{"http://a": 1, "http://b": 2, "http://c": 3}
}

// options are for endpoints at addresses of a network.
func (n network) options(addresses ...string) Options {
	o := Options{Engines: fleet, DialContext: n.dial, Timeout: 10 * time.Second}
	for _, a := range addresses {
		o.Endpoints = append(o.Endpoints, "http://"+a)
	}
	return o
}

func (n network) index(t testing.TB, o Options) *Index {
	x, err := NewIndex(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.Close)
	return x
}

// said is what a model's service says that follows a and b.
func said() *indexpb.Model {
	return &indexpb.Model{Edition: 7, Domains: []*indexpb.Domain{{Base: "m", BlockSize: 4}}, Engines: []string{"http://a", "http://b", "http://c"}}
}

// holds answers that the first engine holds so many tokens, once the model is known.
func holds(tokens uint32) func(context.Context, *indexpb.LookupRequest) (*indexpb.LookupResponse, error) {
	return func(_ context.Context, r *indexpb.LookupRequest) (*indexpb.LookupResponse, error) {
		if r.Edition != 7 {
			return &indexpb.LookupResponse{Model: said()}, nil
		}
		if tokens == 0 {
			return &indexpb.LookupResponse{}, nil
		}
		return &indexpb.LookupResponse{Engines: []uint32{0}, Ranks: []int32{0}, Depths: []uint32{tokens, tokens, tokens, tokens}}, nil
	}
}

// fails answers with a status.
func fails(code codes.Code) func(context.Context, *indexpb.LookupRequest) (*indexpb.LookupResponse, error) {
	return func(context.Context, *indexpb.LookupRequest) (*indexpb.LookupResponse, error) {
		return nil, status.Error(code, "as told")
	}
}

func tokens(n int) []uint32 {
	t := make([]uint32, n)
	for i := range t {
		t[i] = uint32(i)
	}
	return t
}

// look writes what a source says of the first n tokens.
func look(ctx context.Context, s prefix.Source, n int) string {
	var m prefix.Match
	err := s.Lookup(ctx, &prefix.Query{Model: "m", Tokens: tokens(n)}, &m)
	var away *prefix.Unavailable
	var refused *prefix.Rejected
	switch {
	case errors.As(err, &away):
		return "unavailable: " + string(away.Reason)
	case errors.As(err, &refused):
		return "rejected: " + refused.Err.Error()
	case err != nil:
		return "another error: " + err.Error()
	}
	var parts []string
	for _, h := range m.Held {
		parts = append(parts, fmt.Sprintf("%d/%d:%v", h.Engine, h.Rank, h.Depth))
	}
	if len(m.Blind) > 0 {
		parts = append(parts, fmt.Sprintf("blind %v", m.Blind))
	}
	if len(parts) == 0 {
		return "miss"
	}
	return strings.Join(parts, ", ")
}
