package compare

import (
	"hash/fnv"
	"iter"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/replay"
	"github.com/perigee-llm/perigee/internal/trace"
)

// Arrivals turns the requests of a trace into a replay's, for engines with the given block size.
//
// A trace's block may hold several of an engine's blocks, if the one size divides the other. Block hashes are chained here, so equal
// hashes have equal blocks before them whatever the trace's ids are. Blocks that a request names no id for are its own.
func Arrivals(seq iter.Seq2[trace.Request, error], blockSize int) replay.Source {
	return func(yield func(replay.Arrival, error) bool) {
		number := uint64(0)
		for r, err := range seq {
			if err == nil && len(r.Blocks) > 0 && r.BlockTokens()%blockSize != 0 {
				err = &BlockSizeError{Trace: r.BlockTokens(), Engines: blockSize}
			}
			if err != nil {
				yield(replay.Arrival{}, err)
				return
			}
			a := replay.Arrival{
				At: r.Arrival, InputTokens: r.InputTokens, OutputTokens: r.OutputTokens, Blocks: blocks(&r, number, blockSize),
			}
			if r.Session != "" {
				h := fnv.New64a()
				h.Write([]byte(r.Session))
				a.Session = h.Sum64()
			}
			if !yield(a, nil) {
				return
			}
			number++
		}
	}
}

// blocks makes the chain of a request's prompt.
func blocks(r *trace.Request, number uint64, blockSize int) []engine.BlockHash {
	n := (r.InputTokens + blockSize - 1) / blockSize
	per := 1 // engine blocks to a block of the trace
	if len(r.Blocks) > 0 {
		per = r.BlockTokens() / blockSize
	}
	out := make([]engine.BlockHash, n)
	var h engine.BlockHash
	for i := range out {
		if at := i / per; at < len(r.Blocks) {
			h = h.Link(engine.BlockHash{Hi: r.Blocks[at]})
		} else {
			h = h.Link(engine.BlockHash{Hi: number, Lo: 1}) // no trace's id has a Lo
		}
		out[i] = h
	}
	return out
}
