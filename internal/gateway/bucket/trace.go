package bucket

import (
	"errors"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
)

// Trace takes down a selection for the decision log, group by group. It belongs to one request; reuse it with Reset.
type Trace struct {
	tries []Try
	// perGroup bounds the candidates that are kept of each group.
	perGroup int
}

// Try is one group's pick as it went.
type Try struct {
	Bucket     string
	Stage      fleet.Stage
	Policy     string
	Candidates int // live members that the policy was given
	Looked     policy.Trace
	// Pick is set if the policy picked; Err holds why not otherwise.
	Pick policy.Pick
	Err  *policy.PickError
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
func (t *Trace) Reset() { t.tries = t.tries[:0] }

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
		errors.As(err, &y.Err)
	}
	return err
}
