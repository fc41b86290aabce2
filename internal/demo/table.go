package demo

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/perigee-llm/perigee/internal/gateway/explain"
	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// Text writes the report as a table, the runs side by side. It ends with a line feed.
func (r *Report) Text() string {
	var b strings.Builder
	c := &r.Conditions
	fmt.Fprintf(&b, "%s requests of the trace %s, from second %g on, %.0f s long, replayed at %g times its speed\n",
		explain.Grouped(int64(c.Requests)), c.Trace, c.FromSeconds, c.SpanSeconds, c.Speed)
	for _, x := range c.Buckets {
		limit := "any length"
		if x.MaxInputTokens > 0 {
			limit = "up to " + explain.Grouped(int64(x.MaxInputTokens)) + " tokens"
		}
		fmt.Fprintf(&b, "bucket %s: %s, on %s\n", x.ID, limit, list(x.Engines))
	}
	fmt.Fprintf(&b, "each engine's own cache holds %s tokens", explain.Grouped(c.PoolTokens))
	if c.ManagerTokens > 0 {
		fmt.Fprintf(&b, "; the Cache Manager, in the last run, %s (in %d MiB)", explain.Grouped(c.ManagerTokens), c.ManagerBytes>>20)
	}
	fmt.Fprintf(&b, "\nseed %d; fresh engines and a fresh gateway for each run; trace time = wall time × %g; in brackets, ratios to the first run\n\n", c.Seed, c.Speed)
	writeRows(&b, r.rows())
	for i := range r.Runs {
		if x := &r.Runs[i]; x.FirstError != "" {
			fmt.Fprintf(&b, "\n%s: the first error: %s\n", x.Name, x.FirstError)
		}
	}
	for _, w := range r.Warnings {
		fmt.Fprintf(&b, "\nWARNING %s\n", w)
	}
	return b.String()
}

// row is one line of the table; a heading has no cells.
type row struct {
	name  string
	cells []string
}

// adder returns the functions that append a row with a cell for each run, and a heading.
func (r *Report) adder(rows *[]row) (add func(name string, cell func(*Replay) string), heading func(name string)) {
	add = func(name string, cell func(*Replay) string) {
		x := row{name: name}
		for i := range r.Runs {
			x.cells = append(x.cells, cell(&r.Runs[i]))
		}
		*rows = append(*rows, x)
	}
	return add, func(name string) { *rows = append(*rows, row{name: name}) }
}

func (r *Report) rows() []row {
	var rows []row
	add, heading := r.adder(&rows)
	// figure adds a row whose cells say what the run makes of the baseline's figure.
	figure := func(name string, value func(*Replay) *float64, show func(float64) string) {
		add(name, func(x *Replay) string {
			cell := known(value(x), show)
			if x != &r.Runs[0] {
				cell += " (×" + ratio(value(&r.Runs[0]), value(x)) + ")"
			}
			return cell
		})
	}
	add("", func(x *Replay) string { return x.Name })
	add("requests", func(x *Replay) string { return explain.Grouped(int64(x.Requests)) })
	add("errors", func(x *Replay) string { return explain.Grouped(int64(x.Errors)) })
	for _, kind := range r.errorKinds() {
		add("  "+kind, func(x *Replay) string { return explain.Grouped(int64(x.ErrorKinds[kind])) })
	}
	heading("time to first token, trace time (wall time below)")
	figure("  p50", func(x *Replay) *float64 { return x.TTFT.P50 }, seconds)
	figure("  p95", func(x *Replay) *float64 { return x.TTFT.P95 }, seconds)
	figure("  p99", func(x *Replay) *float64 { return x.TTFT.P99 }, seconds)
	add("  wall p50 / p95 / p99", func(x *Replay) string {
		return known(x.TTFTWall.P50, whole) + " / " + known(x.TTFTWall.P95, whole) + " / " + known(x.TTFTWall.P99, whole) + " ms"
	})
	rows = append(rows, r.tokenRows()...)
	rows = append(rows, r.shareRows()...)
	return rows
}

// tokenRows say where tokens came from, and that what was restored was right.
func (r *Report) tokenRows() []row {
	var rows []row
	add, heading := r.adder(&rows)
	count := func(name string, value func(*Replay) int64) {
		add(name, func(x *Replay) string { return explain.Grouped(value(x)) })
	}
	heading("tokens")
	add("  of prompts", func(x *Replay) string { return known(float(x.PromptTokens), grouped) })
	count("    from the engine's own cache", func(x *Replay) int64 { return x.DeviceTokens })
	if r.Conditions.ManagerTokens > 0 {
		count("    from the Cache Manager", func(x *Replay) int64 { return x.ManagerTokens })
	}
	count("    computed", func(x *Replay) int64 { return x.ComputedTokens })
	add("  of answers", func(x *Replay) string { return known(float(x.CompletionTokens), grouped) })
	if r.Conditions.ManagerTokens > 0 {
		add("pages restored and compared / wrong", func(x *Replay) string {
			if !x.Manager {
				return "–"
			}
			return explain.Grouped(x.RestoredPages) + " / " + explain.Grouped(x.WrongPages)
		})
	}
	if slices.ContainsFunc(r.Runs, func(x Replay) bool { return x.FailedRestores > 0 }) {
		count("restores that failed, and were computed", func(x *Replay) int64 { return x.FailedRestores })
	}
	if slices.ContainsFunc(r.Runs, func(x Replay) bool { return x.DroppedBlocks > 0 }) {
		count("blocks that were not published", func(x *Replay) int64 { return x.DroppedBlocks })
	}
	return rows
}

// shareRows are the second half of the table: who got what, why, and how the run itself went.
func (r *Report) shareRows() []row {
	var rows []row
	add, heading := r.adder(&rows)
	heading("share of the requests by bucket")
	for i, b := range r.Conditions.Buckets {
		add("  "+b.ID, func(x *Replay) string { return percent(x.Buckets[i].Share) })
	}
	if slices.ContainsFunc(r.Runs, func(x Replay) bool { return x.Overflowed > 0 }) {
		add("  went on to the next bucket", func(x *Replay) string { return explain.Grouped(int64(x.Overflowed)) })
	}
	heading("share of the requests by engine (time busy with prefill)")
	if len(r.Runs) > 0 {
		for i, e := range r.Runs[0].Engines {
			add("  "+e.ID+" "+string(e.Flavor), func(x *Replay) string {
				return percent(x.Engines[i].Share.Share) + " (" + percent(x.Engines[i].PrefillBusy) + ")"
			})
		}
	}
	heading("decisions by reason")
	for _, id := range r.reasons() {
		add("  "+id, func(x *Replay) string { return explain.Grouped(int64(x.reason(id))) })
	}
	heading("the run itself")
	add("  wall time", func(x *Replay) string { return strconv.FormatFloat(x.WallSeconds, 'f', 1, 64) + " s" })
	add("  processors used", func(x *Replay) string {
		return known(x.CPUs, func(n float64) string { return strconv.FormatFloat(n, 'f', 2, 64) })
	})
	add("  requests sent late, p99", func(x *Replay) string {
		return known(x.LateP99, func(n float64) string { return strconv.FormatFloat(n, 'f', 1, 64) + " ms wall" })
	})
	return rows
}

// errorKinds lists those of all runs, in the order of their names.
func (r *Report) errorKinds() []string {
	all := map[string]bool{}
	for i := range r.Runs {
		for kind := range r.Runs[i].ErrorKinds {
			all[kind] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// reasons lists those of all runs, each once, the most frequent of the last run first.
func (r *Report) reasons() (ids []string) {
	seen := map[string]bool{}
	for i := len(r.Runs) - 1; i >= 0; i-- {
		for _, s := range r.Runs[i].Reasons {
			if !seen[s.ID] {
				seen[s.ID] = true
				ids = append(ids, s.ID)
			}
		}
	}
	return ids
}

func (r *Replay) reason(id string) int {
	for _, s := range r.Reasons {
		if s.ID == id {
			return s.Requests
		}
	}
	return 0
}

// writeRows aligns names to the left and cells to the right.
func writeRows(b *strings.Builder, rows []row) {
	name, cells := 0, []int{}
	for _, x := range rows {
		if len(x.cells) > 0 {
			name = max(name, utf8.RuneCountInString(x.name))
		}
		for i, c := range x.cells {
			if i == len(cells) {
				cells = append(cells, 0)
			}
			cells[i] = max(cells[i], utf8.RuneCountInString(c))
		}
	}
	for _, x := range rows {
		line := fmt.Sprintf("%-*s", name, x.name)
		for i, c := range x.cells {
			line += fmt.Sprintf("   %*s", cells[i], c)
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
}

func known(v *float64, show func(float64) string) string {
	if v == nil {
		return "unknown"
	}
	return show(*v)
}

func ratio(base, v *float64) string {
	if base == nil || v == nil || *base == 0 {
		return "–"
	}
	return strconv.FormatFloat(*v / *base, 'f', 2, 64)
}

func float(c load.Count) *float64 {
	n, ok := c.Get()
	if !ok {
		return nil
	}
	v := float64(n)
	return &v
}

func seconds(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) + " s" }
func whole(v float64) string   { return strconv.FormatFloat(v, 'f', 0, 64) }
func grouped(v float64) string { return explain.Grouped(int64(v)) }
func percent(v float64) string { return strconv.FormatFloat(100*v, 'f', 1, 64) + " %" }

// list names the members of a bucket; [layout] numbers them without a gap.
func list(ids []string) string {
	if len(ids) < 4 {
		return strings.Join(ids, ", ")
	}
	return ids[0] + " to " + ids[len(ids)-1]
}
