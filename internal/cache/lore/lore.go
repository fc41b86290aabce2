// Package lore finds out which tokens are in blocks that an engine of SGLang's has published without them, from the KV events that the engine publishes for routers.
//
// SGLang names a page of its storage, and so a block, by
//
//	key  = SHA-256(the key before, 32 bytes; or the seed, if the chain has one; or nothing ‖ the page's tokens, u32 little endian each)
//	seed = SHA-256("sglang-cache-namespace-v1" ‖ part(extra key) ‖ part(salt)), part = 00, or 01 ‖ u64 length, little endian ‖ the text
//
// and in its events by 64 bits: of the key, or, where there is a salt or an adapter, of something else that it hashes. An event says this name, the tokens, the salt, the adapter
// and the name of the page before. So a [Book] keeps, by these names, which it takes for aliases that mean nothing, the keys of the pages that it was told of; and works out the
// key of the next one from the tokens and the key before.
//
// It promises:
//
//   - What it says of a key is true: the page with this key holds these tokens behind those of the page before, since the key is their hash. Events that lie, and aliases that
//     two pages have, make keys that no page has, or are the last one's; they never make a wrong lesson. An adapter's name is no part of the key: it is who
//     listed the adapters who says that what is hashed for it is its own.
//   - It is bounded: see Options.Most.
//   - What it cannot know it counts, by cause.
//
// What no event says, and so nobody can learn: a caller's extra key. Pages with one have other keys than the ones that are worked out here.
//
// The package is pure. A Book belongs to one goroutine at a time.
package lore

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// Key is a page's key.
type Key = [sha256.Size]byte

// Options are a Book's.
type Options struct {
	// Model is the base model's id by which blocks are named.
	Model string
	// BlockTokens is the tokens of a page, above 0.
	BlockTokens int
	// Adapters are those that events may name. One without an Extra, or with another one's, is none: its pages' keys would be the base model's, or the other one's.
	Adapters []Adapter
	// Most is how many pages are remembered; 0: 131,072, of 250 bytes each. Those that were neither told of nor followed by one for the longest time are forgotten, in
	// halves.
	Most int
}

// Adapter is a LoRA adapter: the name that events have, and what SGLang puts into the seed for it.
type Adapter struct{ Name, Extra string }

// Lesson is a page whose tokens are known: its key, our name of it, and that of the page before; zero if it begins a prompt.
type Lesson struct {
	Key          Key
	Parent, Name chain.Key
}

// Counts are of pages that events told of, since the beginning.
type Counts struct {
	// Learned is how many became lessons, again or for the first time.
	Learned uint64
	// Orphans followed a page that is not known: what told of it came before we listened, was lost, or was forgotten.
	Orphans uint64
	// Strange have an adapter that nobody has told of, no tokens, or not as many as a page has.
	Strange uint64
}

// Book is what was learned.
type Book struct {
	opt        Options
	extra      map[string]string // by adapter
	young, old shelf
	count      Counts
	bytes      []byte // scratch
}

// shelf is the newer or the older half. Of two pages with one alias it has the last: see keep.
type shelf struct {
	pages map[prefix.Hash]Lesson // by alias
	alias map[Key]prefix.Hash
}

func newShelf() shelf { return shelf{map[prefix.Hash]Lesson{}, map[Key]prefix.Hash{}} }

// New returns an empty one.
func New(o Options) *Book {
	if o.Most == 0 {
		o.Most = 1 << 17
	}
	b := &Book{opt: o, extra: map[string]string{}, young: newShelf(), old: newShelf()}
	of := map[string]string{} // names, by extra; "": several
	for _, a := range o.Adapters {
		if had, again := of[a.Extra]; again && had != a.Name {
			a.Name = ""
		}
		of[a.Extra] = a.Name
	}
	for extra, name := range of {
		if extra != "" && name != "" {
			b.extra[name] = extra
		}
	}
	return b
}

// Counts returns the counts.
func (b *Book) Counts() Counts { return b.count }

// Len returns how many pages are remembered; one that is in both halves counts twice.
func (b *Book) Len() int { return len(b.young.pages) + len(b.old.pages) }

// Of returns what is known of a page.
func (b *Book) Of(k Key) (Lesson, bool) {
	for _, s := range [...]shelf{b.young, b.old} {
		if alias, known := s.alias[k]; known {
			return s.pages[alias], true
		}
	}
	return Lesson{}, false
}

// Apply takes an event, and appends a lesson for each page that it tells of and whose key can be worked out.
func (b *Book) Apply(e *prefix.Event, out []Lesson) []Lesson {
	if e.Kind != prefix.Stored || e.Group != 0 || len(e.Hashes) == 0 {
		return out // what the engine has dropped the Manager may still have
	}
	n := b.opt.BlockTokens
	if e.BlockSize != n || len(e.Tokens) != len(e.Hashes)*n || e.Extras != nil {
		b.count.Strange += uint64(len(e.Hashes))
		return out
	}
	before, last, ok := b.begin(e)
	if !ok {
		return out
	}
	for i, alias := range e.Hashes {
		tokens := e.Tokens[i*n : (i+1)*n]
		l := Lesson{Key: b.key(before, tokens), Name: last.Next(tokens, nil)}
		if i > 0 || e.HasParent {
			l.Parent = last
		}
		b.keep(alias, l)
		out = append(out, l)
		before, last = l.Key[:], l.Name
	}
	b.count.Learned += uint64(len(e.Hashes))
	return out
}

// begin is what the first page of an event follows: the bytes before its tokens, and the name.
func (b *Book) begin(e *prefix.Event) (before []byte, name chain.Key, ok bool) {
	if e.HasParent {
		l, known := b.recall(e.Parent)
		if !known {
			b.count.Orphans += uint64(len(e.Hashes))
			return nil, name, false
		}
		return l.Key[:], l.Name, true
	}
	extra, known := b.extra[e.LoRA]
	if e.LoRA != "" && !known {
		b.count.Strange += uint64(len(e.Hashes))
		return nil, name, false
	}
	return Seed(extra, e.Salt), chain.Root{Model: b.opt.Model, BlockSize: b.opt.BlockTokens, LoRA: e.LoRA, Salt: e.Salt}.Key(), true
}

// Seed is what the keys of a chain begin with. Empty texts are none, as SGLang has them from callers who give none.
func Seed(extra, salt string) []byte {
	if extra == "" && salt == "" {
		return nil
	}
	b := []byte("sglang-cache-namespace-v1")
	for _, part := range [...]string{extra, salt} {
		if part == "" {
			b = append(b, 0)
			continue
		}
		b = append(binary.LittleEndian.AppendUint64(append(b, 1), uint64(len(part))), part...)
	}
	sum := sha256.Sum256(b)
	return sum[:]
}

func (b *Book) key(before []byte, tokens []uint32) Key {
	b.bytes = append(b.bytes[:0], before...)
	for _, t := range tokens {
		b.bytes = binary.LittleEndian.AppendUint32(b.bytes, t)
	}
	return sha256.Sum256(b.bytes)
}

// recall finds a page that another one follows: it is not forgotten soon, then.
func (b *Book) recall(alias prefix.Hash) (Lesson, bool) {
	if l, known := b.young.pages[alias]; known {
		return l, true
	}
	l, known := b.old.pages[alias]
	if known {
		b.keep(alias, l)
	}
	return l, known
}

func (b *Book) keep(alias prefix.Hash, l Lesson) {
	if _, there := b.young.pages[alias]; !there && len(b.young.pages) >= max(1, b.opt.Most/2) {
		b.old, b.young = b.young, newShelf()
	}
	if had := b.young.pages[alias]; had.Key != l.Key {
		delete(b.young.alias, had.Key)
	}
	b.young.pages[alias], b.young.alias[l.Key] = l, alias
}
