package followed

import (
	"fmt"
	"strings"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/managers"
)

// Manager is one Cache Manager as GET /debug/prefixes shows it.
type Manager struct {
	Manager string `json:"manager"`
	// Says is its own name for itself; Epoch its incarnation, 0 while nothing has come.
	Says  string `json:"says,omitempty"`
	Epoch uint64 `json:"epoch,omitempty,string"` // JSON's numbers lose some of its 64 bits
	State string `json:"state"`
	// Why says why it is not exact, Since since when it is so.
	Why         string     `json:"why,omitempty"`
	Since       *time.Time `json:"since,omitempty"`
	Connected   bool       `json:"connected"`
	Next        int64      `json:"next_batch"`
	LagMS       float64    `json:"lag_ms,omitempty"`
	Namespaces  int        `json:"namespaces"`
	Attachments int        `json:"attachments"`
	Blocks      int        `json:"blocks"`
	Applied     uint64     `json:"batches_applied"`
	Gaps        uint64     `json:"gaps"`
	Snapshots   uint64     `json:"snapshots"`
	Losses      uint64     `json:"losses"`
	Restarts    uint64     `json:"restarts"`
	Fault       string     `json:"fault,omitempty"`
}

func describeManager(s *managers.Status) Manager {
	d := Manager{
		Manager: s.ID, Says: s.Manager, Epoch: s.Epoch, State: s.Standing(), Connected: s.Stream.Connected, Next: s.Stream.Next,
		LagMS: float64(s.Lag.Microseconds()) / 1e3, Namespaces: s.Namespaces, Attachments: s.Attachments, Blocks: s.Claims,
		Applied: s.Stream.Applied, Gaps: s.Stream.Gaps, Snapshots: s.Counts.Snapshots, Losses: s.Stream.Losses, Restarts: s.Stream.Restarts,
	}
	why, since := s.Stream.Why.String(), s.Stream.Since
	if d.State == "partial" {
		why, since = s.Stream.PartWhy.String(), s.Stream.PartSince
	}
	if s.CutOff != "" {
		why = string(s.CutOff)
	}
	if d.Why = why; !since.IsZero() {
		d.Since = &since
	}
	if s.Fault != nil {
		d.Fault = s.Fault.Error()
	}
	return d
}

// Text describes the Manager in a line or two, for people.
func (s *Manager) Text(now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Cache Manager %s: %s", s.Manager, s.State)
	if s.Why != "" {
		fmt.Fprintf(&b, " (%s)", strings.ReplaceAll(s.Why, "_", " "))
	}
	if s.Since != nil {
		fmt.Fprintf(&b, " for %v", now.Sub(*s.Since).Round(time.Second))
	}
	fmt.Fprintf(&b, "; can restore %d blocks of %d namespaces, %d attachments; %d batches, %d gaps, %d snapshots, %d losses, %d restarts\n",
		s.Blocks, s.Namespaces, s.Attachments, s.Applied, s.Gaps, s.Snapshots, s.Losses, s.Restarts)
	if s.Fault != "" {
		fmt.Fprintf(&b, "  %s\n", s.Fault)
	}
	return b.String()
}
