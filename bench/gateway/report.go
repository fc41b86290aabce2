package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// summary is one cell of one target over all rounds: medians, sums of Unsent and Behind, and its ratio to the plain proxy.
type summary struct {
	Cell   cell   `json:"cell"`
	Target string `json:"target"`
	result
	// VsProxy is the median over the rounds of this target's figure by the proxy's in the same round: for RPS more is
	// better, for the others less. Nil for the proxy itself.
	VsProxy *ratios `json:"vs_proxy,omitempty"`
}

type ratios struct {
	RPS float64 `json:"rps"`
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	CPU float64 `json:"cpu_s_per_1k"`
}

// summarise keeps the order in which cells and targets first appear.
func summarise(rows []row) []summary {
	type key struct {
		c cell
		t string
	}
	byKey := map[key][]row{}
	var order []key
	for _, r := range rows {
		k := key{r.Cell, r.Target}
		if byKey[k] == nil {
			order = append(order, k)
		}
		byKey[k] = append(byKey[k], r)
	}
	rank := []string{"direct", "proxy", "beside", "perigee"}
	var cells []cell
	for _, k := range order {
		if !slices.Contains(cells, k.c) {
			cells = append(cells, k.c)
		}
	}
	slices.SortStableFunc(order, func(a, b key) int {
		if d := slices.Index(cells, a.c) - slices.Index(cells, b.c); d != 0 {
			return d
		}
		return slices.Index(rank, a.t) - slices.Index(rank, b.t)
	})
	var out []summary
	for _, k := range order {
		mine, proxy := byKey[k], byKey[key{k.c, "proxy"}]
		s := summary{Cell: k.c, Target: k.t, result: medians(mine)}
		if k.t != "proxy" && len(proxy) == len(mine) {
			s.VsProxy = compare(mine, proxy)
		}
		out = append(out, s)
	}
	return out
}

func medians(rows []row) result {
	of := func(get func(row) float64) float64 {
		var v []float64
		for _, r := range rows {
			v = append(v, get(r))
		}
		return median(v)
	}
	return result{
		Requests: int(of(func(r row) float64 { return float64(r.Requests) })),
		RPS:      of(func(r row) float64 { return r.RPS }),
		P50:      of(func(r row) float64 { return r.P50 }),
		P99:      of(func(r row) float64 { return r.P99 }),
		First50:  of(func(r row) float64 { return r.First50 }),
		CPUPer1k: of(func(r row) float64 { return r.CPUPer1k }),
		RSSMB:    of(func(r row) float64 { return r.RSSMB }),
		Others:   of(func(r row) float64 { return r.Others }),
		Late99:   of(func(r row) float64 { return r.Late99 }),
		Unsent:   sum(rows, func(r row) int { return r.Unsent }),
		Behind:   sum(rows, func(r row) int { return r.Behind }),
	}
}

func sum(rows []row, get func(row) int) (n int) {
	for _, r := range rows {
		n += get(r)
	}
	return n
}

func compare(mine, proxy []row) *ratios {
	of := func(get func(row) float64) float64 {
		var v []float64
		for i := range mine {
			if p := get(proxy[i]); p > 0 {
				v = append(v, get(mine[i])/p)
			}
		}
		return median(v)
	}
	return &ratios{
		RPS: of(func(r row) float64 { return r.RPS }),
		P50: of(func(r row) float64 { return r.P50 }),
		P99: of(func(r row) float64 { return r.P99 }),
		CPU: of(func(r row) float64 { return r.CPUPer1k }),
	}
}

// median of v, 0 if it is empty. v is sorted in place.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	m := len(v) / 2
	if len(v)%2 == 1 {
		return v[m]
	}
	return (v[m-1] + v[m]) / 2
}

func printTable(w io.Writer, sums []summary) {
	fmt.Fprintln(w, "Medians over the rounds. CPU: seconds of the proxy's process for 1,000 requests. x: ratio to the plain proxy.")
	paced := len(sums) > 0 && sums[0].Cell.Rate > 0
	late := ""
	if paced {
		late = "late p99\t"
		fmt.Fprintln(w, "Requests are sent when they are due and timed from then. late p99: µs until our load sent one whose connection was free; the times have it in them.\n"+
			"!N: in N rounds less than 95 % of what was due was answered; those times are of a queue that grows, and say nothing else.")
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "cell\ttarget\treq/s\tp50 µs\tp99 µs\tfirst µs\tCPU s/1k\tRSS MB\tx req/s\tx p50\tx p99\tx CPU\tothers\t"+late)
	for _, s := range sums {
		mark := ""
		if s.Behind > 0 {
			mark = fmt.Sprintf(" !%d", s.Behind)
		}
		fmt.Fprintf(tw, "%v\t%s\t%.0f%s\t%.0f\t%.0f\t%.0f\t", s.Cell, s.Target, s.RPS, mark, s.P50, s.P99, s.First50)
		if s.Target == "direct" {
			fmt.Fprint(tw, "\t\t")
		} else {
			fmt.Fprintf(tw, "%.3f\t%.1f\t", s.CPUPer1k, s.RSSMB)
		}
		switch {
		case s.VsProxy == nil:
			fmt.Fprint(tw, "\t\t\t\t")
		case s.Target == "direct":
			fmt.Fprintf(tw, "%.2f\t%.2f\t%.2f\t\t", s.VsProxy.RPS, s.VsProxy.P50, s.VsProxy.P99)
		default:
			fmt.Fprintf(tw, "%.2f\t%.2f\t%.2f\t%.2f\t", s.VsProxy.RPS, s.VsProxy.P50, s.VsProxy.P99, s.VsProxy.CPU)
		}
		fmt.Fprintf(tw, "%.1f\t", s.Others)
		if paced {
			fmt.Fprintf(tw, "%.0f\t", s.Late99)
		}
		fmt.Fprintln(tw)
	}
	tw.Flush()
}
