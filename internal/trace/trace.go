// Package trace reads request traces: when each request came, how long its prompt and answer were, and which blocks its
// prompt shares with others. It carries one real trace, so that a demo or a benchmark needs no download.
//
// It promises that what it yields makes sense (times do not go backwards, lengths are positive and bounded, the blocks
// fit the prompt), that it reads in bounded memory whatever the input, and that the same trace gives the same tokens on
// every machine and in every version.
package trace

import (
	"bufio"
	"bytes"
	"compress/gzip"
	_ "embed" // the trace of Synthetic
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"time"
)

// BlockTokens is how many prompt tokens one block id stands for, as the Mooncake release defines its hash_ids. The last
// block of a prompt may hold fewer.
const BlockTokens = 512

// Request is one request of a trace.
type Request struct {
	// Arrival is the time from the start of the trace.
	Arrival time.Duration
	// InputTokens is the length of the prompt, OutputTokens that of the answer; both at least 1.
	InputTokens, OutputTokens int
	// Blocks has one id for each block of the prompt. Equal ids stand for equal tokens behind equal tokens. In Mooncake's
	// format a block has BlockTokens tokens and the last one begun is included; a log may tell fewer blocks than the prompt
	// has, or none. The slice belongs to whoever got the request.
	Blocks []uint64
	// BlockSize is the tokens of a block where that is not BlockTokens; 0 where it is.
	BlockSize int
	// Session and Model are what a log says of the request, empty where it says nothing.
	Session, Model string
}

// BlockTokens returns how many tokens a block of Blocks stands for.
func (r *Request) BlockTokens() int {
	if r.BlockSize > 0 {
		return r.BlockSize
	}
	return BlockTokens
}

// LineError says what is wrong with one line of a trace.
type LineError struct {
	// Line counts from 1.
	Line   int
	Reason string
}

func (e *LineError) Error() string { return fmt.Sprintf("trace line %d: %s", e.Line, e.Reason) }

// maxLine bounds the memory of a reader. A line of four million prompt tokens has 8,192 ids, which fit as long as they
// have at most 30 digits each; the longest line of the embedded trace has 3 KB.
const maxLine = 256 << 10

// Read yields the requests of a trace in JSON lines, in the order in which they stand; empty lines are skipped. The first line
// tells whether it is Mooncake's format or that of a log; docs/replay.md has both. It
// stops at the first error, which it yields with a zero Request: a *LineError for what is wrong in the text, or what
// r said, wrapped. One range over it consumes r; r is not closed.
func Read(r io.Reader) iter.Seq2[Request, error] {
	return func(yield func(Request, error) bool) {
		br := bufio.NewReaderSize(r, maxLine)
		var last time.Duration
		var log logReader
		var parse func([]byte) (Request, string)
		for line := 1; ; line++ {
			text, err := br.ReadSlice('\n')
			switch {
			case errors.Is(err, bufio.ErrBufferFull):
				yield(Request{}, &LineError{line, fmt.Sprintf("longer than %d bytes", maxLine)})
				return
			case err != nil && !errors.Is(err, io.EOF):
				yield(Request{}, fmt.Errorf("trace line %d: %w", line, err))
				return
			}
			if text = bytes.Trim(text, " \t\r\n"); len(text) > 0 {
				if parse == nil {
					if parse = parseLine; isLog(text) {
						parse = log.parse
					}
				}
				req, reason := parse(text)
				if reason == "" && req.Arrival < last {
					reason = fmt.Sprintf("timestamp: %d ms, but the line before has %d ms", req.Arrival.Milliseconds(), last.Milliseconds())
					if log.lines > 0 {
						reason = fmt.Sprintf("time: %v before that of the line before; sort the file by time", last-req.Arrival)
					}
				}
				if reason != "" {
					yield(Request{}, &LineError{line, reason})
					return
				}
				last = req.Arrival
				if !yield(req, nil) {
					return
				}
			}
			if err != nil { // the end
				return
			}
		}
	}
}

// Open yields the requests of a file, plain or compressed with gzip, as Read does. The file is opened when a range over
// the result starts, and closed when it ends.
func Open(name string) iter.Seq2[Request, error] {
	return func(yield func(Request, error) bool) {
		f, err := os.Open(name)
		if err != nil {
			yield(Request{}, err)
			return
		}
		defer f.Close()
		var r io.Reader = f
		var magic [2]byte
		if _, err := f.ReadAt(magic[:], 0); err == nil && magic == [2]byte{0x1f, 0x8b} {
			if r, err = gzip.NewReader(f); err != nil {
				yield(Request{}, fmt.Errorf("%s: %w", name, err))
				return
			}
		}
		for req, err := range Read(r) {
			if err != nil {
				err = fmt.Errorf("%s: %w", name, err)
			}
			if !yield(req, err) {
				return
			}
		}
	}
}

//go:embed data/mooncake_synthetic_trace.jsonl.gz
var synthetic []byte

// Synthetic yields the embedded trace: the 3,993 requests of Mooncake's synthetic trace, 1,022 s long, with a mean
// prompt of 15,325 and a mean answer of 149 tokens. Where it is from is told in data/README.md. Its error can only be
// that of a damaged binary. Each range reads it anew (about 10 ms); several may run at once.
func Synthetic() iter.Seq2[Request, error] {
	return func(yield func(Request, error) bool) {
		r, err := gzip.NewReader(bytes.NewReader(synthetic))
		if err != nil {
			yield(Request{}, fmt.Errorf("embedded trace: %w", err))
			return
		}
		Read(r)(yield)
	}
}

// Slice yields the requests of seq that arrive at from or later and before to, with their arrivals counted from from.
// It stops reading at the first request at or behind to, and passes errors on.
func Slice(seq iter.Seq2[Request, error], from, to time.Duration) iter.Seq2[Request, error] {
	return func(yield func(Request, error) bool) {
		for req, err := range seq {
			switch {
			case err != nil:
				yield(req, err)
				return
			case req.Arrival >= to:
				return
			case req.Arrival >= from:
				req.Arrival -= from
				if !yield(req, nil) {
					return
				}
			}
		}
	}
}
