package followed

import (
	"fmt"
	"strings"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/events"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
)

// standings are what a stream can be, in words for people: see standing.
var standings = []string{"exact", "partial", "repairing", "blind"}

// standing says how far an engine's rank is to be believed, and if it is not exact why, and since when if that is known. The stream may have brought
// everything, and the index still not have it all: there was no room for it, or a KV group that it does not follow.
func standing(s *events.Status, kept index.State) (is, why string, since time.Time) {
	switch {
	case s.CutOff:
		return "blind", "claims_too_much", s.CutOffSince
	case s.Stream.State == stream.Blind:
		return "blind", s.Stream.Why.String(), s.Stream.Since
	case s.Stream.State == stream.Repairing:
		return "repairing", s.Stream.Why.String(), s.Stream.Since
	case !s.Stream.Whole:
		return "partial", s.Stream.PartWhy.String(), s.Stream.PartSince
	case kept == index.Partial:
		return "partial", "not_all_indexed", time.Time{}
	}
	return "exact", "", s.Stream.Since
}

// Stream is one rank's stream as GET /debug/prefixes shows it.
type Stream struct {
	Worker string `json:"worker"`
	Rank   int32  `json:"rank"`
	State  string `json:"state"`
	// Why says why it is not exact, Since since when it is so.
	Why       string     `json:"why,omitempty"`
	Since     *time.Time `json:"since,omitempty"`
	Connected bool       `json:"connected"`
	Next      int64      `json:"next_batch"`
	Waiting   int        `json:"waiting_messages"`
	LagMS     float64    `json:"lag_ms,omitempty"`
	Blocks    int        `json:"blocks"`
	BlockSize int        `json:"block_size,omitempty"`
	Applied   uint64     `json:"batches_applied"`
	Gaps      uint64     `json:"gaps"`
	Losses    uint64     `json:"losses"`
	Restarts  uint64     `json:"restarts"`
	Load      string     `json:"load_stream,omitempty"`
	Fault     string     `json:"fault,omitempty"`
}

// Text describes the stream in a line or two, for people.
func (s *Stream) Text(now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s rank %d: %s", s.Worker, s.Rank, strings.ReplaceAll(s.State, "_", " "))
	if s.Why != "" {
		fmt.Fprintf(&b, " (%s)", strings.ReplaceAll(s.Why, "_", " "))
	}
	if s.Since != nil {
		fmt.Fprintf(&b, " for %v", now.Sub(*s.Since).Round(time.Second))
	}
	if s.BlockSize > 0 {
		fmt.Fprintf(&b, "; holds %d blocks of %d tokens", s.Blocks, s.BlockSize)
	}
	fmt.Fprintf(&b, "; %d batches, %d gaps, %d losses, %d restarts", s.Applied, s.Gaps, s.Losses, s.Restarts)
	if s.Load != "" {
		fmt.Fprintf(&b, "; load stream %s", s.Load)
	}
	b.WriteString("\n")
	if s.Fault != "" {
		fmt.Fprintf(&b, "  %s\n", s.Fault)
	}
	return b.String()
}

func (f Followed) describe(s *events.Status) Stream {
	d := Stream{Worker: s.ID, Rank: s.Rank, State: "not_wanted", Next: -1}
	if s.Prefix {
		about, size, there := f.Store.About(s.Engine, s.Rank)
		if there {
			d.Blocks, d.BlockSize = about.Claims, size
		}
		var since time.Time
		if d.State, d.Why, since = standing(s, about.State); !since.IsZero() {
			d.Since = &since
		}
		d.Connected, d.Next, d.Waiting = s.Stream.Connected, s.Stream.Next, s.Waiting
		d.LagMS = float64(s.Lag.Microseconds()) / 1e3
		d.Applied, d.Gaps, d.Losses, d.Restarts = s.Stream.Applied, s.Stream.Gaps, s.Stream.Losses, s.Stream.Restarts
	}
	if l := s.Load; l != nil {
		if d.Load = "broken"; l.Connected {
			d.Load = "connected"
		}
	}
	if s.Fault != nil {
		d.Fault = s.Fault.Error()
	}
	return d
}
