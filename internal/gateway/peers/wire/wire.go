package wire

import (
	"encoding/binary"
	"errors"
	"math"
	"time"
)

// Topic is what each message begins with: the magic and the version.
const Topic = "PGPR\x01"

// Bounds of a message, for those who write and those who read.
const (
	// MaxRecords is what a gateway has in prefill at most, as far as others are told: 64 engines with a thousand waiting each.
	MaxRecords = 1 << 16
	MaxEngines = 4096
	MaxURL     = 512
	// MaxBytes has room for all records and for URLs of half the longest.
	MaxBytes = 4 << 20
)

// Kind is what a message is.
type Kind uint8

// The kinds.
const (
	News       Kind = 1
	Everything Kind = 2
)

// What is what happened to a prompt.
type What uint8

// What happens.
const (
	Sent       What = 1
	SentUnseen What = 2
	Prefilled  What = 3
	GivenUp    What = 4
)

// Record is one prompt.
type Record struct {
	What   What
	Engine int // its place in the message's Engines
	ID     uint64
	Age    time.Duration
	Tokens int64
}

// Message is one message. Its zero value can be read into, again and again.
type Message struct {
	Kind        Kind
	Incarnation uint64
	Number      uint64
	Engines     [][]byte // base URLs; after Read they are part of the bytes that were read
	Records     []Record
}

// Errors of Read.
var (
	ErrVersion   = errors.New("not a message of this version")
	ErrTruncated = errors.New("the message ends too early")
	ErrTrailing  = errors.New("something stands behind the message")
	ErrTooLarge  = errors.New("a count or length is beyond its bound")
	ErrValue     = errors.New("a value means nothing")
)

// Append appends m to b. It does not check the bounds.
func Append(b []byte, m *Message) []byte {
	b = append(b, Topic...)
	b = append(b, byte(m.Kind))
	b = binary.BigEndian.AppendUint64(b, m.Incarnation)
	b = binary.BigEndian.AppendUint64(b, m.Number)
	b = binary.AppendUvarint(b, uint64(len(m.Engines)))
	for _, e := range m.Engines {
		b = binary.AppendUvarint(b, uint64(len(e)))
		b = append(b, e...)
	}
	b = binary.AppendUvarint(b, uint64(len(m.Records)))
	for i := range m.Records {
		r := &m.Records[i]
		b = append(b, byte(r.What))
		b = binary.AppendUvarint(b, uint64(r.Engine))
		b = binary.AppendUvarint(b, r.ID)
		b = binary.AppendUvarint(b, uint64(max(r.Age.Microseconds(), 0)))
		if r.What <= SentUnseen {
			b = binary.AppendUvarint(b, uint64(max(r.Tokens, 0)))
		}
	}
	return b
}

// Read reads b into m, whose memory it uses again. After an error m means nothing.
func Read(b []byte, m *Message) error {
	if len(b) > MaxBytes {
		return ErrTooLarge
	}
	if len(b) < len(Topic) || string(b[:len(Topic)]) != Topic {
		return ErrVersion
	}
	r := reader{rest: b[len(Topic):]}
	m.Kind = Kind(r.octet())
	m.Incarnation, m.Number = r.fixed(), r.fixed()
	if r.err == nil && (m.Kind != News && m.Kind != Everything || m.Number == 0) {
		return ErrValue
	}
	m.Engines, m.Records = m.Engines[:0], m.Records[:0]
	for range r.number(MaxEngines) {
		m.Engines = append(m.Engines, r.take(int(r.number(MaxURL))))
		if r.err != nil {
			return r.err
		}
	}
	for range r.number(MaxRecords) {
		m.Records = append(m.Records, r.record(m))
		if r.err != nil {
			return r.err
		}
	}
	if r.err == nil && len(r.rest) > 0 {
		return ErrTrailing
	}
	return r.err
}

// reader takes values off its rest until one fails; then all are zero.
type reader struct {
	rest []byte
	err  error
}

func (r *reader) record(m *Message) Record {
	x := Record{What: What(r.octet())}
	x.Engine = int(r.number(MaxEngines))
	x.ID = r.number(math.MaxInt64)
	x.Age = time.Duration(r.number(math.MaxInt64/1000)) * time.Microsecond
	if x.What <= SentUnseen {
		x.Tokens = int64(r.number(math.MaxInt64))
	}
	bad := x.What < Sent || x.What > GivenUp || x.Engine >= len(m.Engines) || (m.Kind == Everything && x.What > SentUnseen)
	if r.err == nil && bad {
		r.err = ErrValue
	}
	return x
}

func (r *reader) take(n int) []byte {
	if r.err != nil || n > len(r.rest) {
		r.fail(ErrTruncated)
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) octet() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) fixed() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (r *reader) number(most uint64) uint64 {
	if r.err != nil {
		return 0
	}
	v, n := binary.Uvarint(r.rest)
	switch {
	case n == 0:
		r.fail(ErrTruncated)
		return 0
	case n < 0 || v > most:
		r.fail(ErrTooLarge)
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}
