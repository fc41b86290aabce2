package policy

import (
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// Limit names one admission limit.
type Limit uint8

// The limits, in the order in which they are checked.
const (
	NoLimit Limit = iota // nothing was violated
	MaxRunningRequests
	MaxWaitingRequests
	MaxKVTokens
	MaxPendingPrefillTokens
	MaxInflightRequests
)

// String returns the limit's name in configuration, metrics and answers.
func (l Limit) String() string {
	switch l {
	case MaxRunningRequests:
		return "max_running_requests"
	case MaxWaitingRequests:
		return "max_waiting_requests"
	case MaxKVTokens:
		return "max_kv_tokens"
	case MaxPendingPrefillTokens:
		return "max_pending_prefill_tokens"
	case MaxInflightRequests:
		return "max_inflight_requests"
	}
	return "none"
}

// Limits are absolute caps on an engine's load: it is admitted while the metric is below the cap. A nil cap is not
// checked; a cap of 0 rejects whenever the metric is known. The zero value admits everything.
//
// Admission observes and does not reserve: requests that are picked at once may pass on the same observation.
type Limits struct {
	// MaxRunningRequests and MaxWaitingRequests cap the reported requests.
	MaxRunningRequests, MaxWaitingRequests *int64
	// MaxKVTokens caps the reported total KV tokens: used and queued.
	MaxKVTokens *int64
	// MaxPendingPrefillTokens caps the reported waiting uncached tokens.
	MaxPendingPrefillTokens *int64
	// MaxInflightRequests caps what this gateway has in flight on the engine, which is always known.
	MaxInflightRequests *int64
}

// Check returns the first limit that the engine violates, or NoLimit. report is what the policy compared, nil where the
// engine has none that is fresh and complete: its limits then admit, since what is unknown is not full.
func (l *Limits) Check(w *fleet.Worker, report *load.Report) Limit {
	if report != nil {
		switch {
		case reached(report.Running, l.MaxRunningRequests):
			return MaxRunningRequests
		case reached(report.Waiting, l.MaxWaitingRequests):
			return MaxWaitingRequests
		case reached(report.Total, l.MaxKVTokens):
			return MaxKVTokens
		case reached(report.WaitingUncached, l.MaxPendingPrefillTokens):
			return MaxPendingPrefillTokens
		}
	}
	if l.MaxInflightRequests != nil && w.Load.Active() >= *l.MaxInflightRequests {
		return MaxInflightRequests
	}
	return NoLimit
}

// None tells whether no limit is set, so that there is nothing to check.
func (l *Limits) None() bool { return *l == Limits{} }

func reached(metric load.Count, limit *int64) bool {
	if limit == nil {
		return false
	}
	n, ok := metric.Get()
	return ok && n >= *limit
}
