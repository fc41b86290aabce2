package explain

import (
	"errors"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
)

// Record is a request as the decision log tells it, in JSON on GET /debug/decisions. A number that is not known is null.
type Record struct {
	Time        time.Time  `json:"time"`
	RequestID   string     `json:"request_id"`
	Route       string     `json:"route"`
	Model       string     `json:"model"`
	Stream      bool       `json:"stream"`
	InputTokens int64      `json:"input_tokens"`
	InputExact  bool       `json:"input_exact"`
	InputSource string     `json:"input_source"`
	PeakTokens  load.Count `json:"peak_tokens"`
	Attempts    []Attempt  `json:"attempts"`
	// Done is false while the request is under way; what follows is then not known.
	Done             bool       `json:"done"`
	Status           int        `json:"status,omitempty"`
	Code             string     `json:"code,omitempty"`
	TTFTMillis       *float64   `json:"ttft_ms"`
	DurationMillis   *float64   `json:"duration_ms"`
	PromptTokens     load.Count `json:"prompt_tokens"`
	CachedTokens     load.Count `json:"cached_tokens"`
	CompletionTokens load.Count `json:"completion_tokens"`
}

// Attempt is one whole selection and what became of it.
type Attempt struct {
	Tries []Try `json:"tries"`
	// Bucket is the bucket that supplied the engines; empty where none did.
	Bucket  string `json:"bucket,omitempty"`
	Outcome string `json:"outcome"`
}

// Try is one group that was asked.
type Try struct {
	Bucket     string      `json:"bucket"`
	Stage      string      `json:"stage"`
	Policy     string      `json:"policy"`
	Live       int         `json:"live"`                             // candidates that the policy was given
	Floored    bool        `json:"breakers_did_not_count,omitempty"` // of engines that are up: too few would have been left
	Considered []Candidate `json:"considered,omitempty"`
	Omitted    int         `json:"omitted,omitempty"` // candidates that it looked at too, not listed
	// Source is the prefix source that the policy asked, SourceError why it did not answer.
	Source      string      `json:"prefix_source,omitempty"`
	SourceError string      `json:"prefix_source_error,omitempty"`
	Picked      string      `json:"picked,omitempty"`
	Reason      string      `json:"reason,omitempty"`
	Error       string      `json:"error,omitempty"`
	Detail      string      `json:"detail,omitempty"`
	Rejections  []Rejection `json:"rejections,omitempty"`
	// MoreRejections counts those that are not listed.
	MoreRejections int `json:"more_rejections,omitempty"`
}

// Candidate is one engine as the policy saw it.
type Candidate struct {
	Engine   string     `json:"engine"`
	InFlight int64      `json:"in_flight"`
	Score    load.Count `json:"score"`
	Report   *Report    `json:"report"` // null: none that was fresh and complete
	// Matched tokens of the prompt are held by the engine, Uncached are left to compute; absent where the policy does not look at prefixes
	// or they are not known. Blind: it may hold more, the source cannot say.
	Matched  load.Count `json:"matched_tokens,omitzero"`
	Uncached load.Count `json:"uncached_tokens,omitzero"`
	Blind    bool       `json:"blind,omitempty"`
}

// Report is an engine's own report at the time of the pick.
type Report struct {
	AgeMillis       float64    `json:"age_ms"`
	Running         load.Count `json:"running"`
	Waiting         load.Count `json:"waiting"`
	WaitingUncached load.Count `json:"waiting_uncached_tokens"`
	Used            load.Count `json:"used_tokens"`
	Total           load.Count `json:"total_tokens"`
	Capacity        load.Count `json:"capacity_tokens"`
	QueueMicros     load.Count `json:"queue_us"`
}

// Rejection is one engine that admission refused.
type Rejection struct {
	Engine string `json:"engine"`
	Limit  string `json:"limit"`
}

func (e *Entry) renderLocked() Record {
	r := Record{
		Time: e.facts.Started, RequestID: e.facts.RequestID, Route: e.facts.Route, Model: e.facts.Model, Stream: e.facts.Stream,
		InputTokens: e.facts.InputTokens, InputExact: e.facts.InputExact, InputSource: e.facts.InputSource, PeakTokens: e.facts.PeakTokens,
		Attempts: []Attempt{}, Done: e.ended,
	}
	for _, a := range e.attempts[:e.used] {
		at := Attempt{Outcome: a.outcome, Tries: []Try{}}
		if a.selection.Bucket != nil {
			at.Bucket = a.selection.Bucket.ID()
		}
		for _, t := range a.trace.Tries() {
			at.Tries = append(at.Tries, TryOf(t, a.at))
		}
		r.Attempts = append(r.Attempts, at)
	}
	if e.ended {
		r.Status, r.Code = e.end.Status, e.end.Code
		r.PromptTokens, r.CachedTokens, r.CompletionTokens = e.end.PromptTokens, e.end.CachedTokens, e.end.CompletionTokens
		r.DurationMillis = millis(e.end.Duration)
		if e.end.TTFT > 0 {
			r.TTFTMillis = millis(e.end.TTFT)
		}
	}
	return r
}

// TryOf renders one group that was asked at a time.
func TryOf(t bucket.Try, at time.Time) Try {
	out := Try{
		Bucket: t.Bucket, Stage: t.Stage.String(), Policy: t.Policy, Live: t.Candidates,
		Omitted: t.Looked.Omitted, Reason: string(t.Pick.Reason), Floored: t.Pick.Floored,
	}
	out.Source = t.Looked.Source
	if t.Looked.SourceErr != nil {
		out.SourceError = t.Looked.SourceErr.Error()
	}
	if t.Pick.Engine != nil {
		out.Picked = t.Pick.Engine.ID
	}
	for _, c := range t.Looked.Considered {
		out.Considered = append(out.Considered, renderCandidate(c, at))
	}
	if t.Err != nil {
		out.Error = t.Failed()
		var pe *policy.PickError
		if !errors.As(t.Err, &pe) {
			out.Detail = t.Err.Error()
			return out
		}
		out.Detail, out.MoreRejections = pe.Detail, t.MoreRejections
		for _, rej := range pe.Rejections {
			out.Rejections = append(out.Rejections, Rejection{Engine: rej.Engine.ID, Limit: rej.Limit.String()})
		}
	}
	return out
}

func renderCandidate(c policy.Considered, at time.Time) Candidate {
	return Candidate{
		Engine: c.Engine.ID, InFlight: c.InFlight, Score: c.Score, Report: ReportAt(c.Report, at),
		Matched: c.Matched, Uncached: c.Uncached, Blind: c.Blind,
	}
}

// ReportAt renders an engine's report with its age at a time; nil stays nil.
func ReportAt(r *load.Report, at time.Time) *Report {
	if r == nil {
		return nil
	}
	return &Report{
		AgeMillis: *millis(at.Sub(r.At)), Running: r.Running, Waiting: r.Waiting, WaitingUncached: r.WaitingUncached,
		Used: r.Used, Total: r.Total, Capacity: r.Capacity, QueueMicros: r.QueueMicros,
	}
}

func millis(d time.Duration) *float64 {
	ms := float64(d.Microseconds()) / 1000
	return &ms
}
