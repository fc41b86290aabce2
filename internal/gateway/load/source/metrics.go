package source

import (
	"bytes"
	"fmt"
	"math"
	"math/bits"

	"github.com/perigee-llm/perigee/internal/gateway/fleet/ask"
	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// page is what a metrics page said, rank by rank, while it is read.
type page struct {
	ranks []pageRank
	// bare are the series without an engine label: vLLM's own simulators give none at all, and its older versions gave
	// the sizes of the pool without one.
	bare     pageRank
	bareSeen bool // there was a series without an engine label
	last     int  // where in ranks the last series was: the series of a rank mostly stand together, or in the ranks' order
	started  float64
	tooMany  bool
}

// pageRank is the figures of one rank, each with the number of series that it came from.
type pageRank struct {
	number           int
	running, waiting tally
	prompt           tally
	usage, capacity  sole
	usageIs          float64 // 0 to 1
	capacityIs       int64   // tokens
}

// tally is a count that several series add to: one for each name under which the engine serves its model.
type tally struct {
	load.Count
	seen bool
}

func (t *tally) add(c load.Count) {
	if !t.seen {
		t.Count, t.seen = c, true
		return
	}
	t.Count = t.Plus(c)
}

// sole is the state of a figure that several series must agree on.
type sole uint8

const (
	unseen sole = iota
	seen
	disputed // two series disagree, or one of them cannot be read: the figure is unknown
)

func (s *sole) take(readable, same bool) {
	switch {
	case !readable || (*s == seen && !same):
		*s = disputed
	case *s == unseen:
		*s = seen
	}
}

// ParseMetrics fills into with a page of vLLM's /metrics (Prometheus' text format 0.0.4). Each engine label is a rank;
// a page without engine labels is rank 0. Series of several model names on one rank are added up. The errors are
// [ask.ErrMalformed], [ask.ErrUnreachable] for a page that ends within a line, and [ErrNoLoad]; into is undefined after one.
//
// The lines are scanned in place instead of being parsed into families, as the Prometheus library does: of some 700 lines
// we read six, and at 64 engines a second that is a thousandth of a core against an eighth of one.
func ParseMetrics(body []byte, into *Answer) error {
	into.reset()
	if len(body) > 0 && body[len(body)-1] != '\n' {
		return errCutPage // the format ends every line; without a length on the wire this is how a cut shows
	}
	p := page{ranks: make([]pageRank, 0, 8)}
	for len(body) > 0 {
		end := bytes.IndexByte(body, '\n')
		p.line(body[:end])
		body = body[end+1:]
	}
	if p.tooMany {
		return ask.Malformed("metrics: more than %d engine labels", load.MaxRanks)
	}
	p.fill(into)
	return into.settle()
}

// fill turns the page into an answer.
func (p *page) fill(into *Answer) {
	into.Started = p.started
	if len(p.ranks) == 0 && p.bareSeen {
		p.ranks = append(p.ranks, p.bare)
	}
	for i := range p.ranks {
		r := &p.ranks[i]
		if r.capacity == unseen {
			r.capacity, r.capacityIs = p.bare.capacity, p.bare.capacityIs
		}
		out := load.RankReport{Running: r.running.Count, Waiting: r.waiting.Count}
		if r.capacity == seen {
			out.Capacity = load.Known(r.capacityIs)
			if r.usage == seen {
				out.Used = load.Known(int64(math.Round(r.usageIs * float64(r.capacityIs))))
			}
		}
		into.Ranks = append(into.Ranks, Rank{Number: r.number, Report: out})
		if i == 0 {
			into.Prefilled = r.prompt.Count
		} else {
			into.Prefilled = into.Prefilled.Plus(r.prompt.Count)
		}
	}
}

var errCutPage = fmt.Errorf("%w: the page ends within a line", ask.ErrUnreachable)

type series uint8

const (
	otherSeries series = iota
	runningSeries
	waitingSeries
	usageSeries
	configSeries
	promptSeries
	startedSeries
)

// The series that are read. The switch on the first letter after the prefix keeps the hundreds of others cheap.
var (
	prefixVLLM  = []byte("vllm:")
	nameRunning = []byte("num_requests_running")
	nameWaiting = []byte("num_requests_waiting")
	nameUsage   = []byte("kv_cache_usage_perc")
	nameConfig  = []byte("cache_config_info")
	namePrompt  = []byte("prompt_tokens_total")
	nameStarted = []byte("process_start_time_seconds")
)

// sift tells which series the line is of, and returns what follows the name.
func sift(line []byte) (series, []byte) {
	if !bytes.HasPrefix(line, prefixVLLM) {
		if rest, ok := named(line, nameStarted); ok {
			return startedSeries, rest
		}
		return otherSeries, nil
	}
	line = line[len(prefixVLLM):]
	if len(line) == 0 {
		return otherSeries, nil
	}
	switch line[0] {
	case 'n':
		if rest, ok := named(line, nameRunning); ok {
			return runningSeries, rest
		}
		if rest, ok := named(line, nameWaiting); ok {
			return waitingSeries, rest
		}
	case 'k':
		if rest, ok := named(line, nameUsage); ok {
			return usageSeries, rest
		}
	case 'c':
		if rest, ok := named(line, nameConfig); ok {
			return configSeries, rest
		}
	case 'p':
		if rest, ok := named(line, namePrompt); ok {
			return promptSeries, rest
		}
	}
	return otherSeries, nil
}

// named cuts the name off the line, if it is the line's whole name.
func named(line, name []byte) ([]byte, bool) {
	if !bytes.HasPrefix(line, name) {
		return nil, false
	}
	rest := line[len(name):]
	return rest, len(rest) > 0 && (rest[0] == '{' || rest[0] == ' ' || rest[0] == '\t')
}

func (p *page) line(line []byte) {
	s, rest := sift(line)
	if s == otherSeries {
		return
	}
	labels, value, ok := split(rest)
	if !ok {
		return // garbage says nothing
	}
	if s == startedSeries {
		if f, ok := float(value); ok && f > 0 {
			p.started = f
		}
		return
	}
	r, ok := p.rank(labels.engine)
	if !ok {
		return
	}
	switch s {
	case runningSeries:
		r.running.add(number(value))
	case waitingSeries:
		r.waiting.add(number(value))
	case promptSeries:
		r.prompt.add(number(value))
	case usageSeries:
		f, ok := float(value)
		r.usage.take(ok && f >= 0 && f <= 1, f == r.usageIs)
		r.usageIs = f
	case configSeries:
		n, ok := capacity(labels.blockSize, labels.blocks)
		r.capacity.take(ok, n == r.capacityIs)
		r.capacityIs = n
	}
}

// capacity is the pool's size in tokens: the blocks times the tokens of a block. vLLM writes "None" for what it does not know.
func capacity(blockSize, blocks []byte) (int64, bool) {
	b, ok1 := number(blockSize).Get()
	n, ok2 := number(blocks).Get()
	if !ok1 || !ok2 {
		return 0, false
	}
	hi, lo := bits.Mul64(uint64(b), uint64(n))
	return int64(lo), hi == 0 && lo > 0 && lo <= maxExact
}

// rank returns where the series of this engine label are collected, and false where the label is no rank's number.
func (p *page) rank(label []byte) (*pageRank, bool) {
	if label == nil {
		p.bareSeen = true
		return &p.bare, true
	}
	n, ok := number(label).Get()
	if !ok || n > math.MaxInt32 {
		return nil, false
	}
	for i := range p.ranks {
		// Starting at the last one and its successor, a page of many ranks costs a step or two a line.
		k := (p.last + i) % len(p.ranks)
		if p.ranks[k].number == int(n) {
			p.last = k
			return &p.ranks[k], true
		}
	}
	if len(p.ranks) == load.MaxRanks {
		p.tooMany = true
		return nil, false
	}
	p.ranks = append(p.ranks, pageRank{number: int(n)})
	p.last = len(p.ranks) - 1
	return &p.ranks[p.last], true
}

// labels are the values of the labels that we read, escapes as they stand (numbers have none); nil where there is no such label.
type labels struct{ engine, blockSize, blocks []byte }

// split reads what follows a series' name: labels in braces, a value, and maybe a time that we do not need.
func split(rest []byte) (l labels, value []byte, ok bool) {
	if rest[0] == '{' {
		if l, rest, ok = readLabels(rest[1:]); !ok {
			return l, nil, false
		}
	}
	rest = trimBlanks(rest)
	if i := bytes.IndexAny(rest, " \t"); i >= 0 {
		rest = rest[:i]
	}
	return l, rest, len(rest) > 0
}

func readLabels(b []byte) (l labels, rest []byte, ok bool) {
	for {
		b = trimBlanks(b)
		if len(b) > 0 && b[0] == '}' {
			return l, b[1:], true
		}
		eq := bytes.IndexByte(b, '=')
		if eq < 0 {
			return l, nil, false
		}
		name := bytes.TrimRight(b[:eq], " \t")
		b = trimBlanks(b[eq+1:])
		if len(b) == 0 || b[0] != '"' {
			return l, nil, false
		}
		end := closingQuote(b[1:])
		if end < 0 {
			return l, nil, false
		}
		value := b[1 : 1+end : 1+end]
		switch string(name) { // the compiler compares in place
		case "engine":
			l.engine = value
		case "block_size":
			l.blockSize = value
		case "num_gpu_blocks":
			l.blocks = value
		}
		b = trimBlanks(b[end+2:])
		switch {
		case len(b) > 0 && b[0] == ',':
			b = b[1:]
		case len(b) == 0 || b[0] != '}':
			return l, nil, false
		}
	}
}

// closingQuote returns the position of the quote that ends a label's value, or -1.
func closingQuote(b []byte) int {
	for i := 0; ; i++ {
		k := bytes.IndexAny(b[i:], `"\`)
		if k < 0 {
			return -1
		}
		if i += k; b[i] == '"' {
			return i
		}
		if i++; i >= len(b) { // the escaped byte is skipped by the loop's step
			return -1
		}
	}
}

func trimBlanks(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	return b
}
