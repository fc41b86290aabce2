package explain

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
)

// Text tells the record to a person: the buckets in the order in which they were tried, what each policy saw and did, and
// how the request ended. What is not known is called unknown. It ends with a line feed.
func (r *Record) Text() string {
	var b strings.Builder
	kind, measure := "whole answer", "estimated"
	if r.Stream {
		kind = "stream"
	}
	if r.InputExact {
		measure = "exact"
	}
	if r.InputSource != "" && r.InputSource != measure {
		measure += ", " + strings.ReplaceAll(r.InputSource, "_", " ")
	}
	fmt.Fprintf(&b, "request %s: %s, %s, model %s, at %s\n", r.RequestID, r.Route, kind, r.Model, r.Time.UTC().Format("2006-01-02 15:04:05.000 MST"))
	fmt.Fprintf(&b, "  input %s (%s), with the requested output %s\n", tokens(load.Known(r.InputTokens)), measure, tokens(r.PeakTokens))
	if len(r.Attempts) == 0 {
		b.WriteString("  no engine was looked for so far\n")
	}
	for i := range r.Attempts {
		r.Attempts[i].text(&b, i+1)
	}
	r.endText(&b)
	return b.String()
}

func (a *Attempt) text(b *strings.Builder, n int) {
	where := "no bucket could serve it"
	if a.Bucket != "" {
		where = "bucket " + a.Bucket
	}
	fmt.Fprintf(b, "  attempt %d: %s: %s\n", n, where, a.Outcome)
	for i := range a.Tries {
		a.Tries[i].text(b)
	}
}

func (t *Try) text(b *strings.Builder) {
	fmt.Fprintf(b, "    bucket %s, %s group, %s over %s\n", t.Bucket, t.Stage, t.Policy, plural(t.Live, "live engine"))
	switch {
	case t.SourceError != "":
		fmt.Fprintf(b, "      prefixes by %s: %s\n", t.Source, t.SourceError)
	case t.Source != "":
		fmt.Fprintf(b, "      prefixes by %s\n", t.Source)
	}
	for i, line := range t.Seen() {
		mark := "   "
		if t.Considered[i].Engine == t.Picked {
			mark = " > "
		}
		b.WriteString("     " + mark + line + "\n")
	}
	if t.Omitted > 0 {
		fmt.Fprintf(b, "        and %s more that it looked at\n", Grouped(int64(t.Omitted)))
	}
	for _, line := range t.Refused() {
		b.WriteString("      refused " + line + "\n")
	}
	if t.MoreRejections > 0 {
		fmt.Fprintf(b, "      refused %s\n", plural(t.MoreRejections, "more engine"))
	}
	if t.Floored {
		b.WriteString("      breakers did not count for engines that are up: too few engines would have been left\n")
	}
	switch {
	case t.Picked != "":
		fmt.Fprintf(b, "      picked %s: %s\n", t.Picked, t.Because())
	case t.Error != "":
		fmt.Fprintf(b, "      picked nothing: %s\n", strings.TrimSuffix(t.Error+": "+t.Detail, ": "))
	default:
		b.WriteString("      picked nothing\n")
	}
}

// Seen tells the candidates that are kept as the policy saw them, in a line each.
func (t *Try) Seen() []string {
	lines := make([]string, len(t.Considered))
	for i := range t.Considered {
		lines[i] = t.Considered[i].text()
	}
	return lines
}

// Refused tells the engines that admission refused, and why, in a line each.
func (t *Try) Refused() []string {
	lines := make([]string, len(t.Rejections))
	for i, x := range t.Rejections {
		lines[i] = x.Engine + ": at its " + x.Limit
	}
	return lines
}

func (c *Candidate) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: in flight %s", c.Engine, Grouped(c.InFlight))
	if c.Score.IsKnown() {
		b.WriteString(", score " + count(c.Score))
	}
	switch {
	case c.Matched.IsKnown() && c.Blind:
		b.WriteString(", holds " + tokens(c.Matched) + " or more")
	case c.Matched.IsKnown():
		b.WriteString(", holds " + tokens(c.Matched))
	case c.Blind:
		b.WriteString(", what it holds of the prompt unknown")
	}
	if c.Uncached.IsKnown() {
		b.WriteString(", " + tokens(c.Uncached) + " to compute")
	}
	p := c.Report
	if p == nil {
		b.WriteString("; its own report unknown (none that is fresh and complete)")
		return b.String()
	}
	fmt.Fprintf(&b, "; reported %s ago: running %s, waiting %s, waiting uncached %s, KV %s of %s, queue %s",
		milliseconds(p.AgeMillis), count(p.Running), count(p.Waiting), tokens(p.WaitingUncached), count(p.Used), tokens(p.Capacity), queue(p.QueueMicros))
	return b.String()
}

func (r *Record) endText(b *strings.Builder) {
	if !r.Done {
		b.WriteString("  under way\n")
		return
	}
	status := "the client left before there was an answer"
	if r.Status != StatusClientLeft {
		status = "status " + strconv.Itoa(r.Status)
	}
	if r.Code != "" {
		status += " (" + r.Code + ")"
	}
	first, took := "", "unknown"
	switch {
	case r.TTFTMillis != nil:
		first = "first token after " + milliseconds(*r.TTFTMillis) + ", "
	case r.Stream: // of a whole answer the gateway does not see the first token
		first = "no token came, "
	}
	if r.DurationMillis != nil {
		took = milliseconds(*r.DurationMillis)
	}
	fmt.Fprintf(b, "  ended: %s; %sall over after %s\n", status, first, took)
	fmt.Fprintf(b, "  usage: prompt %s, cached %s, answer %s\n", tokens(r.PromptTokens), tokens(r.CachedTokens), tokens(r.CompletionTokens))
}

// Because says in a few words why the group's policy picked what it picked: the reason, and the figures that decided
// where they are in the record. It is empty where nothing was picked.
func (t *Try) Because() string {
	if t.Picked == "" {
		return ""
	}
	if why := t.figures(); why != "" {
		return t.Reason + ": " + why
	}
	return t.Reason
}

// figures gives the picked candidate's decisive figure against the others'.
func (t *Try) figures() string {
	var mine *Candidate
	var others []*Candidate
	for i := range t.Considered {
		if c := &t.Considered[i]; c.Engine == t.Picked {
			mine = c
		} else {
			others = append(others, c)
		}
	}
	if mine == nil || len(others) == 0 {
		return ""
	}
	switch policy.Reason(t.Reason) {
	case policy.ReasonPressure:
		if len(others) == 1 && mine.Report != nil && others[0].Report != nil {
			return pressure(t.Stage, mine.Report, others[0].Report)
		}
	case policy.ReasonInflight, policy.ReasonLeastLocally:
		return versus(mine, others, func(c *Candidate) load.Count { return load.Known(c.InFlight) }, "in flight")
	case policy.ReasonLeastLoad:
		return versus(mine, others, func(c *Candidate) load.Count { return c.Score }, "waiting, running and on the way")
	}
	return ""
}

// versus sets the picked one's figure against the least and the most of the others.
func versus(mine *Candidate, others []*Candidate, figure func(*Candidate) load.Count, what string) string {
	low, high := figure(others[0]), figure(others[0])
	for _, c := range others[1:] {
		n := figure(c)
		if less(n, low) {
			low = n
		}
		if less(high, n) {
			high = n
		}
	}
	own := figure(mine)
	switch {
	case own == low && own == high:
		return "all tied at " + count(own) + " " + what
	case low == high:
		return count(own) + " vs " + count(low) + " " + what
	default:
		return count(own) + " vs " + count(low) + " to " + count(high) + " " + what
	}
}

// less orders counts, an unknown one before all others.
func less(a, b load.Count) bool {
	x, ok1 := a.Get()
	y, ok2 := b.Get()
	return !ok1 && ok2 || ok1 && ok2 && x < y
}

// pressure names the first figure that tells two reports apart, in the order in which the policies compare them.
func pressure(stage string, a, b *Report) string {
	type figure struct {
		name string
		a, b load.Count
		show func(load.Count) string
	}
	list := []figure{
		{"of queue", a.QueueMicros, b.QueueMicros, queue},
		{"waiting uncached tokens", a.WaitingUncached, b.WaitingUncached, count},
		{"waiting", a.Waiting, b.Waiting, count},
		{"running", a.Running, b.Running, count},
	}
	if stage == "decode" {
		list = append(list[2:], figure{"KV tokens used", a.Used, b.Used, count})
	}
	for _, f := range list {
		x, ok1 := f.a.Get()
		y, ok2 := f.b.Get()
		if ok1 && ok2 && cmp.Compare(x, y) != 0 {
			return f.show(f.a) + " vs " + f.show(f.b) + " " + f.name
		}
	}
	return ""
}

// Grouped writes a number with a comma between each three digits.
func Grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	first := 0
	if n < 0 {
		first = 1
	}
	for i := len(s) - 3; i > first; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func count(c load.Count) string {
	if n, ok := c.Get(); ok {
		return Grouped(n)
	}
	return "unknown"
}

func tokens(c load.Count) string {
	if !c.IsKnown() {
		return "unknown"
	}
	if c == load.Known(1) {
		return "1 token"
	}
	return count(c) + " tokens"
}

func queue(c load.Count) string {
	if us, ok := c.Get(); ok {
		return milliseconds(float64(us) / 1000)
	}
	return "unknown"
}

// milliseconds writes a time with three digits that matter, in ms or s.
func milliseconds(ms float64) string {
	d := time.Duration(ms * float64(time.Millisecond))
	switch {
	case d >= time.Second:
		return strconv.FormatFloat(d.Seconds(), 'f', 2, 64) + " s"
	case d >= 10*time.Millisecond:
		return strconv.FormatFloat(ms, 'f', 0, 64) + " ms"
	default:
		return strconv.FormatFloat(ms, 'f', 1, 64) + " ms"
	}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return Grouped(int64(n)) + " " + what + "s"
}
