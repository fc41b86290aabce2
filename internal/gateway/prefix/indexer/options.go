package indexer

import (
	"cmp"
	"crypto/tls"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
)

// MaxNames is the most names of blocks in one look-up. 131,072 blocks of 16 tokens are two million tokens, more than any model's context;
// of an engine with pages of one token they are still more than most.
const MaxNames = 128 << 10

// MaxRequest is the longest request in bytes: MaxNames names of 16 bytes, and room for the rest.
const MaxRequest = 16*MaxNames + 64<<10

// Options say what is served. Store and URL are needed; the zero value of the rest works.
type Options struct {
	// Store has the indexes. It is the caller's.
	Store *local.Store
	// URL returns the base URL of an engine by its number (fleet.Worker.No), the one under which gateways know it; false: it is gone.
	URL func(no uint32) (string, bool)
	// Position says how far the events of a rank have been applied; false: its claims are not to be believed just now, so that the rank is
	// left out of snapshots. Nil: there are no snapshots.
	Position func(engine uint32, rank int32) (Position, bool)
	// Costs are what restores of what Cache Managers hold take; they go along with answers, as often as they change and once a second at most. It
	// is the caller's. Nil: nobody knows.
	Costs *prefix.Costs

	// MaxInFlight is how many look-ups may be under way at once. 0 means 64: one takes some 50 µs of a core, so that more than a few at
	// once are a burst, and at 2 MiB each they are 128 MiB at worst.
	MaxInFlight int
	// MaxSnapshots is the same for snapshots. 0 means 2: gateways that start together take turns.
	MaxSnapshots int
	// Token, if it is not empty, is what callers must present as "authorization: Bearer …". It is compared in constant time.
	Token string
	// TLS is the server's side of TLS, with ClientCAs and RequireAndVerifyClientCert for mutual TLS. Nil: plain text.
	TLS *tls.Config
	// Hooks are told what happens.
	Hooks Hooks
	// Log gets what an operator has to know; nil: nowhere.
	Log *slog.Logger
}

// Position is how far the events of a rank have been applied to its claims.
type Position struct {
	// Next is the number of the batch that is expected.
	Next int64
	// Print is XXH3 of the payload of the batch before it, if Printed.
	Print   uint64
	Printed bool
	// Whole says that the claims are all that the engine holds.
	Whole bool
}

// In is the position of a rank of which the index says that it is in that state. It knows of claims that it had no room for, or could not
// follow, of which the stream's numbers know nothing: the claims are not whole then. False: they are nothing that anybody could use.
func (p Position) In(s index.State) (Position, bool) {
	p.Whole = p.Whole && s == index.Exact
	return p, s == index.Exact || s == index.Partial
}

// Hooks are told what happens, by the goroutine that did it; they must not block. Each may be nil.
type Hooks struct {
	// Answered is told of each call that is over: its method's name (Lookup, Snapshot), the status, and how long it took; a call that was
	// refused before it began took 0.
	Answered func(method string, code codes.Code, took time.Duration)
}

func (o Options) withDefaults() Options {
	o.MaxInFlight = cmp.Or(o.MaxInFlight, 64)
	o.MaxSnapshots = cmp.Or(o.MaxSnapshots, 2)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Hooks.Answered == nil {
		o.Hooks.Answered = func(string, codes.Code, time.Duration) {}
	}
	return o
}
