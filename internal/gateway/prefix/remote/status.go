package remote

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// classify makes a call's error one that a prefix.Source returns; one that is of that kind already stays.
func classify(err error) error {
	var away *prefix.Unavailable
	var refused *prefix.Rejected
	var sink sinkError
	if errors.As(err, &sink) {
		return sink.error
	}
	if err == nil || errors.As(err, &away) || errors.As(err, &refused) {
		return err
	}
	if r := reason(status.Code(err)); r != "" { // the library makes statuses of its contexts' errors too
		return &prefix.Unavailable{Reason: r, Err: err}
	}
	return &prefix.Rejected{Err: err}
}

// reason returns why the source is unavailable, or nothing where it refuses; it is the table in the package's comment.
func reason(c codes.Code) prefix.Reason {
	switch c {
	case codes.Unavailable:
		return prefix.Unreachable
	case codes.DeadlineExceeded, codes.Canceled:
		return prefix.TimedOut
	case codes.ResourceExhausted:
		return prefix.Overloaded
	case codes.OutOfRange:
		return prefix.TooLarge
	}
	return ""
}

// outcome is what a source's error is for metrics.
func outcome(err error, held bool) Outcome {
	var away *prefix.Unavailable
	switch {
	case errors.As(err, &away):
		return Outcome(away.Reason)
	case err != nil:
		return Rejected
	case held:
		return Hit
	}
	return Miss
}

// contradiction is an answer that cannot be.
func contradiction(what string) error {
	return &prefix.Rejected{Err: errors.New("the answer contradicts itself: " + what)}
}
