package manager

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// QueryExplanation is a query, and why it got no more than it did.
type QueryExplanation struct {
	Instance   string   `json:"instance"`
	Session    uint32   `json:"session"`
	Op         uint64   `json:"op"`
	Request    string   `json:"request,omitempty"`
	Mode       string   `json:"mode"`
	SecondsAgo float64  `json:"seconds_ago"`
	Asked      []int    `json:"asked"`
	Hits       []uint32 `json:"hits"`
	Answer     string   `json:"answer"`
	TookMicros int64    `json:"took_us"`
	// First is the first block of the first group that it did not get.
	First *Explanation `json:"first_missing,omitempty"`
	// Others are live instances with another identity, and the first field in which theirs differs: pages of theirs cannot be used.
	Others map[string]string `json:"other_identities,omitempty"`
}

// Explanation is why a block or a query was not served.
type Explanation struct {
	Block string `json:"block,omitempty"`
	// Why is the last that is remembered of it, SecondsAgo when that was.
	Why        string  `json:"why"`
	SecondsAgo float64 `json:"seconds_ago,omitempty"`
}

// Text is the explanation for people, in lines.
func (x *QueryExplanation) Text() string {
	var b strings.Builder
	asked := make([]string, len(x.Asked))
	for g, n := range x.Asked {
		asked[g] = fmt.Sprint(n)
		if g < len(x.Hits) {
			asked[g] = fmt.Sprintf("%d of %d", x.Hits[g], n)
		}
	}
	fmt.Fprintf(&b, "request %s, %s %.1f s ago (session %d, operation %d)\n", x.Request, x.Instance, x.SecondsAgo, x.Session, x.Op)
	fmt.Fprintf(&b, "  %s: %s; %s blocks, after %d µs\n", x.Mode, x.Answer, strings.Join(asked, " and "), x.TookMicros)
	if x.First != nil {
		fmt.Fprintf(&b, "  the first that it did not get: %s", x.First.Why)
		if x.First.SecondsAgo > 0 {
			fmt.Fprintf(&b, ", %.1f s ago", x.First.SecondsAgo)
		}
		fmt.Fprintf(&b, " (block %s)\n", x.First.Block)
	}
	for _, name := range slices.Sorted(maps.Keys(x.Others)) {
		fmt.Fprintf(&b, "  pages of %s are of no use to it: %s differs\n", name, x.Others[name])
	}
	return b.String()
}
