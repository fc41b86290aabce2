package indexer

import (
	"context"
	"crypto/subtle"
	"net"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/indexer/indexpb"
)

// Server serves an index. Make one with [New], and close it. All methods may be called at once.
type Server struct {
	indexpb.UnimplementedPrefixIndexServer

	o         Options // immutable after New
	grpc      *grpc.Server
	health    *health.Server
	bearer    atomic.Pointer[[]byte] // nil: nothing is asked for
	inFlight  atomic.Int64
	snapshots atomic.Int64
	models    models
	prices    prices
	once      sync.Once
}

// New returns a server that serves nobody yet, and is healthy. The caller closes it.
func New(o Options) *Server {
	s := &Server{o: o.withDefaults(), health: health.NewServer()}
	s.prices.costs = o.Costs
	s.SetToken(o.Token)
	options := []grpc.ServerOption{
		grpc.InTapHandle(s.admit),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
		grpc.MaxRecvMsgSize(MaxRequest),
		// A gateway has one connection and by default 32 look-ups at once. Those beyond this wait in the gateway, unseen, so it is well above
		// what is refused with a word (MaxInFlight).
		grpc.MaxConcurrentStreams(256),
		// Gateways ask every 10 s whether we are there, so that a host that vanished is noticed.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WaitForHandlers(true),
	}
	if o.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(o.TLS)))
	}
	s.grpc = grpc.NewServer(options...)
	indexpb.RegisterPrefixIndexServer(s.grpc, s)
	healthpb.RegisterHealthServer(s.grpc, s.health)
	s.SetReady(true)
	return s
}

// SetToken has the calls that come from now on present another token ([Options.Token]).
func (s *Server) SetToken(token string) {
	if token == "" {
		s.bearer.Store(nil)
		return
	}
	bearer := []byte("Bearer " + token)
	s.bearer.Store(&bearer)
}

// SetReady says in the health service whether gateways should ask here. Look-ups are answered all the same.
func (s *Server) SetReady(ready bool) {
	st := healthpb.HealthCheckResponse_NOT_SERVING
	if ready {
		st = healthpb.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus("", st)
	s.health.SetServingStatus(indexpb.PrefixIndex_ServiceDesc.ServiceName, st)
}

// Serve answers on a listener, which it closes, until [Server.Close]; then it returns nil. Another error is the listener's.
func (s *Server) Serve(l net.Listener) error { return s.grpc.Serve(l) }

// Close lets calls that are under way end for so long, then breaks them off, and returns when all is over. Closing twice is closing once.
func (s *Server) Close(grace time.Duration) {
	s.once.Do(func() {
		s.health.Shutdown()
		t := time.AfterFunc(grace, s.grpc.Stop)
		defer t.Stop()
		s.grpc.GracefulStop()
	})
}

var (
	errBusy    = status.Error(codes.ResourceExhausted, "as many look-ups as may be are under way")
	errLate    = status.Error(codes.DeadlineExceeded, "the deadline had passed when the call arrived")
	errToken   = status.Error(codes.Unauthenticated, "the token is missing or another")
	errCapped  = status.Error(codes.OutOfRange, "too many names of blocks")
	errNames   = status.Error(codes.InvalidArgument, "names that are not 16 bytes each")
	errDomains = status.Error(codes.InvalidArgument, "names for more domains than the model has")
)

// admit is asked when a call's headers have come, before its message is read: so calls that are refused cost no memory. What it counts ends
// with the call's context. It runs in the connection's reader and must be quick.
func (s *Server) admit(ctx context.Context, info *tap.Info) (context.Context, error) {
	if path.Dir(info.FullMethodName) != "/"+indexpb.PrefixIndex_ServiceDesc.ServiceName {
		return ctx, nil
	}
	refuse := func(err error) (context.Context, error) {
		s.o.Hooks.Answered(path.Base(info.FullMethodName), status.Code(err), 0)
		return ctx, err
	}
	if bearer := s.bearer.Load(); bearer != nil && !presents(info.Header, *bearer) {
		return refuse(errToken)
	}
	if ctx.Err() != nil {
		return refuse(errLate)
	}
	count, most, longest := &s.inFlight, s.o.MaxInFlight, maxLookup
	if info.FullMethodName == indexpb.PrefixIndex_Snapshot_FullMethodName {
		count, most, longest = &s.snapshots, s.o.MaxSnapshots, maxSnapshot
	}
	if count.Add(1) > int64(most) {
		count.Add(-1)
		return refuse(errBusy)
	}
	ctx, cancel := context.WithTimeout(ctx, longest)
	context.AfterFunc(ctx, func() { // at the end of the call too, which ends the context that ours is made of
		cancel()
		count.Add(-1)
	})
	return ctx, nil
}

// The longest that a call may take, whatever its deadline: a caller who never sends his message, or never reads the answer, must not keep one
// of few places. A look-up takes a second at the very worst, and a snapshot of ten million claims over a slow network, 330 MB, a minute.
const (
	maxLookup   = 10 * time.Second
	maxSnapshot = 5 * time.Minute
)

func presents(md metadata.MD, bearer []byte) bool {
	for _, v := range md.Get("authorization") {
		if subtle.ConstantTimeCompare([]byte(v), bearer) == 1 {
			return true
		}
	}
	return false
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if _, ours := info.Server.(*Server); !ours {
		return handler(ctx, req)
	}
	begin := time.Now()
	if ctx.Err() != nil {
		s.o.Hooks.Answered(path.Base(info.FullMethod), codes.DeadlineExceeded, 0)
		return nil, errLate
	}
	resp, err := handler(ctx, req)
	s.o.Hooks.Answered(path.Base(info.FullMethod), status.Code(err), time.Since(begin))
	return resp, err
}

func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if _, ours := srv.(*Server); !ours {
		return handler(srv, ss)
	}
	begin := time.Now()
	err := handler(srv, ss)
	s.o.Hooks.Answered(path.Base(info.FullMethod), status.Code(err), time.Since(begin))
	return err
}

// InFlight returns how many look-ups and snapshots are under way.
func (s *Server) InFlight() (lookups, snapshots int) {
	return int(s.inFlight.Load()), int(s.snapshots.Load())
}
