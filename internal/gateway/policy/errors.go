package policy

import (
	"strconv"
	"strings"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
)

// Class says what a failed pick means for the caller.
type Class uint8

// The classes. The first three send the request to the next bucket; the others stop it.
const (
	// NoCandidates: the group has no live member that serves the model and the stage.
	NoCandidates Class = iota
	// NoAdmissibleEngine: the policy went through its candidates and admission refused each.
	NoAdmissibleEngine
	// AdmissionRejected: admission refused the one engine that the policy had chosen.
	AdmissionRejected
	// InvalidSignal: an input contradicts itself.
	InvalidSignal
	// InvalidConfiguration: the policy cannot do what it is asked here.
	InvalidConfiguration
	// OutsideCandidates: a policy returned an engine that it was not given. That is a fault of ours.
	OutsideCandidates
)

// String returns the class's name as it stands in metrics and logs.
func (c Class) String() string {
	switch c {
	case NoCandidates:
		return "no_candidates"
	case NoAdmissibleEngine:
		return "no_admissible_engine"
	case AdmissionRejected:
		return "admission_rejected"
	case InvalidSignal:
		return "invalid_signal"
	case InvalidConfiguration:
		return "invalid_configuration"
	case OutsideCandidates:
		return "outside_candidates"
	}
	return "invalid_class"
}

// NextBucket tells whether another bucket may still serve the request.
func (c Class) NextBucket() bool { return c <= AdmissionRejected }

// Rejection is one engine that admission refused, and the limit that did.
type Rejection struct {
	Engine *fleet.Worker
	Limit  Limit
}

// NoStage stands where a request failed before any group was asked.
const NoStage fleet.Stage = 255

// PickError is a pick that failed. Its text names engines: it is for logs, not for clients.
type PickError struct {
	Class Class
	// Stage is the group's role, or NoStage.
	Stage fleet.Stage
	// Rejections is filled for NoAdmissibleEngine and AdmissionRejected.
	Rejections []Rejection
	// Detail explains the classes that stop the request.
	Detail string
}

// Error returns the stage if there is one, the class, and what is known of the cause.
func (e *PickError) Error() string {
	var b strings.Builder
	if e.Stage != NoStage {
		b.WriteString(e.Stage.String())
		b.WriteString(": ")
	}
	b.WriteString(e.Class.String())
	if e.Detail != "" {
		b.WriteString(": ")
		b.WriteString(e.Detail)
	}
	const shown = 4 // enough to see the pattern; the decision log has them all
	for i, r := range e.Rejections {
		if i == shown {
			b.WriteString(" and ")
			b.WriteString(strconv.Itoa(len(e.Rejections) - shown))
			b.WriteString(" more")
			break
		}
		b.WriteString("; ")
		b.WriteString(r.Engine.ID)
		b.WriteString(" is at its ")
		b.WriteString(r.Limit.String())
	}
	return b.String()
}
