package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Fault is one thing that is wrong, or doubtful, in a configuration.
type Fault struct {
	File   string // empty for a flag
	Line   int    // from 1; 0 when the fault has no place in the file
	Column int    // from 1, in characters
	Flag   string // the flag's name without dashes; empty for a file
	Path   string // where in the schema: models[0].buckets[1].rank; empty at the top
	What   string // what is wrong
	Cure   string // what to do about it
	// Warning means that the configuration works, but perhaps not as meant.
	Warning bool

	class class
}

// class orders the faults of flags: a wrong value is told before a flag that the chosen policy does not use, because mending the
// value may be all that was needed; what this version cannot do comes last.
type class int

const (
	classValue class = iota
	classMisuse
	classNotBuilt
)

// String writes the fault on one line: file:line:column: path: what; cure, or --flag: what; cure.
func (f Fault) String() string {
	var b strings.Builder
	switch {
	case f.Flag != "":
		fmt.Fprintf(&b, "--%s: ", f.Flag)
	case f.Line > 0:
		fmt.Fprintf(&b, "%s:%d:%d: ", f.File, f.Line, f.Column)
	case f.File != "":
		fmt.Fprintf(&b, "%s: ", f.File)
	}
	if f.Warning {
		b.WriteString("warning: ")
	}
	if f.Path != "" && f.Flag == "" {
		b.WriteString(f.Path)
		b.WriteString(": ")
	}
	b.WriteString(f.What)
	if f.Cure != "" {
		b.WriteString("; ")
		b.WriteString(f.Cure)
	}
	return b.String()
}

// Faults is every fault of one configuration, in the order in which a person would mend them.
type Faults []Fault

// Errors returns the faults that keep the configuration from being used.
func (fs Faults) Errors() Faults { return fs.filter(false) }

// Warnings returns the faults that do not.
func (fs Faults) Warnings() Faults { return fs.filter(true) }

func (fs Faults) filter(warning bool) Faults {
	var out Faults
	for _, f := range fs {
		if f.Warning == warning {
			out = append(out, f)
		}
	}
	return out
}

// Err joins the errors, one a line. It is nil when there are only warnings.
func (fs Faults) Err() error {
	var errs []error
	for _, f := range fs.Errors() {
		errs = append(errs, errors.New(f.String()))
	}
	return errors.Join(errs...)
}

// maxFaults bounds the report: a megabyte of nonsense has more faults than anybody reads, and a thousand lines say so as well.
const maxFaults = 1000

// sorted orders the faults: flags first (by class), then the file by place. The order of equals is that of discovery.
func (fs Faults) sorted() Faults {
	slices.SortStableFunc(fs, func(a, b Fault) int {
		if (a.Flag != "") != (b.Flag != "") {
			if a.Flag != "" {
				return -1
			}
			return 1
		}
		if a.Flag != "" {
			return cmp.Compare(a.class, b.class)
		}
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if len(fs) > maxFaults {
		more := len(fs) - maxFaults
		fs = append(fs[:maxFaults:maxFaults], Fault{File: fs[0].File, What: fmt.Sprintf("%d more faults are not shown", more), Cure: "mend these first"})
	}
	return fs
}
