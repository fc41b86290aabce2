// Package source reads an engine's load from the engine: from SGLang's /v1/loads and from vLLM's /metrics.
//
// It promises that a figure that is absent, null, negative, not a number or not whole is unknown and never zero; that an
// answer which did not come whole is not seen at all; and that every figure carries the moment just before it was asked
// for, so that what was dispatched since may be missing from it. The parsers ([ParseLoads], [ParseMetrics]) are pure.
// An [Answer] belongs to one goroutine; everything else may be called at once.
package source

import (
	"context"
	"errors"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/ask"
	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// ErrNoLoad means that the engine answered, but its answer speaks of no rank: its statistics are switched off, or the kind
// has no load to read.
var ErrNoLoad = errors.New("no load in the answer")

// maxBody bounds one answer, in bytes: a vLLM page has 55 KiB for one rank, of which the per-rank part is nearly all, so
// this holds more than a hundred ranks in one page. SGLang's answer is far smaller.
const maxBody = 8 << 20

// Answer is what one engine said of its load in one answer. The zero value is ready to be filled, and may be filled again.
type Answer struct {
	// Ranks are the ranks that reported, in the order of the engine's own numbers, each once.
	Ranks []Rank
	// Expected is how many ranks the engine says it has, 0 where it does not say.
	Expected int
	// Started is when the engine's process started, in seconds since 1970 by its own clock; 0 where it does not say.
	Started float64
	// Prefilled is the prompt tokens that all ranks together took in since the engine started. Only its fall has a meaning: a restart.
	Prefilled load.Count
}

// Rank is one rank's part of an answer.
type Rank struct {
	// Number is the rank's own number. Where one data-parallel rank is served under its own URL, it need not be 0.
	Number int
	// Report is what it said.
	Report load.RankReport
}

func (a *Answer) reset() { *a = Answer{Ranks: a.Ranks[:0]} }

// RankCount is how many ranks the engine has as far as this answer tells.
func (a *Answer) RankCount() int { return max(a.Expected, len(a.Ranks)) }

// Complete tells whether all ranks answered, where expected are known to be there (0: it is not known).
func (a *Answer) Complete(expected int) bool { return len(a.Ranks) >= max(expected, a.Expected) }

// Observe gives the answer to the engine's record. Ask Complete before: half an answer would pair new figures of one rank
// with old ones of another.
//
// Ranks are observed by their place in the order of their numbers: of an engine that shows only rank 3, because the
// others have their own URLs, rank 3 is all there is.
func (a *Answer) Observe(e *load.Engine) {
	for i := range a.Ranks {
		e.Observe(i, a.Ranks[i].Report)
	}
}

// RestartedSince tells whether the engine certainly restarted between the earlier answer and this one: its process began
// at another time, or a counter that only grows fell.
func (a *Answer) RestartedSince(before Life) bool {
	if a.Started != 0 && before.started != 0 {
		return a.Started != before.started
	}
	now, ok1 := a.Prefilled.Get()
	then, ok2 := before.prefilled.Get()
	return ok1 && ok2 && now < then
}

// Life is what tells one process of an engine from its successor. The zero value is no knowledge.
type Life struct {
	started   float64
	prefilled load.Count
}

// Life returns the marks of the engine's present process.
func (a *Answer) Life() Life { return Life{started: a.Started, prefilled: a.Prefilled} }

// Pollable tells whether engines of this kind have a load that can be read.
func Pollable(k fleet.Kind) bool { return k == fleet.VLLM || k == fleet.SGLang }

// Poll asks the engine at base for its load and fills into, whose old contents are lost in any case. now is the gateway's
// clock. The errors are the classes of package ask, and [ErrNoLoad]. The caller bounds the time by ctx.
func Poll(ctx context.Context, client *http.Client, kind fleet.Kind, base string, now func() time.Time, into *Answer) error {
	into.reset()
	var err error
	at := now()
	switch kind {
	case fleet.SGLang:
		err = ask.Get(ctx, client, base+"/v1/loads?include=core", "application/json", maxBody, func(b []byte) error {
			return ParseLoads(b, into)
		})
	case fleet.VLLM:
		err = ask.Get(ctx, client, base+"/metrics", "text/plain", maxBody, func(b []byte) error {
			return ParseMetrics(b, into)
		})
	default:
		err = ErrNoLoad
	}
	if err != nil {
		into.reset()
		return err
	}
	for i := range into.Ranks {
		into.Ranks[i].Report.At = at
	}
	return nil
}

// settle sorts the ranks and checks what both kinds of answers must hold.
func (a *Answer) settle() error {
	if len(a.Ranks) == 0 {
		return ErrNoLoad
	}
	slices.SortFunc(a.Ranks, func(x, y Rank) int { return x.Number - y.Number })
	for i := 1; i < len(a.Ranks); i++ {
		if a.Ranks[i].Number == a.Ranks[i-1].Number {
			return ask.Malformed("rank %d is there twice", a.Ranks[i].Number)
		}
	}
	return nil
}

// maxExact is the largest whole number up to which a float64 holds every one: beyond it a figure that passed through a
// float, as all of vLLM's do, is not what was counted.
const maxExact = 1 << 53

// number reads a count written as an integer or as a float with a whole value. Everything else is unknown: not a number,
// negative, fractional, too large.
func number(text []byte) load.Count {
	if len(text) > 0 && len(text) <= 18 { // cannot overflow
		n := int64(0)
		for _, c := range text {
			if c < '0' || c > '9' {
				return wholeFloat(text)
			}
			n = n*10 + int64(c-'0')
		}
		return load.Known(n)
	}
	return wholeFloat(text)
}

func wholeFloat(text []byte) load.Count {
	f, ok := float(text)
	if !ok || f < 0 || f > maxExact || f != math.Trunc(f) {
		return load.Count{}
	}
	return load.Known(int64(f))
}

// float reads a finite number.
func float(text []byte) (float64, bool) {
	f, err := strconv.ParseFloat(string(text), 64)
	return f, err == nil && !math.IsNaN(f) && !math.IsInf(f, 0)
}
