package enginehttp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// FaultKind names a fault.
type FaultKind string

// The faults. docs/simulated-engine.md has an example of each.
const (
	FaultNone              FaultKind = "none"                // end every fault
	FaultSlow              FaultKind = "slow"                // wait delay_ms before a request is looked at, chunk_delay_ms before each chunk
	FaultHangBeforeHeaders FaultKind = "hang_before_headers" // take the request, answer nothing
	FaultHangMidStream     FaultKind = "hang_mid_stream"     // fall silent after after_chunks chunks
	FaultResetMidStream    FaultKind = "reset_mid_stream"    // reset the connection after after_chunks chunks; a whole answer, in its middle
	FaultStatus            FaultKind = "status"              // answer status, with Retry-After if retry_after is given
	FaultRefuse            FaultKind = "refuse"              // close the listener and idle connections
	FaultRestart           FaultKind = "restart"             // reset every connection, lose the cache, be down for delay_ms
	FaultLieLoad           FaultKind = "lie_load"            // report the load in Load instead of the true one
	FaultLoseEvents        FaultKind = "lose_events"         // lose the next count batches of KV events on their way
	FaultCutEvents         FaultKind = "cut_events"          // break the connections of the KV events' subscribers
)

// Fault asks for one.
type Fault struct {
	Kind FaultKind `json:"fault"`
	// Count is how many requests it meets; 0: all, until another fault of a request or FaultNone is set.
	Count int `json:"count,omitempty"`
	// Path limits it to requests whose path begins so; empty: those that generate.
	Path         string    `json:"path,omitempty"`
	AfterChunks  int       `json:"after_chunks,omitempty"`
	Status       int       `json:"status,omitempty"`      // 0: 500
	RetryAfter   string    `json:"retry_after,omitempty"` // header value
	DelayMS      int       `json:"delay_ms,omitempty"`
	ChunkDelayMS int       `json:"chunk_delay_ms,omitempty"`
	Load         *LoadLies `json:"load,omitempty"`
	// Forget makes lost batches of KV events unknown to replay too.
	Forget bool `json:"forget,omitempty"`
}

// LoadLies replace figures of the load reports and of /metrics. A nil field is reported truly.
type LoadLies struct {
	Running               *int     `json:"running,omitempty"`
	Waiting               *int     `json:"waiting,omitempty"`
	WaitingUncachedTokens *int     `json:"waiting_uncached_tokens,omitempty"`
	UsedTokens            *int     `json:"used_tokens,omitempty"`
	TotalTokens           *int     `json:"total_tokens,omitempty"`
	CapacityTokens        *int     `json:"capacity_tokens,omitempty"`
	Usage                 *float64 `json:"usage,omitempty"`
}

func (f Fault) validate() error {
	switch f.Kind {
	case FaultNone, FaultSlow, FaultHangBeforeHeaders, FaultHangMidStream, FaultResetMidStream, FaultRefuse, FaultRestart,
		FaultLoseEvents, FaultCutEvents:
	case FaultStatus:
		if f.Status != 0 && (f.Status < 400 || f.Status > 599) {
			return fmt.Errorf("status %d is not between 400 and 599", f.Status)
		}
	case FaultLieLoad:
		if f.Load == nil {
			return errors.New("lie_load needs load")
		}
	default:
		return fmt.Errorf("unknown fault %q", f.Kind)
	}
	if f.Count < 0 || f.AfterChunks < 0 || f.DelayMS < 0 || f.ChunkDelayMS < 0 {
		return errors.New("a parameter is negative")
	}
	return nil
}

// faults holds the faults that are set: at most one that meets requests, and one lie.
type faults struct {
	mu struct {
		sync.Mutex
		fault   *activeFault // nil: none
		lies    *LoadLies
		applied int64
	}
}

// activeFault is a fault that requests meet. over is closed when it ends: those that hang in it go on.
type activeFault struct {
	Fault
	left int // of Count; meaningful if Count > 0
	over chan struct{}
}

// set replaces the fault that requests meet, or the lie.
func (f *faults) set(x Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if x.Kind == FaultLieLoad {
		f.mu.lies = x.Load
		return
	}
	if f.mu.fault != nil {
		close(f.mu.fault.over)
		f.mu.fault = nil
	}
	if x.Kind == FaultNone {
		f.mu.lies = nil
		return
	}
	f.mu.fault = &activeFault{Fault: x, left: x.Count, over: make(chan struct{})}
}

// next returns the fault that a request for path meets, or nil.
func (f *faults) next(path string, generates bool) *activeFault {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.mu.fault
	if a == nil || (a.Path == "" && !generates) || !strings.HasPrefix(path, a.Path) {
		return nil
	}
	if a.Count > 0 {
		if a.left == 0 {
			return nil
		}
		a.left--
	}
	f.mu.applied++
	return a
}

func (f *faults) lies() *LoadLies {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.lies
}

// errClientGone: the request's context ended; nobody reads the answer.
var errClientGone = errors.New("the client has gone")

// before applies the faults that come before an answer. handled is true if it has answered. err is errClientGone.
func (a *activeFault) before(w http.ResponseWriter, r *http.Request, s *Server) (handled bool, err error) {
	if a == nil {
		return false, nil
	}
	switch a.Kind {
	case FaultSlow:
		return false, a.sleep(r.Context(), a.DelayMS)
	case FaultHangBeforeHeaders:
		return false, a.hang(r.Context())
	case FaultStatus:
		if a.RetryAfter != "" {
			w.Header().Set("Retry-After", a.RetryAfter)
		}
		status := a.Status
		if status == 0 {
			status = http.StatusInternalServerError
		}
		s.fail(w, status, "", "a fault was asked for")
		return true, nil
	case FaultResetMidStream:
		if r.Method != http.MethodPost {
			s.resetConn(r)
		}
	}
	return false, nil
}

// chunk applies the faults of a stream before its chunk number n, from 0.
func (a *activeFault) chunk(r *http.Request, s *Server, n int) error {
	if a == nil {
		return nil
	}
	switch a.Kind {
	case FaultSlow:
		return a.sleep(r.Context(), a.ChunkDelayMS)
	case FaultHangMidStream:
		if n == a.AfterChunks {
			return a.hang(r.Context())
		}
	case FaultResetMidStream:
		if n == a.AfterChunks {
			s.resetConn(r)
		}
	}
	return nil
}

// midAnswer says whether an answer that is not streamed is to be broken off in its middle.
func (a *activeFault) midAnswer() bool {
	return a != nil && (a.Kind == FaultResetMidStream || a.Kind == FaultHangMidStream)
}

func (a *activeFault) hang(ctx context.Context) error {
	select {
	case <-a.over:
		return nil
	case <-ctx.Done():
		return errClientGone
	}
}

func (a *activeFault) sleep(ctx context.Context, ms int) error {
	if ms == 0 {
		return nil
	}
	t := time.NewTimer(time.Duration(ms) * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-a.over:
		return nil
	case <-ctx.Done():
		return errClientGone
	}
}
