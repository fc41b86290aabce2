// Package manager is the Cache Manager's daemon around its decisions: it joins the core to the channel, the pool, the checksums and an admin
// listener. It decides nothing about blocks itself. It is for Linux.
//
// It promises:
//
//   - A page is named to an engine only after its bytes were found to be what was sealed, or with its checksum to an engine that compares them where it has
//     copied them to. One that is not is dropped, counted and computed anew. What its publisher writes into it between the look and an engine's copy
//     only the latter way shows.
//   - What a process may write or read is nobody else's until the kernel says that the process is gone, or it says itself that
//     it has unmapped everything.
//   - What is copied for a process, out of memory of its own or into it, ends before its slots are free, before that memory is unmapped, and before
//     its connections end; and a page is told as good only after it was copied and found to be what was sealed.
//   - A connection's trouble is its session's and nobody else's. Checksums are made and compared outside of the lock that all share, in the
//     goroutine of the connection that wants them.
//   - Nobody waits for the log. Lines of a kind that come too fast, and what a log that stands still has no room for, are left out and counted.
//   - Close ends everything that Start began; what is killed leaves nothing behind but the socket's name, which the next one replaces.
package manager

import (
	"log/slog"
	"time"

	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/storage/pool"
)

// Options are what a Manager is made from. The zero value of each is its default where none is required.
type Options struct {
	// Socket is the path that engines connect to; required.
	Socket string
	// PoolBytes bounds the shared memory; required. Each instance gets an equal part of it, PoolBytes/Instances (1), unless it
	// wants less.
	PoolBytes uint64
	Instances int
	Huge      pool.HugePages
	// UIDs are users who may connect besides our own.
	UIDs []uint32
	// Copiers is how many goroutines copy between the pool and engines' own memory at once, those of connections that help with what they have
	// asked for among them. Half the processors, at least 2 and at most 8.
	Copiers int
	// Core is the budgets, limits and tenants. Its Epoch is drawn here if it is 0.
	Core core.Config
	// Admin is host:port of the admin listener; "": none.
	Admin string
	// Events are the sockets by which gateways are told what can be restored; the zero value: none.
	Events Endpoints
	// Name is told to clients, to gateways and in logs.
	Name string
	// Log gets what happens, from one goroutine; required. Close waits a second for it if it stands still.
	Log *slog.Logger
	// Observe is told every Visible and Removed, in order, under the lock: it must not block, and they are good until it returns. nil: nobody is.
	Observe func(at time.Duration, a core.Action)
	// AtRest is called when clients have said nothing for half a second, once until they do again, and not more often than every ten seconds. What they
	// say waits for nothing that it does.
	AtRest func()
	// Pool is for tests: how the pool is made, its Bytes apart.
	Pool pool.Options
	// CopyForTesting is told before each page that is copied between the pool and an engine's memory; nil in production.
	// Where it is set, the goroutines of connections do not help, unless HelpForTesting says so.
	CopyForTesting func(s core.SessionID, restore bool, page int)
	HelpForTesting bool
}

// Endpoints are the sockets of package events, as tcp://127.0.0.1:5567.
type Endpoints struct{ Listen, Replay, Snapshot string }

// version is what tells of the program in Welcome.
const version = "perigee"
