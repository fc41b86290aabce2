package keeper

import (
	"context"
	"errors"
	"net"
	"net/http/httptrace"

	"github.com/perigee-llm/perigee/internal/gateway/fleet/ask"
)

// connection is what is known of the connection that a question went over. It belongs to who asks.
type connection struct {
	made  bool // there was one
	fresh bool // it was made for this question
}

// watch returns a context for one question, which tells c of its connection.
func (c *connection) watch(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		c.made, c.fresh = true, !i.Reused
	}})
}

// lost tells whether a question that failed with err did so for the way to the engine: no connection came about in its time, as with a host that
// drops what comes while it starts, or a new one ended without a whole answer, as with a proxy before nobody. An answer that is slow to come is
// none of it.
func (c *connection) lost(err error) bool {
	if !errors.Is(err, ask.ErrUnreachable) {
		return false
	}
	return !c.made || c.fresh && !timedOut(err)
}

func timedOut(err error) bool {
	late, ok := errors.AsType[net.Error](err)
	return ok && late.Timeout()
}
