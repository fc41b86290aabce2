package trace

import (
	"fmt"
	"time"
)

// Limits that no trace of real requests meets; a number beyond them is a mistake in the file, or an attempt to make the
// reader allocate.
const (
	maxTokens  = 1 << 22                // four times the longest context that an engine serves today
	maxArrival = 366 * 24 * 3600 * 1000 // ms: a year
)

// The keys of a line, as bits of what was seen.
const (
	sawTimestamp = 1 << iota
	sawInput
	sawOutput
	sawBlocks
	sawAll = 1<<iota - 1
)

// parseLine reads one JSON object with exactly the keys timestamp (ms), input_length, output_length and hash_ids. It
// returns the reason if the line is refused.
//
// It is written by hand because encoding/json takes keys in any case, takes the last of a repeated key and lets null
// stand for zero: each would turn a fault of the file into a wrong request.
func parseLine(text []byte) (Request, string) {
	p := lineParser{text: text}
	var req Request
	switch ok := p.object(func(key string) bool { return p.field(key, &req) }); {
	case !ok:
		return Request{}, p.reason
	case p.saw != sawAll:
		return Request{}, "missing key: timestamp, input_length, output_length and hash_ids are all needed"
	case req.InputTokens < 1 || req.OutputTokens < 1:
		return Request{}, "input_length and output_length must be at least 1"
	}
	if want := (req.InputTokens + BlockTokens - 1) / BlockTokens; len(req.Blocks) != want {
		return Request{}, fmt.Sprintf("hash_ids: %d ids, but input_length %d needs %d of %d tokens",
			len(req.Blocks), req.InputTokens, want, BlockTokens)
	}
	return req, ""
}

// lineParser is a cursor over one line. Its methods return false after they set reason.
type lineParser struct {
	text   []byte
	at     int
	saw    int
	reason string
}

func (p *lineParser) fail(format string, args ...any) bool {
	p.reason = fmt.Sprintf(format, args...)
	return false
}

// skip goes over white space; a line has no line feeds in it.
func (p *lineParser) skip() {
	for p.at < len(p.text) && (p.text[p.at] == ' ' || p.text[p.at] == '\t' || p.text[p.at] == '\r') {
		p.at++
	}
}

// next skips white space and takes c if it stands there.
func (p *lineParser) next(c byte) bool {
	p.skip()
	if p.at < len(p.text) && p.text[p.at] == c {
		p.at++
		return true
	}
	return false
}

func (p *lineParser) want(c byte) bool {
	return p.next(c) || p.fail("byte %d: want %q", p.at+1, c)
}

// object reads the whole line as one object; field reads the value of each key.
func (p *lineParser) object(field func(key string) bool) bool {
	if !p.want('{') {
		return false
	}
	for {
		key, ok := p.key()
		if !ok || !p.want(':') || !field(key) {
			return false
		}
		if p.next(',') {
			continue
		}
		if !p.want('}') {
			return false
		}
		if p.skip(); p.at < len(p.text) {
			return p.fail("byte %d: text behind the object", p.at+1)
		}
		return true
	}
}

// mark notes that a key was seen, and refuses it the second time.
func (p *lineParser) mark(key string, bit int) bool {
	if p.saw&bit != 0 {
		return p.fail("repeated key %q", key)
	}
	p.saw |= bit
	return true
}

// key reads a string without escapes: none of the keys needs one.
func (p *lineParser) key() (string, bool) {
	if !p.want('"') {
		return "", false
	}
	start := p.at
	for ; p.at < len(p.text); p.at++ {
		switch p.text[p.at] {
		case '\\':
			return "", p.fail("byte %d: escape in a key", p.at+1)
		case '"':
			p.at++
			return string(p.text[start : p.at-1]), true
		}
	}
	return "", p.fail("key without an end")
}

func (p *lineParser) field(key string, req *Request) bool {
	var bit int
	switch key {
	case "timestamp":
		bit = sawTimestamp
	case "input_length":
		bit = sawInput
	case "output_length":
		bit = sawOutput
	case "hash_ids":
		bit = sawBlocks
	default:
		return p.fail("unknown key %q", key)
	}
	if !p.mark(key, bit) {
		return false
	}
	var n uint64
	var ok bool
	switch bit {
	case sawTimestamp:
		n, ok = p.number(key, maxArrival)
		req.Arrival = time.Duration(n) * time.Millisecond
	case sawInput:
		n, ok = p.number(key, maxTokens)
		req.InputTokens = int(n)
	case sawOutput:
		n, ok = p.number(key, maxTokens)
		req.OutputTokens = int(n)
	case sawBlocks:
		req.Blocks, ok = p.blocks(key)
	}
	return ok
}

// number reads a whole number from 0 to limit. Fractions and exponents are refused: no such value has one.
func (p *lineParser) number(key string, limit uint64) (uint64, bool) {
	p.skip()
	start := p.at
	var n uint64
	for ; p.at < len(p.text) && p.text[p.at] >= '0' && p.text[p.at] <= '9'; p.at++ {
		d := uint64(p.text[p.at] - '0')
		if n > (limit-d)/10 {
			return 0, p.fail("%s: over %d", key, limit)
		}
		n = n*10 + d
	}
	digits := p.text[start:p.at]
	switch {
	case len(digits) == 0:
		return 0, p.fail("%s: want a whole number that is not negative", key)
	case len(digits) > 1 && digits[0] == '0':
		return 0, p.fail("%s: leading zero", key)
	}
	return n, true
}

func (p *lineParser) blocks(key string) ([]uint64, bool) {
	if !p.want('[') {
		return nil, false
	}
	if p.next(']') {
		return nil, true
	}
	ids := make([]uint64, 0, 32) // the median of the embedded trace is below
	for {
		id, ok := p.number(key, 1<<64-1)
		if !ok {
			return nil, false
		}
		// The line is bounded, so the ids are too.
		ids = append(ids, id)
		if p.next(',') {
			continue
		}
		return ids, p.want(']')
	}
}
