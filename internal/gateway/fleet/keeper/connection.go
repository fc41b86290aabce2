package keeper

import (
	"context"
	"errors"
	"net"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet/ask"
)

// keptFor is for how long an engine keeps a connection that nothing goes over. Uvicorn, which both families serve with, does so for five seconds.
const keptFor = 4 * time.Second

// connection is what is known of the connection that questions to one engine go over. It belongs to who asks them, one after another.
type connection struct {
	made    bool // there was one
	fresh   bool // it was made for this question
	renewed bool // the one that was kept from the question before had ended, though it was used a moment ago: the engine's process has, or what stands before it

	kept  atomic.Bool // it was whole when the last question ended; the transport's goroutine says so
	until time.Time   // the engine keeps it that long
}

// watch begins a question at now, and returns a context for it, which tells c of its connection.
func (c *connection) watch(ctx context.Context, now time.Time) context.Context {
	c.made, c.fresh, c.renewed = false, false, false
	expected := c.kept.Swap(false) && now.Before(c.until)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) {
			c.made, c.fresh = true, !i.Reused
			c.renewed = c.renewed || c.fresh && expected // a question that finds its connection broken is asked again over a new one
		},
		PutIdleConn: func(err error) { c.kept.Store(err == nil) },
	})
}

// ended ends a question at now.
func (c *connection) ended(now time.Time) { c.until = now.Add(keptFor) }

// lost tells whether a question that failed with err did so for the way to the engine: no connection came about in its time, as with a host that
// drops what comes while it starts, or a new one ended without a whole answer, as with a proxy before nobody. An answer that is slow to come is
// none of it, nor is a want of descriptors here.
func (c *connection) lost(err error) bool {
	if !errors.Is(err, ask.ErrUnreachable) || errors.Is(err, ask.ErrShortage) {
		return false
	}
	return !c.made || c.fresh && !timedOut(err)
}

func timedOut(err error) bool {
	late, ok := errors.AsType[net.Error](err)
	return ok && late.Timeout()
}
