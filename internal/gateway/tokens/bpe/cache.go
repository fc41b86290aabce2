package bpe

import (
	"hash/maphash"
	"sync"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// A Cache remembers the ids of stretches of text. A conversation that grows is encoded up to its last stretch by
// looking up what was encoded before, at the speed of comparing and copying; so is a system prompt that many share.
//
// It is exact: a stretch ends only where the tokenizer cannot look across (see cutRule), and is found by comparing its
// whole text. One cache may serve several tokenizers and any number of goroutines at once.
type Cache struct {
	seed   maphash.Seed
	shards [cacheShards]cacheShard
}

// Sixteen shards: two calls that run at once rarely want the same lock, which is held for less than a microsecond.
const cacheShards = 16

// chunkBytes is the shortest stretch. A shorter one would cost more to look up than it saves (a look-up takes as long as
// encoding some 20 bytes), a longer one leaves more to encode after the last that is known: 512 bytes on average of the
// 30,000 of 8,192 tokens.
const chunkBytes = 1 << 10

// chunkSearch is how far a place for a cut is looked for. Text without one, as in base 64, is not remembered.
const chunkSearch = 4 << 10

type chunkKey struct {
	t    *Tokenizer
	hash uint64
}

type chunk struct {
	key          chunkKey
	text         string
	ids          []uint32
	newer, older *chunk // a ring through the shard's root, the newest after it
}

// chunkOverhead is what a stretch costs beside its text and ids: its struct, its place in the map, and rounding.
const chunkOverhead = 256

func (e *chunk) bytes() int { return len(e.text) + 4*cap(e.ids) + chunkOverhead }

type cacheShard struct {
	sync.Mutex
	chunks map[chunkKey]*chunk
	root   chunk
	bytes  int
	limit  int
}

// NewCache returns a cache that holds at most limit bytes, the least recently used stretches going first. A token takes
// about 9 bytes in it: 64 MiB remember about 7 million tokens, 900 conversations of 8,192. The limit is shared out to
// parts of a sixteenth that fill up separately.
func NewCache(limit int) *Cache {
	c := &Cache{seed: maphash.MakeSeed()}
	for i := range c.shards {
		s := &c.shards[i]
		s.chunks, s.limit = map[chunkKey]*chunk{}, limit/cacheShards
		s.root.newer, s.root.older = &s.root, &s.root
	}
	return c
}

func (c *Cache) hash(text string) uint64 { return maphash.String(c.seed, text) }

// Bytes returns how much memory the stretches take. It never exceeds the limit.
func (c *Cache) Bytes() int {
	n := 0
	for i := range c.shards {
		s := &c.shards[i]
		s.Lock()
		n += s.bytes
		s.Unlock()
	}
	return n
}

// get appends the ids of text. false: it is not known.
func (c *Cache) get(dst []uint32, key chunkKey, text string) ([]uint32, bool) {
	s := &c.shards[key.hash%cacheShards]
	s.Lock()
	e := s.chunks[key]
	if e != nil && s.root.newer != e {
		e.unlink()
		s.pushFront(e)
	}
	s.Unlock()
	// A stretch does not change once it is there, and stays alive while we hold it.
	if e == nil || e.text != text {
		return dst, false
	}
	return append(dst, e.ids...), true
}

func (c *Cache) put(key chunkKey, text string, ids []uint32) {
	e := &chunk{key: key, text: string([]byte(text)), ids: append(make([]uint32, 0, len(ids)), ids...)}
	s := &c.shards[key.hash%cacheShards]
	if e.bytes() > s.limit {
		return
	}
	s.Lock()
	defer s.Unlock()
	if old := s.chunks[key]; old != nil { // another call was faster, or the hash is the same: the newer stays
		s.remove(old)
	}
	for s.bytes+e.bytes() > s.limit {
		s.remove(s.root.older)
	}
	s.chunks[key] = e
	s.pushFront(e)
	s.bytes += e.bytes()
}

func (s *cacheShard) remove(e *chunk) {
	e.unlink()
	delete(s.chunks, e.key)
	s.bytes -= e.bytes()
}

func (s *cacheShard) pushFront(e *chunk) {
	e.newer, e.older = &s.root, s.root.newer
	e.older.older, s.root.newer = e, e
}

func (e *chunk) unlink() { e.newer.older, e.older.newer = e.older, e.newer }

// encodeCached encodes the stretches at the start of text, through the cache, and returns what is left of it.
func (t *Tokenizer) encodeCached(dst []uint32, text string, s *scratch, c *Cache) ([]uint32, string) {
	for len(text) > chunkBytes {
		n := t.cuts.find(t, text, chunkBytes, min(len(text), chunkBytes+chunkSearch))
		if n == 0 {
			// No place to cut: this much goes unremembered with the rest of the text.
			break
		}
		part := text[:n]
		key := chunkKey{t, c.hash(part)}
		var known bool
		if dst, known = c.get(dst, key, part); !known {
			from := len(dst)
			if dst = t.encode(dst, part, s); s.tooLong {
				break
			}
			c.put(key, part, dst[from:])
		}
		text = text[n:]
	}
	return dst, text
}

// A cutRule says where a text can be cut in two that are encoded separately, with the same ids as the whole.
//
// A place is good if before it stands a letter and after it one of a set of ASCII characters:
//   - In every pattern that we know, a run of letters goes on as far as it can and nothing joins a letter to a sign or
//     white space after it, but the apostrophe of a contraction; and no pattern looks back. So a word ends there.
//   - Without a pattern, no merge may join the two characters.
//   - An added token cannot lie across the place: the set leaves out what occurs in one after its first byte, white
//     space if a token strips it on its right, and what single_word would look at.
//   - An ASCII character does not combine with what is before it, and the letter is one that stays a letter in normal
//     form.
//
// The property test holds it against encoding without cuts, for every kind of tokenizer and at every place.
type cutRule struct {
	before [128]bool // the characters that a cut may come before
	nfc    bool
	cross  *crossings
	spaces rune // what a space is replaced by, before merges see it
}

func newCutRule(t *Tokenizer) (r cutRule) {
	r.spaces, r.cross = ' ', t.model.cross
	if t.split == nil && r.cross == nil {
		return r // one long word
	}
	for _, st := range t.norm {
		switch {
		case st.nfc:
			r.nfc = true
		case t.split == nil && len(t.norm) == 1 && st.from == " " && utf8.RuneCountInString(st.to) == 1 && len(t.normalized.tokens) == 0:
			r.spaces, _ = utf8.DecodeRuneInString(st.to)
		default:
			return r
		}
	}
	if r.nfc && t.split == nil {
		return r
	}
	for b := range r.before {
		r.before[b] = b == '\n' || b == '\t' || b >= ' ' && b != '\'' && b != 0x7f && t.class.ascii[b]&(cLetter|cNumber) == 0
	}
	for _, m := range []*matcher{t.raw, t.normalized} {
		for _, tok := range m.tokens {
			r.exclude(tok, tok.content)
			r.exclude(tok, normalize(t.norm, tok.content, &scratch{}))
		}
	}
	return r
}

// exclude takes out what would let a cut fall into a token, or matter to it.
func (r *cutRule) exclude(tok addedToken, content string) {
	out := func(b byte) {
		if b < utf8.RuneSelf {
			r.before[b] = false
		}
	}
	for i := 1; i < len(content); i++ {
		out(content[i])
	}
	if tok.singleWord && content != "" {
		out(content[0])
		out('_')
	}
	if tok.rstrip {
		for _, b := range []byte(" \t\n") {
			out(b)
		}
	}
}

// find returns the first place at or after from, and before end, where s can be cut, 0 if there is none.
func (r *cutRule) find(t *Tokenizer, s string, from, end int) int {
	for i := max(from, 1); i < end; i++ {
		b := s[i]
		if b >= utf8.RuneSelf || !r.before[b] {
			continue
		}
		prev, n := utf8.DecodeLastRuneInString(s[:i])
		if t.class.of(prev)&cLetter == 0 {
			continue
		}
		if r.nfc && prev >= utf8.RuneSelf && !norm.NFC.IsNormalString(s[i-n:i]) {
			continue
		}
		if r.cross != nil && t.split == nil {
			next := rune(b)
			if b == ' ' {
				next = r.spaces
			}
			if r.cross.joins(prev, next) {
				continue
			}
		}
		return i
	}
	return 0
}
