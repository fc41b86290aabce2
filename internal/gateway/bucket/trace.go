package bucket

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
)

// Trace takes down a selection for the decision log, group by group. It belongs to one request; reuse it with Reset.
type Trace struct {
	tries []Try
	// perGroup bounds the candidates that are kept of each group.
	perGroup int
	// Clock says how long the selection has taken so far; nil: nobody wants to know when which group was asked. Reset takes it out.
	Clock func() time.Duration
}

// Try is one group's pick as it went.
type Try struct {
	Bucket     string
	Stage      fleet.Stage
	Policy     string
	Candidates int // live members that the policy was given
	Looked     policy.Trace
	// Pick is set if the policy picked; Err holds why not otherwise. It is a *policy.PickError or what else the policy returned,
	// such as the error of a context that ended while it waited.
	Pick policy.Pick
	Err  error
	// MoreRejections counts the rejections beyond the first RejectionsKept, which Err does not have.
	MoreRejections int
	// Began is when the group was asked, from the selection's beginning, if the trace has a clock. It had until the next was.
	Began time.Duration
}

// RejectionsKept bounds the rejections that a try keeps: enough to see who is full, where a group may have a thousand engines that
// are.
const RejectionsKept = 64

// Failed says in one word why the policy did not pick: the class of a *policy.PickError, "context_ended" or "other_error". It is empty
// where it picked.
func (y *Try) Failed() string {
	var pe *policy.PickError
	switch {
	case y.Err == nil:
		return ""
	case errors.As(y.Err, &pe):
		return pe.Class.String()
	case errors.Is(y.Err, context.DeadlineExceeded), errors.Is(y.Err, context.Canceled):
		return "context_ended"
	}
	return "other_error"
}

// NewTrace returns a trace that keeps up to perGroup candidates of each group that is tried.
func NewTrace(perGroup int) *Trace { return &Trace{perGroup: perGroup} }

// Tries returns what was taken down; it stays valid until Reset.
func (t *Trace) Tries() []Try {
	if t == nil {
		return nil
	}
	return t.tries
}

// Reset empties the trace and keeps its memory.
func (t *Trace) Reset() {
	if t != nil {
		t.tries, t.Clock = t.tries[:0], nil
	}
}

// begin opens the entry of one group's pick. It returns nil where nobody wants to know; the methods of *Try allow for that.
func (t *Trace) begin(bucket string, stage fleet.Stage, policyName string, candidates int) *Try {
	if t == nil {
		return nil
	}
	if len(t.tries) < cap(t.tries) {
		t.tries = t.tries[:len(t.tries)+1]
	} else {
		t.tries = append(t.tries, Try{})
	}
	y := &t.tries[len(t.tries)-1]
	looked := y.Looked.Considered[:0] // the memory of an entry that was reset
	if cap(looked) == 0 && t.perGroup > 0 {
		looked = make([]policy.Considered, 0, t.perGroup)
	}
	*y = Try{Bucket: bucket, Stage: stage, Policy: policyName, Candidates: candidates, Looked: policy.Trace{Considered: looked}}
	if t.Clock != nil {
		y.Began = t.Clock()
	}
	return y
}

func (y *Try) policyTrace() *policy.Trace {
	if y == nil {
		return nil
	}
	return &y.Looked
}

func (y *Try) picked(p policy.Pick) {
	if y != nil {
		y.Pick = p
	}
}

// failed notes the error and hands it back.
func (y *Try) failed(err error) error {
	if y != nil {
		y.MoreRejections, y.Err = bounded(err)
	}
	return err
}

// bounded returns the error with no more rejections than are kept, and how many it lacks.
func bounded(err error) (more int, kept error) {
	var pe *policy.PickError
	if !errors.As(err, &pe) || len(pe.Rejections) <= RejectionsKept {
		return 0, err
	}
	short := *pe
	short.Rejections = slices.Clone(pe.Rejections[:RejectionsKept])
	return len(pe.Rejections) - RejectionsKept, &short
}
