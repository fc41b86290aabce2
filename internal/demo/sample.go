package demo

import (
	"fmt"
	"strings"

	"github.com/perigee-llm/perigee/internal/gateway/explain"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
)

// sampled is how many of the newest decisions a sample is chosen from.
const sampled = 24

// choose takes the decision that shows most: one that a bucket refused and the next took, then one that the engines' own
// reports decided, then any; among equals the longest prompt, or the shortest.
func choose(newest []explain.Record, longest bool) *explain.Record {
	var best *explain.Record
	most := -1
	for i := range newest {
		a, t := lastPick(&newest[i])
		if t == nil {
			continue
		}
		score := 0
		switch {
		case len(a.Tries) > 1:
			score = 3
		case t.Reason == string(policy.ReasonPressure) || t.Reason == string(policy.ReasonLeastLoad):
			score = 2
		case t.Reason != string(policy.ReasonTie):
			score = 1
		}
		if score > most || score == most && (newest[i].InputTokens > best.InputTokens) == longest {
			best, most = &newest[i], score
		}
	}
	return best
}

// Sentence tells a decision in one line: the request, the buckets in the order in which they were tried, the engine and why.
func Sentence(r *explain.Record) string {
	a, t := lastPick(r)
	var b strings.Builder
	fmt.Fprintf(&b, "request %s: %s tokens", strings.TrimPrefix(r.RequestID, "demo-"), explain.Grouped(r.InputTokens))
	if t == nil {
		return b.String() + " → no engine"
	}
	for _, x := range a.Tries {
		switch {
		case x.Picked != "":
			fmt.Fprintf(&b, " → bucket %s → %s (%s)", x.Bucket, x.Picked, x.Because())
		case len(x.Rejections) > 0:
			fmt.Fprintf(&b, " → bucket %s refuses (%s at its %s)", x.Bucket, x.Rejections[0].Engine, x.Rejections[0].Limit)
		default:
			fmt.Fprintf(&b, " → bucket %s refuses (%s)", x.Bucket, x.Error)
		}
	}
	return b.String()
}
