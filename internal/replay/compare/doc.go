// Package compare runs several contenders over one trace side by side, and writes what they reached as a table, as JSON and as
// a plot.
//
// It promises that the same trace, options and contenders give the same bytes, on any number of cores: each run is by itself,
// and results are put together in the order of the contenders.
package compare

import "strconv"

// BlockSizeError: the engines' block size does not divide that of the trace.
type BlockSizeError struct{ Trace, Engines int }

func (e *BlockSizeError) Error() string {
	return "the trace has blocks of " + strconv.Itoa(e.Trace) + " tokens, which blocks of " + strconv.Itoa(e.Engines) + " do not divide"
}
