package sse

import "bytes"

// MaxEvent is the longest event that is read, in bytes of its data lines joined. The events that matter are
// short: a usage chunk is below 1 KiB, a chunk with the 20 likeliest tokens about 4 KiB. It is not larger
// because an engine may leave an event unfinished on each of thousands of idle streams.
const MaxEvent = 16 << 10

// maxCarried is the most that a Sniffer keeps: an event and the field name of its last line.
const maxCarried = MaxEvent + len("data: ")

// Ending says how a stream ended, once no more of it will come.
type Ending uint8

// The endings.
const (
	// EndUnknown: nothing in the stream says how such a stream ends: no event, or none of OpenAI's kind.
	EndUnknown Ending = iota
	// EndClean: [DONE] was there. An event with it that lacks only its empty line counts, because nothing
	// that a client needs can be missing behind it.
	EndClean
	// EndTruncated: OpenAI's chunks, or the beginning of an event, without [DONE].
	EndTruncated
)

// Sniffer reads one stream of server-sent events while it passes by. The zero value is ready.
type Sniffer struct {
	// buf holds what an earlier Write left unfinished: buf[:n] is the event's data lines, joined with \n;
	// behind it is the beginning of the current line. A line and an event that lie in one chunk are read in
	// place and never come here.
	buf []byte
	n   int
	// alias is the event's only data line, inside of the chunk that is being written.
	alias   []byte
	aliased bool

	hasData bool // the event has a data line
	over    bool // the event is longer than MaxEvent
	midLine bool // the current line began in an earlier Write
	skip    bool // the rest of the current line does not matter
	skipLF  bool // the last chunk ended with \r, so a \n would belong to it

	found findings
}

// Write reads the next bytes of the stream. It neither keeps nor changes p.
func (s *Sniffer) Write(p []byte) {
	if s.skipLF && len(p) > 0 {
		s.skipLF = false
		if p[0] == '\n' {
			p = p[1:]
		}
	}
	l := lines{p: p, lf: -1, cr: -1}
	for {
		line, ok := l.next()
		if !ok {
			s.keepAlias()
			if len(line) > 0 {
				s.begin(line)
			}
			break
		}
		if s.midLine {
			s.begin(line)
			s.endCarried()
		} else {
			s.line(line)
		}
	}
	s.skipLF = s.skipLF || l.endsWithCR
}

// line takes a line that lies in the chunk as a whole.
func (s *Sniffer) line(line []byte) {
	if len(line) == 0 {
		s.dispatch()
		return
	}
	value, ok := dataValue(line)
	switch {
	case !ok || s.over:
	case s.dataLen()+len(value) > MaxEvent:
		s.drop()
	case !s.hasData:
		s.alias, s.aliased, s.hasData = value, true, true
	default:
		s.keepAlias()
		s.grow(1 + len(value))
		s.buf = append(append(s.buf, '\n'), value...)
		s.n = len(s.buf)
	}
}

// begin takes a part of a line, of which another part is in another chunk.
func (s *Sniffer) begin(part []byte) {
	s.midLine = true
	if s.skip || s.over {
		s.skip = true
		return
	}
	// First the field's name, which says whether the rest is wanted.
	if head := len("data: ") - (len(s.buf) - s.n); head > 0 {
		head = min(head, len(part))
		s.grow(head)
		s.buf = append(s.buf, part[:head]...)
		part = part[head:]
	}
	line := s.buf[s.n:]
	name := min(len(line), len("data:"))
	if string(line[:name]) != "data:"[:name] {
		s.skip = true
		s.buf = s.buf[:s.n]
		return
	}
	if name < len("data:") {
		return
	}
	if value, _ := dataValue(line); s.dataLen()+len(value)+len(part) > MaxEvent {
		s.drop()
		s.skip = true
		return
	}
	s.grow(len(part))
	s.buf = append(s.buf, part...)
}

// endCarried ends a line that came in parts.
func (s *Sniffer) endCarried() {
	s.midLine = false
	if s.skip {
		s.skip = false
		return
	}
	value, ok := dataValue(s.buf[s.n:])
	switch {
	case !ok:
		s.buf = s.buf[:s.n]
		return
	case s.dataLen()+len(value) > MaxEvent:
		s.drop()
		return
	}
	// The value moves down over the field's name, which is longer than the line break.
	if s.hasData {
		s.buf[s.n] = '\n'
		s.n++
	}
	s.n += copy(s.buf[s.n:], value)
	s.buf = s.buf[:s.n]
	s.hasData = true
}

// dispatch ends an event at an empty line. One without data is none.
func (s *Sniffer) dispatch() {
	if !s.hasData {
		return
	}
	switch {
	case s.over:
	case s.aliased:
		s.found.event(s.alias)
	default:
		s.found.event(s.buf[:s.n])
	}
	s.clear()
	s.hasData, s.over = false, false
}

// drop gives up on reading an event that is too long.
func (s *Sniffer) drop() {
	s.clear()
	s.hasData, s.over = true, true
}

func (s *Sniffer) clear() {
	s.buf, s.n = s.buf[:0], 0
	s.alias, s.aliased = nil, false
}

// dataLen is the length of the event's data so far, with the line break before a further line.
func (s *Sniffer) dataLen() int {
	switch {
	case !s.hasData:
		return 0
	case s.aliased:
		return len(s.alias) + 1
	}
	return s.n + 1
}

// keepAlias copies the data that lies in the chunk, because the chunk is about to go.
func (s *Sniffer) keepAlias() {
	if !s.aliased {
		return
	}
	s.grow(len(s.alias))
	s.buf = append(s.buf, s.alias...)
	s.n = len(s.buf)
	s.alias, s.aliased = nil, false
}

// grow makes room for n more bytes, which the callers have checked against the limit; append alone would
// round the last step far above it.
func (s *Sniffer) grow(n int) {
	need := len(s.buf) + n
	if need <= cap(s.buf) {
		return
	}
	const smallest = 512 // most events fit
	grown := make([]byte, len(s.buf), min(max(smallest, 2*cap(s.buf), need), max(maxCarried, need)))
	copy(grown, s.buf)
	s.buf = grown
}

// dataValue returns the value of a data line.
func dataValue(line []byte) ([]byte, bool) {
	const name = "data"
	if len(line) < len(name) || string(line[:len(name)]) != name {
		return nil, false
	}
	if line = line[len(name):]; len(line) == 0 {
		return line, true
	}
	if line[0] != ':' {
		return nil, false
	}
	if line = line[1:]; len(line) > 0 && line[0] == ' ' {
		line = line[1:]
	}
	return line, true
}

// Failed says whether an event was an error: an object with a member error that is not null, or with
// "object":"error".
func (s *Sniffer) Failed() bool { return s.found.failed }

// Usage returns the last usage that the engine reported; all unknown without one.
func (s *Sniffer) Usage() Usage { return s.found.usage }

// End judges the stream as if it ended here, between two Writes.
func (s *Sniffer) End() Ending {
	switch {
	case s.found.done || s.pendingDone():
		return EndClean
	case s.found.openAI || s.found.failed || s.hasData || s.midLine:
		return EndTruncated
	}
	return EndUnknown
}

// pendingDone says whether the event that has begun is [DONE].
func (s *Sniffer) pendingDone() bool {
	switch {
	case s.over || s.skip:
		return false
	case s.hasData && !s.midLine:
		return isDone(s.buf[:s.n])
	case !s.hasData && s.midLine:
		value, ok := dataValue(s.buf[s.n:])
		return ok && isDone(value)
	}
	return false
}

func isDone(data []byte) bool { return string(bytes.TrimSpace(data)) == "[DONE]" }

// lines cuts a chunk at \n, \r\n and \r. It remembers the next \n and \r, so that a chunk with only one of
// them is searched once for the other and not once a line.
type lines struct {
	p          []byte
	i          int
	lf, cr     int // the first of each at or behind i; len(p) when there is none; stale when below i
	endsWithCR bool
}

// next returns the next line without its end, or what is left of the chunk and false.
func (l *lines) next() ([]byte, bool) {
	if l.lf < l.i {
		l.lf = l.find('\n')
	}
	if l.cr < l.i {
		l.cr = l.find('\r')
	}
	end := min(l.lf, l.cr)
	line := l.p[l.i:end]
	if end == len(l.p) {
		return line, false
	}
	l.i = end + 1
	if end == l.cr {
		if l.i == len(l.p) {
			l.endsWithCR = true
		} else if l.p[l.i] == '\n' {
			l.i++
		}
	}
	return line, true
}

func (l *lines) find(c byte) int {
	if i := bytes.IndexByte(l.p[l.i:], c); i >= 0 {
		return l.i + i
	}
	return len(l.p)
}
