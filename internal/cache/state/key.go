package state

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"strconv"
)

// MaxEngineHash bounds an engine's hash: SHA-256 is the longest in use.
const MaxEngineHash = 32

// EngineHash is the name that an engine gives a block, of 1 to MaxEngineHash bytes. Make it with NewEngineHash: the bytes beyond its
// length are zero, so that == compares names. The zero value is no name.
type EngineHash struct {
	size  uint8
	bytes [MaxEngineHash]byte
}

// NewEngineHash copies a hash. It returns ErrInvalid for an empty one and for one that is too long: cut, two blocks could be one.
func NewEngineHash(b []byte) (EngineHash, error) {
	if len(b) == 0 || len(b) > MaxEngineHash {
		return EngineHash{}, fail(ErrInvalid, "a block hash of ", strconv.Itoa(len(b)), " bytes")
	}
	h := EngineHash{size: uint8(len(b))}
	copy(h.bytes[:], b)
	return h, nil
}

// AppendTo appends the hash's bytes.
func (h EngineHash) AppendTo(b []byte) []byte { return append(b, h.bytes[:h.size]...) }

// Len is the number of bytes; 0 for the zero value.
func (h EngineHash) Len() int { return int(h.size) }

// Compare orders hashes by length, then by bytes.
func (h EngineHash) Compare(o EngineHash) int {
	return cmp.Or(cmp.Compare(h.size, o.size), bytes.Compare(h.bytes[:h.size], o.bytes[:o.size]))
}

// String is the hash in hexadecimal.
func (h EngineHash) String() string { return hexText(h.bytes[:h.size]) }

// StateKey names one page: of one group, of one rank (which the namespace holds), for one prefix of tokens (which the engine hash and the
// request stand for). It is 101 bytes; a store of many pages keeps namespaces once and refers to them.
type StateKey struct {
	Namespace NamespaceID
	Group     uint32
	Request   RequestID
	Hash      EngineHash
}

// Compare orders keys by namespace, group, request and hash. Encoded keys have the same order as bytes.
func (k *StateKey) Compare(o *StateKey) int {
	return cmp.Or(
		bytes.Compare(k.Namespace[:], o.Namespace[:]),
		cmp.Compare(k.Group, o.Group),
		bytes.Compare(k.Request[:], o.Request[:]),
		k.Hash.Compare(o.Hash),
	)
}

// An encoded key, version 1, integers big endian:
//
//	byte  0       version: 1
//	bytes 1–32    namespace
//	bytes 33–36   u32 group
//	bytes 37–52   request
//	byte  53      length of the hash, 1 to 32
//	then          the hash
const (
	keyVersion = 1
	keyFixed   = 54
	// MaxKey is the length of the longest encoded key in bytes.
	MaxKey = keyFixed + MaxEngineHash
)

// AppendTo appends the encoded key. The key must have a namespace and a hash; DecodeKey refuses others.
func (k *StateKey) AppendTo(b []byte) []byte {
	b = append(b, keyVersion)
	b = append(b, k.Namespace[:]...)
	b = binary.BigEndian.AppendUint32(b, k.Group)
	b = append(b, k.Request[:]...)
	b = append(b, k.Hash.size)
	return k.Hash.AppendTo(b)
}

// DecodeKey reads an encoded key, and all of b. Errors are ErrVersion and ErrEncoding.
func DecodeKey(b []byte) (StateKey, error) {
	if len(b) > 0 && b[0] != keyVersion {
		return StateKey{}, fail(ErrVersion, "key version ", strconv.Itoa(int(b[0])))
	}
	if len(b) < keyFixed || len(b) != keyFixed+int(b[keyFixed-1]) {
		return StateKey{}, fail(ErrEncoding, "a key of ", strconv.Itoa(len(b)), " bytes")
	}
	k := StateKey{
		Namespace: NamespaceID(b[1:33]),
		Group:     binary.BigEndian.Uint32(b[33:37]),
		Request:   RequestID(b[37:53]),
	}
	var err error
	if k.Hash, err = NewEngineHash(b[keyFixed:]); err != nil {
		return StateKey{}, fail(ErrEncoding, err.Error())
	}
	if k.Namespace.IsZero() || k.Group >= MaxGroups {
		return StateKey{}, fail(ErrEncoding, "a key without a namespace, or of a group that cannot be")
	}
	return k, nil
}
