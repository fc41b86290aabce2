package zmtp

import (
	"context"
	"time"
)

// Backoff is the time between attempts: Min at first, doubled by each up to Max. The zero value goes from 50 ms to 2 s: an engine that
// was restarted is found again at once, and one that is gone costs an attempt every two seconds. There is no jitter: each endpoint is
// dialled by a few gateways, not by thousands. One goroutine may use it at a time.
type Backoff struct {
	Min, Max time.Duration
	next     time.Duration
}

// Next returns the next pause.
func (b *Backoff) Next() time.Duration {
	lowest, highest := b.Min, b.Max
	if lowest <= 0 {
		lowest = 50 * time.Millisecond
	}
	if highest <= 0 {
		highest = 2 * time.Second
	}
	d := min(max(b.next, lowest), highest)
	b.next = 2 * d
	return d
}

// Reset makes the next pause Min again.
func (b *Backoff) Reset() { b.next = 0 }

// Wait waits for the next pause to pass, and returns the context's cause if that ends first.
func (b *Backoff) Wait(ctx context.Context) error {
	t := time.NewTimer(b.Next())
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// settled is how long a connection must have lasted for the next attempt to be made soon: a peer that accepts and hangs up is not
// dialled twenty times a second.
const settled = 2 * time.Second

// Maintain keeps a connection up: it calls dial, hands the connection to serve, which owns the receiving and returns why it ended, closes
// it, tells down, waits as Backoff says and begins anew, until the context ends. Then it closes the connection, so that serve
// returns, and returns the context's cause. down is told of each failed dial and each end, at once and before the pause; not of the
// last one. All calls are made by the calling goroutine, one after another.
//
// The rejected design hides reconnection inside the connection, as libzmq does: then nobody learns that events may have been lost.
func Maintain(ctx context.Context, b Backoff, dial func(context.Context) (*Conn, error), serve func(*Conn) error, down func(error)) error {
	for ctx.Err() == nil {
		began := time.Now()
		err := once(ctx, dial, serve)
		if ctx.Err() != nil {
			break
		}
		down(err)
		if time.Since(began) >= settled {
			b.Reset()
		}
		if b.Wait(ctx) != nil {
			break
		}
	}
	return context.Cause(ctx)
}

func once(ctx context.Context, dial func(context.Context) (*Conn, error), serve func(*Conn) error) error {
	c, err := dial(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	defer c.Close()
	return serve(c)
}
