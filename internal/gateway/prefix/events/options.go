package events

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
	"github.com/perigee-llm/perigee/internal/zmtp"
)

// Claims is what one rank of an engine claims in an index; a *local.Rank is one. Its methods are called by one goroutine at a time.
type Claims interface {
	Apply(e *prefix.Event) index.Outcome
	Mark(s index.State)
	Doubt()
	Withdraw()
	Settle()
	Close()
}

// Needs says what somebody wants to know of an engine. The zero value is nothing.
type Needs struct{ Prefix, Load bool }

// Target is an engine to be followed.
type Target struct {
	// Worker is the engine. Its load reports go to its load record.
	Worker *fleet.Worker
	// Domain names what has one applier: the base model.
	Domain string
	// Needs says what of it is wanted.
	Needs Needs
	// Sources says where it publishes; nil: the engine is asked ([Discover]), and asked again now and then.
	Sources *Sources
	// Open makes a rank known to the index; it is called when the rank's stream is found, and its result closed when it ends. It is
	// needed for Needs.Prefix.
	Open func(rank int32) Claims
	// Past is asked once for each rank's stream, after Open and before its sockets are looked at, if the Claims can be copied to; nil: nobody
	// else knows the engine.
	Past PastOf
}

// same tells whether an engine that is followed as t need not be followed anew as o. What Open and Past do is not compared.
func (t *Target) same(o *Target) bool {
	return t.Worker.No == o.Worker.No && t.Worker.URL == o.Worker.URL && t.Worker.Kind == o.Worker.Kind && t.Domain == o.Domain && t.Needs == o.Needs &&
		(t.Sources == nil) == (o.Sources == nil) && (t.Sources == nil || t.Sources.equal(o.Sources))
}

// Options are a follower's. The zero value works.
type Options struct {
	// Client asks engines where they publish. Nil: http.DefaultClient without redirects. Keys are the transport's matter.
	Client *http.Client
	// Limits bound each stream's repairs.
	Limits stream.Limits
	// Queue and QueueBytes bound what waits for the applier, for each feed. Defaults 4,096 messages and 16 MiB: hundreds of steps of a busy
	// engine. Patience is how long a subscription waits for room before it drops a message; meanwhile the engine's own queue, of 100,000
	// messages by default, takes what comes. Default 200 ms. What waits is no loss, and the engine counts as exact meanwhile: how far
	// behind its index is, [Status] says (Waiting, Lag). A full queue is some 100 ms of an applier that has no other; with 64 of them it is seconds.
	Queue, QueueBytes int
	Patience          time.Duration
	// Rediscover is how often an engine is asked anew where it publishes. Default 30 s, as the keeper asks it what it is.
	Rediscover time.Duration
	// DoubtedFor is how long the index keeps claims in mind that were dropped because events were lost. Default 10 minutes: what is
	// still used by then has been proven by a store behind it.
	DoubtedFor time.Duration
	// Log gets what changes; nil: nowhere.
	Log *slog.Logger
	// Hooks are told what happens.
	Hooks Hooks
	// DialContext and Listen make connections and listeners, for tests. Nil: the network's.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	Listen      func(endpoint string, o zmtp.Options) (*zmtp.Listener, error)
}

// Hooks are told what happens, by appliers; they must not block. Each may be nil. Figures that rise with each event are in [Status].
type Hooks struct {
	// Changed is told when a stream's state or trust changes.
	Changed func(Status)
}

// The engine's publisher is heard of within 900 ms, so that one that is gone is hidden within a second. libzmq answers from a thread that
// does nothing else, so a busy engine answers all the same.
const (
	heartbeat = 300 * time.Millisecond
	silence   = 600 * time.Millisecond
)

func (o Options) withDefaults() Options {
	if o.Client == nil {
		o.Client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	o.Queue = cmp.Or(o.Queue, 4096)
	o.QueueBytes = cmp.Or(o.QueueBytes, 16<<20)
	o.Patience = cmp.Or(o.Patience, 200*time.Millisecond)
	o.Rediscover = cmp.Or(o.Rediscover, 30*time.Second)
	o.DoubtedFor = cmp.Or(o.DoubtedFor, 10*time.Minute)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Listen == nil {
		o.Listen = func(endpoint string, z zmtp.Options) (*zmtp.Listener, error) {
			return zmtp.Listen(zmtp.Sub, endpoint, z)
		}
	}
	return o
}

func (o *Options) zmtp(topics ...string) zmtp.Options {
	return zmtp.Options{Topics: topics, Heartbeat: heartbeat, Timeout: silence, DialContext: o.DialContext, MaxFrames: 8}
}

// dialTimeout bounds one attempt to connect, handshake and all: a packet that nobody answers is sent again by TCP for two minutes.
const dialTimeout = 3 * time.Second

func (o *Options) dial(ctx context.Context, typ zmtp.Type, endpoint string, topics ...string) (*zmtp.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return zmtp.Dial(ctx, typ, endpoint, o.zmtp(topics...))
}
