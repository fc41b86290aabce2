package managerwire

import (
	"encoding/binary"
	"math"

	"github.com/perigee-llm/perigee/internal/chain"
)

// AppendBatch appends a batch: [time, [event, …], nil, {"epoch": …, "manager": …}]. Each event is a map with "type" first and its keys in
// the order of docs/manager-events.md.
//
// The writers below are msgpack's, of the library's code nine short functions: the library itself formats text and so reaches os, which
// a package that both halves build on may not.
func AppendBatch(b []byte, h Head, events []Event) []byte {
	b = float(append(b, 0x94), h.Time)
	b = array(b, len(events))
	for i := range events {
		b = appendEvent(b, &events[i])
	}
	b = append(b, 0xc0, 0x82)
	b = number(text(b, "epoch"), h.Epoch)
	return text(text(b, "manager"), h.Manager)
}

func appendEvent(b []byte, e *Event) []byte {
	b = append(b, 0x80)
	at := len(b) - 1
	n := 0 // keys
	key := func(name string) { b, n = text(b, name), n+1 }
	namespace := func() { key("namespace"); b = bin(b, e.Namespace[:]) }
	engine := func() { key("engine"); b = text(b, e.Engine) }
	instance := func() { key("instance"); b = number(b, e.Instance) }

	key("type")
	b = text(b, e.Kind.String())
	switch e.Kind {
	case BlockStored:
		namespace()
		key("model")
		b = text(b, e.Model)
		key("block_size")
		b = number(b, uint64(e.BlockSize))
		key("chain")
		b = names(b, e.Chain)
		key("parent_chain")
		b = parent(b, e.Parent)
		if e.Hashes != nil {
			key("block_hashes")
			b = hashes(b, e.Hashes)
		}
		key("medium")
		b = text(b, e.Medium.String())
	case BlockRemoved:
		namespace()
		key("chain")
		b = names(b, e.Chain)
		if e.Medium != NoMedium {
			key("medium")
			b = text(b, e.Medium.String())
		}
	case AllBlocksCleared:
		if e.Namespace != (Namespace{}) {
			namespace()
		}
	case Attached:
		engine()
		key("rank")
		b = rank(b, e.Rank)
		namespace()
		instance()
		if e.Media != AllMedia {
			key("mediums")
			b = media(b, e.Media)
		}
	case Detached:
		engine()
		instance()
	case Cost:
		engine()
		instance()
		key("medium")
		b = text(b, e.Medium.String())
		key("fixed_seconds")
		b = float(b, e.Fixed)
		key("seconds_per_token")
		b = float(b, e.PerToken)
		key("samples")
		b = number(b, uint64(e.Samples))
		key("error_share")
		b = float(b, e.Error)
		key("age_seconds")
		b = float(b, e.Age)
	}
	b[at] |= byte(n) // at most 9: a short map's 15 are enough
	return b
}

func names(b []byte, keys []chain.Key) []byte {
	b = array(b, len(keys))
	for _, k := range keys {
		raw := k.Bytes()
		b = bin(b, raw[:])
	}
	return b
}

func parent(b []byte, k chain.Key) []byte {
	if k.IsZero() {
		return append(b, 0xc0)
	}
	raw := k.Bytes()
	return bin(b, raw[:])
}

func hashes(b []byte, all [][]byte) []byte {
	b = array(b, len(all))
	for _, h := range all {
		b = bin(b, h)
	}
	return b
}

func rank(b []byte, r int32) []byte {
	if r < 0 {
		return append(b, 0xc0)
	}
	return number(b, uint64(r))
}

func media(b []byte, s Media) []byte {
	at := len(b)
	b = append(b, 0x90)
	for m := CPU; m <= External; m++ {
		if s.Has(m) {
			b = text(b, m.String())
			b[at]++
		}
	}
	return b
}

func float(b []byte, v float64) []byte {
	return binary.BigEndian.AppendUint64(append(b, 0xcb), math.Float64bits(v))
}

func number(b []byte, v uint64) []byte {
	switch {
	case v < 0x80:
		return append(b, byte(v))
	case v <= math.MaxUint8:
		return append(b, 0xcc, byte(v))
	case v <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(v))
	case v <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xcf), v)
}

// sized writes a length behind the first of three types that follow each other, for 8, 16 and 32 bits.
func sized(b []byte, first byte, n int) []byte {
	switch {
	case n <= math.MaxUint8:
		return append(b, first, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, first+1), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, first+2), uint32(n))
}

func text(b []byte, s string) []byte {
	if len(s) < 32 {
		b = append(b, 0xa0|byte(len(s)))
	} else {
		b = sized(b, 0xd9, len(s))
	}
	return append(b, s...)
}

func bin(b, s []byte) []byte { return append(sized(b, 0xc4, len(s)), s...) }

func array(b []byte, n int) []byte {
	switch {
	case n < 16:
		return append(b, 0x90|byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, 0xdc), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, 0xdd), uint32(n))
}
