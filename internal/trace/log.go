package trace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strings"
	"time"
	"unicode/utf8"
)

// The keys of a line of a log, as bits of what was seen.
const (
	sawTime = 1 << iota
	sawInputTokens
	sawOutputTokens
	sawLogBlocks
	sawBlockSize
	sawSession
	sawModel
	sawNeeded = sawTime | sawInputTokens | sawOutputTokens
)

// Limits of a log, for the same reason as those of a trace.
const (
	maxName      = 256     // bytes of a session, a model or a block's name
	maxBlockSize = 1 << 20 // tokens
	maxSeconds   = 9e9     // of a numeric time: what nanoseconds in 64 bits hold
)

// isLog tells the two formats apart: no line of a trace has this key, and each of a log does.
func isLog(text []byte) bool { return bytes.Contains(text, []byte(`"input_tokens"`)) }

// logReader keeps what the lines of a log have in common.
type logReader struct {
	lines     int
	start     time.Duration // the first line's time, since 1970 or since whatever the log counts from
	clock     bool          // times are of the clock, RFC 3339
	blockSize int           // of the lines so far that have one; 0: none
}

// parse reads one line: a JSON object with time, input_tokens and output_tokens, and if it likes blocks with block_size, session
// and model. It returns the reason if the line is refused.
func (l *logReader) parse(text []byte) (Request, string) {
	p := logLine{lineParser: lineParser{text: text}}
	if ok := p.object(p.field); !ok {
		return Request{}, p.reason
	}
	r := &p.req
	switch {
	case p.saw&sawNeeded != sawNeeded:
		return Request{}, "missing key: time, input_tokens and output_tokens are all needed"
	case r.InputTokens < 1 || r.OutputTokens < 1:
		return Request{}, "input_tokens and output_tokens must be at least 1"
	case p.saw&sawLogBlocks != 0 && p.saw&sawBlockSize == 0:
		return Request{}, "missing key: blocks need a block_size"
	case l.lines > 0 && p.clock != l.clock:
		return Request{}, "time: numbers and dates in one file"
	case r.BlockSize > 0 && l.blockSize > 0 && r.BlockSize != l.blockSize:
		return Request{}, fmt.Sprintf("block_size: %d, but a line before has %d", r.BlockSize, l.blockSize)
	}
	if r.BlockSize > 0 {
		if most := (r.InputTokens + r.BlockSize - 1) / r.BlockSize; len(r.Blocks) > most {
			return Request{}, fmt.Sprintf("blocks: %d, but input_tokens %d has no more than %d of %d tokens", len(r.Blocks), r.InputTokens, most, r.BlockSize)
		}
	}
	start := l.start
	if l.lines == 0 {
		start = p.stamp
	}
	r.Arrival = p.stamp - start
	switch {
	case r.Arrival < 0:
		return Request{}, "time: before that of the first line; sort the file by time"
	case r.Arrival > maxArrival*time.Millisecond:
		return Request{}, "time: more than a year behind the first line"
	}
	l.start, l.clock = start, p.clock
	if r.BlockSize > 0 {
		l.blockSize = r.BlockSize
	}
	l.lines++
	return *r, ""
}

// logLine is a cursor over one line of a log.
type logLine struct {
	lineParser
	req   Request
	stamp time.Duration // the time as the log counts it
	clock bool
}

func (p *logLine) field(key string) bool {
	bit, known := map[string]int{
		"time": sawTime, "input_tokens": sawInputTokens, "output_tokens": sawOutputTokens, "blocks": sawLogBlocks,
		"block_size": sawBlockSize, "session": sawSession, "model": sawModel,
	}[key]
	if !known {
		return p.fail("unknown key %q", key)
	}
	if !p.mark(key, bit) {
		return false
	}
	var n uint64
	var ok bool
	switch bit {
	case sawTime:
		ok = p.time()
	case sawInputTokens:
		n, ok = p.number(key, maxTokens)
		p.req.InputTokens = int(n)
	case sawOutputTokens:
		n, ok = p.number(key, maxTokens)
		p.req.OutputTokens = int(n)
	case sawLogBlocks:
		ok = p.names(key)
	case sawBlockSize:
		if n, ok = p.number(key, maxBlockSize); ok && n == 0 {
			return p.fail("block_size: must be at least 1")
		}
		p.req.BlockSize = int(n)
	case sawSession:
		p.req.Session, ok = p.name(key)
	case sawModel:
		p.req.Model, ok = p.name(key)
	}
	return ok
}

// time reads seconds with up to nine decimals, or a date of RFC 3339.
func (p *logLine) time() bool {
	if p.skip(); p.at < len(p.text) && p.text[p.at] == '"' {
		s, ok := p.name("time")
		if !ok {
			return false
		}
		t, err := time.Parse(time.RFC3339Nano, s)
		if err != nil || t.Year() < 1970 || t.Year() > 2200 {
			return p.fail("time: %q is no date of RFC 3339 from 1970 to 2200", s)
		}
		p.stamp, p.clock = time.Duration(t.UnixNano()), true
		return true
	}
	whole, ok := p.number("time", maxSeconds)
	if !ok {
		if strings.HasPrefix(p.reason, "time: over") {
			p.reason += " seconds; divide milliseconds by 1000"
		}
		return false
	}
	p.stamp = time.Duration(whole) * time.Second
	if p.at == len(p.text) || p.text[p.at] != '.' {
		return true
	}
	digits := 0
	for p.at++; p.at < len(p.text) && p.text[p.at] >= '0' && p.text[p.at] <= '9'; p.at++ {
		if digits++; digits > 9 {
			return p.fail("time: more than nine decimals")
		}
		unit := time.Second
		for range digits {
			unit /= 10
		}
		p.stamp += time.Duration(p.text[p.at]-'0') * unit
	}
	return digits > 0 || p.fail("time: a point without decimals")
}

// names reads blocks: whole numbers, or strings such as hashes in hexadecimal, which are hashed in turn.
func (p *logLine) names(key string) bool {
	if !p.want('[') {
		return false
	}
	if p.next(']') {
		return true
	}
	for {
		var id uint64
		var ok bool
		if p.skip(); p.at < len(p.text) && p.text[p.at] == '"' {
			var s string
			s, ok = p.name(key)
			h := fnv.New64a()
			h.Write([]byte(s))
			id = h.Sum64()
		} else {
			id, ok = p.number(key, 1<<64-1)
		}
		if !ok {
			return false
		}
		p.req.Blocks = append(p.req.Blocks, id)
		if p.next(',') {
			continue
		}
		return p.want(']')
	}
}

// name reads a string of 1 to maxName bytes of UTF-8.
func (p *logLine) name(key string) (string, bool) {
	if !p.want('"') {
		return "", false
	}
	start := p.at - 1
	for ; p.at < len(p.text) && p.text[p.at] != '"'; p.at++ {
		if p.text[p.at] == '\\' {
			p.at++
		}
	}
	if p.at >= len(p.text) {
		return "", p.fail("%s: string without an end", key)
	}
	p.at++
	var s string
	// encoding/json puts U+FFFD for what is no UTF-8, and so would join names that differ.
	if raw := p.text[start:p.at]; !utf8.Valid(raw) || json.Unmarshal(raw, &s) != nil {
		return "", p.fail("%s: not a string of UTF-8", key)
	}
	if len(s) == 0 || len(s) > maxName {
		return "", p.fail("%s: %d bytes, want 1 to %d", key, len(s), maxName)
	}
	return s, true
}
