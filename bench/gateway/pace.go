package main

import (
	"context"
	"slices"
	"time"
)

// pace is an open loop: when each request of a cell is due, whatever became of those before. Times are since its start.
// In a closed loop a slow answer keeps the requests behind it from being sent, so they are not there to have waited, and
// a faster target is asked more: its times are of another load. Here all targets are asked the same.
type pace struct {
	rate        float64 // requests a second over all connections; positive
	conns       int
	from, until time.Duration // what is due in between is measured
	// giveUp is when requests that were due before until are no longer sent. Later than until, because what waits at the
	// end has the longest times; not never, because a target may take any time for what it was offered.
	giveUp time.Duration
}

// keptUp is the share of what was due that has to be answered in the measured time. A target at its limit is some
// percent below it in one round and above it in the next; what the edges of a cell cut off is less than that.
const keptUp = 0.95

// due is when request n, from 0, of a connection is to be sent: request k of the cell is due k/rate after the start, and
// the connections take turns. It is worked out anew each time: intervals that are added up add up their rounding too.
func (p pace) due(conn, n int) time.Duration {
	return time.Duration(float64(n*p.conns+conn) / p.rate * float64(time.Second))
}

// attempt is one request of a paced connection. Times are since the pace's start.
type attempt struct {
	due  time.Duration
	late time.Duration // how long it was not sent although it was due and its connection was free: ours, not the target's
	// first is when the answer's body began, end when it was complete. Both are giveUp for one that was not sent.
	first, end time.Duration
	unsent     bool
}

// drive sends the requests of one connection when they are due, or as soon as the answer before has come, until all that
// are due before p.until are answered or it is p.giveUp. wait returns at a time, or at once if it is past; ask sends
// request n and returns when its answer began and ended.
func (p pace) drive(ctx context.Context, conn int, start time.Time, wait func(until time.Time) error, ask func(n int) (first, end time.Time, err error)) ([]attempt, error) {
	out := make([]attempt, 0, int(p.until.Seconds()*p.rate/float64(p.conns))+1)
	var free time.Duration // when the answer before had come
	for n := 0; ; n++ {
		due := p.due(conn, n)
		if due >= p.until {
			return out, nil
		}
		if free < due {
			if err := wait(start.Add(due)); err != nil {
				return out, err
			}
		}
		if err := ctx.Err(); err != nil {
			return out, err
		}
		sent := time.Since(start)
		if sent >= p.giveUp {
			out = append(out, attempt{due: due, first: p.giveUp, end: p.giveUp, unsent: true})
			continue
		}
		first, end, err := ask(n)
		if err != nil {
			return out, err
		}
		a := attempt{due: due, late: sent - max(due, free), first: first.Sub(start), end: end.Sub(start)}
		out, free = append(out, a), a.end
	}
}

// tally is what the attempts of all connections showed. Rates are of answers that came in the measured time, times of
// requests that were due in it, whenever their answers came.
func (p pace) tally(all []attempt) result {
	var r result
	var first, whole, late []time.Duration
	for _, a := range all {
		if a.end >= p.from && a.end < p.until {
			r.Requests++
		}
		if a.due < p.from || a.due >= p.until {
			continue
		}
		whole, first = append(whole, a.end-a.due), append(first, a.first-a.due)
		if a.unsent {
			r.Unsent++
		} else {
			late = append(late, a.late)
		}
	}
	slices.Sort(whole)
	slices.Sort(first)
	slices.Sort(late)
	r.RPS = float64(r.Requests) / (p.until - p.from).Seconds()
	r.P50, r.P99, r.First50, r.Late99 = quantile(whole, 0.50), quantile(whole, 0.99), quantile(first, 0.50), quantile(late, 0.99)
	if float64(r.Requests) < keptUp*float64(len(whole)) {
		r.Behind = 1
	}
	return r
}
