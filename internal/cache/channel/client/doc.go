// Package client is the engine's end of the Cache Manager's channel: it registers an instance, publishes pages, asks for them and
// restores them. Pages go through shared memory that is mapped here; the caller copies, in its own process.
//
// It promises:
//
//   - A page that a caller is shown in Restore is what was sealed; one that is not is never shown, and the restore fails (ErrSpoiled).
//   - Nothing is retried behind the caller's back. When the Manager is lost every call ends with ErrLost, and Done is closed: the caller
//     computes, and dials again for another session.
//   - A context ends waiting, and what can be called off is called off (a query, the pages of a publish that are not yet written). It never ends
//     a copy that is under way, and the Manager is told only when the copy has ended.
//   - While the Manager copies out of memory of ours or into it, nothing but its answer or the connection's end by its doing ends the call. A
//     Manager that stands still keeps it, and Close: what it may still write is not to be used for anything else.
//   - Close says goodbye when nothing of this process uses the shared memory any more, also of a session that was lost.
//
// A Session may be used by any number of goroutines at once.
package client

import (
	"errors"
	"fmt"

	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/state"
)

// Errors of a Session. Others are *Refused, or the context's.
var (
	// ErrLost says that the Manager or the connection has ended, or the Session was closed. What was granted or leased is gone.
	ErrLost = errors.New("the Cache Manager's session is lost")
	// ErrSpoiled says that a page was found to be other than was sealed. None of the restore's pages may be used.
	ErrSpoiled = errors.New("a page is not what was sealed")
	// ErrFailed says that another consumer of the lease has failed. None of the restore's pages may be used.
	ErrFailed = errors.New("the restore has failed for another consumer")
	// ErrProtocol says that the Manager said what it may not say. The session is lost with it.
	ErrProtocol = errors.New("the Cache Manager breaks the protocol")
)

// Refused is an error of the Manager's: it has done nothing.
type Refused struct {
	Of    wire.Kind
	Class wire.Class
	Text  string
}

// Error implements error.
func (e *Refused) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("refused: %s", e.Class)
	}
	return fmt.Sprintf("refused: %s: %s", e.Class, e.Text)
}

// ClassOf returns the class of a refusal; 0 for other errors.
func ClassOf(err error) wire.Class {
	var r *Refused
	if errors.As(err, &r) {
		return r.Class
	}
	return 0
}

// Unfinished is Dial's error where a session was joined, but not to the end, and so has ended for all its parts. Nothing of it is mapped by the part that Dial was to make;
// but the Manager waits for this process before it gives the session's memory to anybody.
type Unfinished struct {
	// Err is what went wrong.
	Err  error
	part *Session
}

// Error implements error.
func (e *Unfinished) Error() string { return "joined by half: " + e.Err.Error() }

// Unwrap returns Err.
func (e *Unfinished) Unwrap() error { return e.Err }

// Close tells the Manager that this process uses nothing of the session any more. It is for when that is so: when the other parts of the session in this process, if it has some, are closed.
// It waits for some seconds at most.
func (e *Unfinished) Close() error {
	e.part.leaveInTime()
	return nil
}

// Options say who registers.
type Options struct {
	// Socket is the Manager's; required. Program names the caller's program, for logs.
	Socket, Program string
	// Instance is the engine's name for itself on this host; required, unless Join is given.
	Instance string
	// Ranks are the instance's namespaces, in state.InstanceID's order; required.
	Ranks []state.Namespace
	// Model and URL are what gateways know the engine by.
	Model, URL string
	// DataRank is the data-parallel rank plus 1; 0: all.
	DataRank uint32
	Scope    core.Scope
	// QueryBytes bounds what queries hold at once, PoolBytes what is wanted of the pool; 0: as the Manager has it.
	QueryBytes, PoolBytes uint64
	// Copiers is how many goroutines copy in RestoreTo and PublishPages. 0: half the processors, since the engine needs the others, and at most 4,
	// which have the memory busy.
	Copiers int
	// Join is of a session that another process of the instance has made; nil: this one registers.
	Join *Credentials
}

// Credentials let other processes of an instance join its session.
type Credentials struct {
	Epoch   uint64
	Session uint32
	Token   [16]byte
}
