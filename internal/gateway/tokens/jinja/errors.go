package jinja

import (
	"errors"
	"strconv"
)

// The classes of errors. An *Error unwraps to one of them.
var (
	// ErrSyntax: the template is not valid Jinja; jinja2 refuses it, too.
	ErrSyntax = errors.New("template syntax")
	// ErrUnsupported: the template, or what it does with these values, is something that this engine does not do
	// exactly as jinja2 does. It is refused, because text that differs a little is worse than none.
	ErrUnsupported = errors.New("not supported")
	// ErrRaised: the template called raise_exception; its words are the message.
	ErrRaised = errors.New("raised by the template")
	// ErrFailed: the template failed on these values as it fails in jinja2, for example by a method of an undefined value.
	ErrFailed = errors.New("template failed")
	// ErrLimit: a limit of Limits was reached.
	ErrLimit = errors.New("template limit")
	// ErrInput: the values handed in are not JSON, or hold what Python's text cannot carry (a lone surrogate).
	ErrInput = errors.New("template input")
)

// Error is any error of this package.
type Error struct {
	Class error  // one of the Err values above
	Line  int    // of the template, from 1; 0 if not known
	Msg   string // for ErrRaised the template's own words
}

func (e *Error) Error() string {
	s := e.Class.Error() + ": " + e.Msg
	if e.Line > 0 {
		s += " (template line " + strconv.Itoa(e.Line) + ")"
	}
	return s
}

func (e *Error) Unwrap() error { return e.Class }

// caught turns what a failing lexer, parser or evaluation panicked with into an error. Any other panic is a fault of
// the engine itself: a request must not end the process for it, so it is told as something not supported.
func caught(err *error, line func() int) {
	switch p := recover().(type) {
	case nil:
	case *Error:
		if p.Line == 0 {
			p.Line = line()
		}
		*err = p
	case error:
		*err = &Error{Class: ErrUnsupported, Line: line(), Msg: "the engine failed: " + p.Error()}
	default:
		*err = &Error{Class: ErrUnsupported, Line: line(), Msg: "the engine failed"}
	}
}

func failed(msg string)      { panic(&Error{Class: ErrFailed, Msg: msg}) }
func unsupported(msg string) { panic(&Error{Class: ErrUnsupported, Msg: msg}) }
func limited(msg string)     { panic(&Error{Class: ErrLimit, Msg: msg}) }
