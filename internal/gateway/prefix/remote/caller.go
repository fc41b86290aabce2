package remote

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// maxAnswer bounds an answer in bytes: 65,536 engines with long names, or as many holders.
const maxAnswer = 8 << 20

// caller asks endpoints, one after the other. All methods may be called at once.
type caller struct {
	o         Options // immutable
	endpoints []*endpoint
	preferred atomic.Uint32 // the place of the one that answered last
	inFlight  atomic.Int64
}

// endpoint is one service.
type endpoint struct {
	name   string
	conn   *grpc.ClientConn
	failed atomic.Bool // what the log was told last
	models models      // of Index
}

func newCaller(o Options) (*caller, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	c := &caller{o: o.withDefaults()}
	for _, name := range o.Endpoints {
		conn, err := c.o.connect(name)
		if err != nil {
			c.close()
			return nil, fmt.Errorf("endpoint %q: %w", name, err)
		}
		c.endpoints = append(c.endpoints, &endpoint{name: name, conn: conn})
	}
	return c, nil
}

// connect makes what will be a connection when it is first used.
func (o *Options) connect(name string) (*grpc.ClientConn, error) {
	address, secure, err := target(name)
	if err != nil {
		return nil, err
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithPerRPCCredentials(bearer{o.Secrets}),
		grpc.WithNoProxy(), // as the gateway's other connections inside
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(), // the next endpoint is our retry
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		// A service that returns is found within 2 s; nobody is hurt by a dial that often.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, Jitter: .2, MaxDelay: 2 * time.Second}, MinConnectTimeout: 2 * time.Second,
		}),
		// A host that vanished is noticed in 12 s; until then each look-up takes its time-out. Ten seconds is the library's least.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second}),
	}
	if secure {
		options = append(options, grpc.WithTransportCredentials(handshaker{o.Secrets}))
	}
	switch {
	case o.DialContext != nil:
		options = append(options, grpc.WithContextDialer(o.DialContext))
		address = "passthrough:///" + address
	case !strings.HasPrefix(address, "unix:"):
		address = "dns:///" + address
	}
	return grpc.NewClient(address, options...)
}

func (c *caller) close() {
	for _, e := range c.endpoints {
		_ = e.conn.Close() // it fails only when it is closed already
	}
}

// lookup has ask fill the match from one endpoint after the other.
func (c *caller) lookup(ctx context.Context, into *prefix.Match, ask func(ctx context.Context, e *endpoint) error) error {
	begin := time.Now()
	err := c.admit(ctx, into, ask)
	took := time.Since(begin)
	c.o.Hooks.LookedUp(outcome(err, len(into.Held) > 0), took)
	return err
}

func (c *caller) admit(ctx context.Context, into *prefix.Match, ask func(ctx context.Context, e *endpoint) error) error {
	defer c.inFlight.Add(-1)
	if c.inFlight.Add(1) > int64(c.o.MaxInFlight) {
		return &prefix.Unavailable{Reason: prefix.Overloaded, Err: errInFlight}
	}
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	return c.each(ctx, into, ask)
}

var errInFlight = errors.New("as many look-ups as may be are out")

// each asks the endpoints in turn, the preferred one first, until one answers or refuses. The context has a deadline.
func (c *caller) each(ctx context.Context, into *prefix.Match, ask func(ctx context.Context, e *endpoint) error) (err error) {
	n := len(c.endpoints)
	first := int(c.preferred.Load())
	for i := range n {
		place := (first + i) % n
		e := c.endpoints[place]
		into.Reset()
		err = c.try(ctx, n-i, e, into, ask)
		var away *prefix.Unavailable
		switch {
		case !errors.As(err, &away):
			if err == nil && i > 0 {
				c.preferred.Store(uint32(place))
			}
			return err
		case away.Reason == prefix.TooLarge, ctx.Err() != nil:
			return err
		}
	}
	return err
}

// try asks one endpoint, which gets its part of the time that is left.
func (c *caller) try(ctx context.Context, parts int, e *endpoint, into *prefix.Match, ask func(ctx context.Context, e *endpoint) error) error {
	begin := time.Now()
	if deadline, ok := ctx.Deadline(); ok && parts > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/time.Duration(parts))
		defer cancel()
	}
	err := classify(ask(ctx, e))
	if err != nil {
		into.Reset()
	}
	o := outcome(err, len(into.Held) > 0)
	c.o.Hooks.Tried(e.name, o, time.Since(begin))
	c.note(e, o, err)
	return err
}

// note has the log say when an endpoint begins to fail and when it answers again.
func (c *caller) note(e *endpoint, o Outcome, err error) {
	if e.failed.Swap(err != nil) == (err != nil) {
		return
	}
	if err != nil {
		c.o.Log.Warn("look-ups at a prefix index fail", "endpoint", e.name, "outcome", string(o), "error", err)
	} else {
		c.o.Log.Info("look-ups at a prefix index succeed again", "endpoint", e.name)
	}
}
