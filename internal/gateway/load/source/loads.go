package source

import (
	"encoding/json"

	"github.com/perigee-llm/perigee/internal/gateway/fleet/ask"
	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// loadsBody is the answer of SGLang to GET /v1/loads?include=core, as far as we read it. dp_rank_count is not in every version.
type loadsBody struct {
	RankCount figure      `json:"dp_rank_count"`
	Loads     *[]rankBody `json:"loads"`
}

type rankBody struct {
	Rank            figure `json:"dp_rank"` // null without data parallelism
	Running         figure `json:"num_running_reqs"`
	Waiting         figure `json:"num_waiting_reqs"`
	WaitingUncached figure `json:"num_waiting_uncached_tokens"`
	Used            figure `json:"num_used_tokens"`
	Total           figure `json:"num_total_tokens"`
	Capacity        figure `json:"max_total_num_tokens"`
	MaxRunning      figure `json:"max_running_requests"`
	PrefillTokens   figure `json:"total_prefill_uncached_tokens"`
	PrefillBusy     figure `json:"total_prefill_busy_us"`
}

// figure is a count in JSON. Whatever is no count is unknown, and no reason to refuse the figures beside it.
type figure struct{ load.Count }

// UnmarshalJSON never fails.
func (f *figure) UnmarshalJSON(b []byte) error {
	f.Count = number(b)
	return nil
}

// positive is f, unknown where it is zero: a size or limit of zero means that the engine does not know it.
func (f figure) positive() load.Count {
	if n, ok := f.Get(); ok && n > 0 {
		return f.Count
	}
	return load.Count{}
}

// ParseLoads fills into with an answer of SGLang to GET /v1/loads. A missing or null dp_rank is the entry's place in the
// list. The errors are [ask.ErrMalformed] and [ErrNoLoad]; into is undefined after one.
func ParseLoads(body []byte, into *Answer) error {
	into.reset()
	var b loadsBody
	if err := json.Unmarshal(body, &b); err != nil {
		return ask.Malformed("loads: %v", err)
	}
	switch {
	case b.Loads == nil:
		return ask.Malformed("loads: the list of ranks is missing")
	case len(*b.Loads) > load.MaxRanks:
		return ask.Malformed("loads: %d ranks, at most %d expected", len(*b.Loads), load.MaxRanks)
	}
	if n, ok := b.RankCount.Get(); ok && n <= load.MaxRanks {
		into.Expected = int(n)
	}
	for i := range *b.Loads {
		r := &(*b.Loads)[i]
		number := i
		if n, ok := r.Rank.Get(); ok {
			if n >= load.MaxRanks {
				return ask.Malformed("loads: rank %d, below %d expected", n, load.MaxRanks)
			}
			number = int(n)
		}
		into.Ranks = append(into.Ranks, Rank{Number: number, Report: load.RankReport{
			Running: r.Running.Count, Waiting: r.Waiting.Count, WaitingUncached: r.WaitingUncached.Count,
			Used: r.Used.Count, Total: r.Total.Count, Capacity: r.Capacity.positive(), MaxRunning: r.MaxRunning.positive(),
			PrefillTokens: r.PrefillTokens.Count, PrefillBusy: r.PrefillBusy.Count,
		}})
		if i == 0 {
			into.Prefilled = r.PrefillTokens.Count
		} else {
			into.Prefilled = into.Prefilled.Plus(r.PrefillTokens.Count)
		}
	}
	return into.settle()
}
