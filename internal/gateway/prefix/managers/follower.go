package managers

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/managers/ledger"
	"github.com/perigee-llm/perigee/internal/zmtp"
)

// Target is a Manager to be followed, by its three sockets, each as ZeroMQ writes it: tcp://host:port or ipc://path.
type Target struct {
	// ID is what the configuration calls it.
	ID                       string
	Events, Replay, Snapshot string
}

// Options are a follower's. Store and Costs are needed.
type Options struct {
	// Store gets what Managers can restore, Costs what that takes.
	Store *local.Store
	Costs *prefix.Costs
	// Limits bound each Manager.
	Limits ledger.Limits
	// Patience is how long a subscription waits for room before it drops a message. Default 200 ms: that much the index may be behind
	// without saying so.
	Patience time.Duration
	// Log gets what changes; nil: nowhere.
	Log *slog.Logger
	// DialContext makes connections, for tests. Nil: the network's.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
}

// Follower follows Managers. Make one with [Start], and close it. All methods may be called at once.
type Follower struct {
	o Options // immutable after Start

	setting sync.Mutex // one Set at a time; held across joins
	mu      struct {
		sync.Mutex
		closed   bool
		managers map[string]*manager // by id
	}
}

// Start returns a follower of no Manager. The caller closes it.
func Start(o Options) *Follower {
	o.Patience = cmp.Or(o.Patience, 200*time.Millisecond)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	f := &Follower{o: o}
	f.mu.managers = map[string]*manager{}
	return f
}

// Set follows these Managers, whose ids differ, and no others. One that is followed just so already is left as it is; Set waits for the end of
// those that are not. After Close it does nothing.
func (f *Follower) Set(targets []Target) {
	f.setting.Lock()
	defer f.setting.Unlock()
	f.mu.Lock()
	var gone []*manager
	for id, m := range f.mu.managers {
		if !slices.Contains(targets, m.target) {
			gone = append(gone, m)
			delete(f.mu.managers, id)
		}
	}
	f.mu.Unlock()
	for _, m := range gone {
		m.end()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range targets {
		if !f.mu.closed && f.mu.managers[t.ID] == nil {
			f.mu.managers[t.ID] = startManager(&f.o, t)
		}
	}
}

// Close ends everything and waits for it. Closing twice is closing once.
func (f *Follower) Close() {
	f.mu.Lock()
	f.mu.closed = true
	f.mu.Unlock()
	f.Set(nil)
}

// Status is how a Manager is followed.
type Status struct {
	ID string
	ledger.Status
	// Connects and Breaks are of the live connection. Dropped messages had no room; BadMessages were none of the wire's, Oversize too
	// long.
	Connects, Breaks, Dropped, BadMessages, Oversize uint64
	// Fault is why it cannot be followed, or what went wrong last; nil if nothing did since the connection is there.
	Fault error
}

// Status returns how all Managers are, by their ids. It waits for each to have a moment.
func (f *Follower) Status() (all []Status) {
	f.mu.Lock()
	managers := make([]*manager, 0, len(f.mu.managers))
	for _, m := range f.mu.managers {
		managers = append(managers, m)
	}
	f.mu.Unlock()
	for _, m := range managers {
		m.call(func() { all = append(all, m.status()) })
	}
	slices.SortFunc(all, func(a, b Status) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// A Manager is heard of within 900 ms, so that one that is gone is hidden within a second.
const (
	heartbeat = 300 * time.Millisecond
	silence   = 600 * time.Millisecond
)

// dialTimeout bounds one attempt to connect, handshake and all: a packet that nobody answers is sent again by TCP for two minutes.
const dialTimeout = 3 * time.Second

func (o *Options) dial(ctx context.Context, typ zmtp.Type, endpoint string, topics ...string) (*zmtp.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return zmtp.Dial(ctx, typ, endpoint, zmtp.Options{
		Topics: topics, Heartbeat: heartbeat, Timeout: silence, DialContext: o.DialContext, MaxFrames: 8,
	})
}
