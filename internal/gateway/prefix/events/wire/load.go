package wire

import (
	"errors"
	"math"

	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// ErrLoad means that a payload is no load report.
var ErrLoad = errors.New("a broken load report")

// ParseLoad reads a report of SGLang's load stream, of one rank:
//
//	["LoadStat", running, waiting, used KV tokens, KV capacity, rank or nil,
//	 waiting uncached tokens, KV tokens used and queued, limit of running requests, prefill uncached tokens, prefill busy µs, …]
//
// The last five come together or not at all. A capacity or a limit of 0 means that the engine does not know it. The report's time is
// the caller's to set; the rank is that of the socket. The only error is [ErrLoad].
func ParseLoad(payload []byte) (load.RankReport, error) {
	r := reader{b: payload}
	n, ok := r.array()
	if !ok || n < 5 || (n > 6 && n < 11) {
		return load.RankReport{}, ErrLoad
	}
	tag, _, ok := r.text()
	if !ok || string(tag) != "LoadStat" {
		return load.RankReport{}, ErrLoad
	}
	var v [10]load.Count
	for i := range min(n-1, len(v)) {
		if i == 4 { // the rank
			if !r.skip(1) {
				return load.RankReport{}, ErrLoad
			}
			continue
		}
		c, ok := r.count()
		if !ok || c > math.MaxInt64 {
			return load.RankReport{}, ErrLoad
		}
		v[i] = load.Known(int64(c))
	}
	return load.RankReport{
		Running: v[0], Waiting: v[1], Used: v[2], Capacity: positive(v[3]), WaitingUncached: v[5], Total: v[6], MaxRunning: positive(v[7]),
		PrefillTokens: v[8], PrefillBusy: v[9],
	}, nil
}

func positive(c load.Count) load.Count {
	if n, ok := c.Get(); ok && n > 0 {
		return c
	}
	return load.Count{}
}
