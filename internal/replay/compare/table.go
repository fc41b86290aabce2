package compare

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// column is one column of the table.
type column struct {
	head, unit string
	cell       func(*Row) string
}

func columns() []column {
	sec := func(v *float64) string { return number(v, 2) }
	return []column{
		{"TTFT mean", "s", func(r *Row) string { return sec(r.TTFT.Mean) }},
		{"p50", "s", func(r *Row) string { return sec(r.TTFT.P50) }},
		{"p95", "s", func(r *Row) string { return sec(r.TTFT.P95) }},
		{"p99", "s", func(r *Row) string { return sec(r.TTFT.P99) }},
		{"ITL mean", "ms", func(r *Row) string { return millis(r.ITL.Mean) }},
		{"p99", "ms", func(r *Row) string { return millis(r.ITL.P99) }},
		{"E2E mean", "s", func(r *Row) string { return sec(r.E2E.Mean) }},
		{"p99", "s", func(r *Row) string { return sec(r.E2E.P99) }},
		{"hit", "tokens", func(r *Row) string { return number(r.HitRate, 3) }},
		{"hit", "blocks", func(r *Row) string { return number(r.BlockHitRate, 3) }},
		{"max/mean", "busy", func(r *Row) string { return number(r.BusyImbalance, 2) }},
		{"max/mean", "reqs", func(r *Row) string { return number(r.RequestImbalance, 2) }},
		{"queue", "mean", func(r *Row) string { return number(&r.QueueMean, 1) }},
		{"queue", "max", func(r *Row) string { return strconv.Itoa(r.QueueMax) }},
		{"rejected", "", func(r *Row) string { return strconv.Itoa(r.rejected()) }},
		{"lost", "", func(r *Row) string { return strconv.Itoa(r.Lost) }},
	}
}

func (r *Row) rejected() int {
	return r.Rejected.NoBucket + r.Rejected.NoEngine + r.Rejected.QueueFull + r.Rejected.TooLong
}

// Text writes the report as a table, a line a contender. It ends with a line feed.
func (r *Report) Text() string {
	var b strings.Builder
	c := &r.Conditions
	fmt.Fprintf(&b, "%s: %s, at %g times its rate; %s engines with %s KV blocks of %d tokens, prefill %s tokens/s",
		c.Trace, plural(c.Requests, "request"), c.Rate, r.distinct(func(x *Row) float64 { return float64(x.Engines) }), grouped(c.KVBlocks), c.BlockSize, grouped(int(c.PrefillRate)))
	if c.PrefillOnly {
		b.WriteString(", one prompt at a time and no more than its first token")
	}
	fmt.Fprintf(&b, "\n%s, seed %d, load reports: %s", plural(c.Gateways, "gateway"), c.Seed, c.Reports)
	if c.Reports != "none" {
		fmt.Fprintf(&b, ", every %s s", r.distinct(func(x *Row) float64 { return x.ReportEvery }))
	}
	if c.EventDelay > 0 || c.EventLoss > 0 {
		fmt.Fprintf(&b, ", %g s under way, %g %% lost", c.EventDelay, 100*c.EventLoss)
	}
	if c.ReportDelay > 0 {
		fmt.Fprintf(&b, ", reports %g s under way", c.ReportDelay+c.EventDelay)
	}
	if c.EventLoss > 0 && c.EventRepair == nil {
		b.WriteString(", none repaired")
	}
	if c.Peers != nil {
		fmt.Fprintf(&b, "; gateways tell each other what they send, %g s under way, %g %% lost", c.Peers.Delay, 100*c.Peers.Loss)
	}
	for _, x := range c.Outages {
		fmt.Fprintf(&b, "; engine %d down from %g s", x.Engine, x.At)
		if x.For > 0 {
			fmt.Fprintf(&b, " to %g s", x.At+x.For)
		}
	}
	b.WriteString("\n\n")
	r.writeTable(&b)
	return b.String()
}

// distinct lists what the runs have of something, each once: configurations may differ in it.
func (r *Report) distinct(of func(*Row) float64) string {
	var out []string
	for i := range r.Runs {
		if v := strconv.FormatFloat(of(&r.Runs[i]), 'g', -1, 64); !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return strings.Join(out, " or ")
}

func (r *Report) writeTable(b *strings.Builder) {
	cols := columns()
	rows := [][]string{{""}, {""}}
	for _, c := range cols {
		rows[0], rows[1] = append(rows[0], c.head), append(rows[1], c.unit)
	}
	for i := range r.Runs {
		x := &r.Runs[i]
		cells := []string{x.Name}
		for _, c := range cols {
			cells = append(cells, c.cell(x))
		}
		rows = append(rows, cells)
	}
	width := make([]int, len(cols)+1)
	for _, cells := range rows {
		for i, s := range cells {
			width[i] = max(width[i], utf8.RuneCountInString(s))
		}
	}
	for _, cells := range rows {
		line := fmt.Sprintf("%-*s", width[0], cells[0])
		for i, s := range cells[1:] {
			line += fmt.Sprintf("  %*s", width[i+1], s)
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
}

func number(v *float64, decimals int) string {
	if v == nil {
		return "–"
	}
	return strconv.FormatFloat(*v, 'f', decimals, 64)
}

func millis(v *float64) string {
	if v == nil {
		return "–"
	}
	return strconv.FormatFloat(*v*1000, 'f', 1, 64)
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return grouped(n) + " " + noun + "s"
}

// grouped writes a number with a comma after each three digits.
func grouped(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
