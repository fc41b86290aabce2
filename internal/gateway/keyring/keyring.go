// Package keyring knows the API keys by which clients may use the gateway: it finds the key that was presented, and nothing else.
//
// It promises that no key is kept, only its SHA-256; that looking one up tells by its duration nothing that helps to guess
// one; and that nothing of a key can be had back from a [Ring]. A Ring never changes; it may be used at once.
package keyring

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"slices"
)

// MaxLength is the longest key, in bytes. Longer ones are not looked up: hashing them would be work that anybody can cause.
const MaxLength = 1024

// Digest is the SHA-256 of a key. A plain hash is enough, and a slow one would cost every request: keys are random and
// long, not chosen by people.
type Digest [sha256.Size]byte

// DigestOf returns the digest of a key of at most [MaxLength] bytes.
func DigestOf(key string) Digest {
	var b [MaxLength]byte // a conversion would put each key on the heap
	return sha256.Sum256(b[:copy(b[:], key)])
}

// Key is one key, without the key.
type Key struct {
	// Name is what logs and metrics call it.
	Name string
	// Digest identifies it.
	Digest Digest
	// Models are the names of the models that it may use; nil: all.
	Models []string
}

// Allows tells whether the key may use a model that has one of the names.
func (k *Key) Allows(names ...string) bool {
	return k.Models == nil || slices.ContainsFunc(names, func(n string) bool { return slices.Contains(k.Models, n) })
}

// Ring is a set of keys. The zero value has none.
type Ring struct {
	keys     []*Key // in the order in which they were given
	byDigest map[Digest]*Key
}

// ErrTwice means that two keys have one name or one digest.
var ErrTwice = errors.New("a key is there twice")

// New returns a ring of the keys. Names and digests must differ, else it returns [ErrTwice].
func New(keys []Key) (*Ring, error) {
	r := &Ring{byDigest: make(map[Digest]*Key, len(keys))}
	names := make(map[string]bool, len(keys))
	for i := range keys {
		k := keys[i]
		if names[k.Name] || r.byDigest[k.Digest] != nil {
			return nil, ErrTwice
		}
		names[k.Name] = true
		r.byDigest[k.Digest] = &k
		r.keys = append(r.keys, &k)
	}
	return r, nil
}

// Keys returns the keys, in the order in which they were given. They must not be changed.
func (r *Ring) Keys() []*Key { return r.keys }

// Find returns the key that was presented, or nil.
//
// The look-up in the map is not of constant time, and need not be: what its duration depends on is the digest of what was
// presented. Whoever learns that this digest begins like that of a key knows nothing of the key's own beginning, and
// cannot choose a text by its digest. The comparison that decides is of constant time, so that the promise does not hang
// on how maps compare.
func (r *Ring) Find(presented string) *Key {
	if len(presented) == 0 || len(presented) > MaxLength {
		return nil
	}
	digest := DigestOf(presented)
	k := r.byDigest[digest]
	if k == nil || subtle.ConstantTimeCompare(k.Digest[:], digest[:]) != 1 {
		return nil
	}
	return k
}
