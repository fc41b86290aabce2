package bpe

import (
	"unicode/utf8"
	"unsafe"
)

// A Tokenizer turns text into token ids and back. It comes from Parse or Open, does not change, and may be used by any
// number of goroutines at once.
type Tokenizer struct {
	model *model
	split *splitter // nil: the text is one word
	norm  []normStep
	raw   *matcher // the added tokens that are looked for in the text as it came
	// normalized are those that are looked for after normalization.
	normalized *matcher
	prefix     []uint32 // around every text, with Options.AddSpecial
	suffix     []uint32
	decoder    []decodeStep // nil: tokens are joined by spaces
	cuts       cutRule

	special []bool            // by id: skipped by Decode on request
	added   map[string]uint32 // the added tokens, by content
	beyond  int               // how many of them the model's vocabulary lacks
	odd     map[string]uint32 // byte-level only: the tokens whose characters stand for no bytes
	oddID   map[uint32]bool   // and their ids, added tokens included

	class *classTable
	pool  *scratchPool
}

// Options say how Encode works. The zero value adds nothing and remembers nothing.
type Options struct {
	// AddSpecial puts the tokens of the file's post-processor around the text, as its begin-of-text token. A text that
	// a chat template rendered has them already.
	AddSpecial bool
	// Cache remembers the ids of stretches of text, so that a conversation that grows is not encoded again from its
	// start. nil: nothing is remembered. It changes no id.
	Cache *Cache
	// MaxWord bounds one word, in bytes after normalization; 0: nothing does. A text with a longer one is not encoded, and Encode returns nil. A word that
	// long is none: its merging takes up to [WordBytes] for each of its bytes, and no word can be cut exactly.
	MaxWord int
}

// WordBytes is what merging takes for each byte of the longest word, in bytes of memory: a symbol, its rank and its place, and two entries of a heap.
const WordBytes = 40

func (t *Tokenizer) finish() {
	t.class = theClasses()
	t.model.finish()
	t.cuts = newCutRule(t)
}

// Encode appends the ids of text to dst and returns it. Added tokens in the text are taken for what they are, special
// ones too: who renders text of users must know that a user can write them.
//
// Bytes that are not UTF-8 are encoded as the U+FFFD that a reader of the text would see, one for each longest start of
// a character. The call allocates only where dst is too small, where text is not UTF-8, where it has combining characters and the
// tokenizer wants normal form, and where it stores to the cache.
func (t *Tokenizer) Encode(dst []uint32, text string, o Options) []uint32 {
	if !utf8.ValidString(text) {
		text = lossy([]byte(text))
	}
	s := t.pool.get()
	s.maxWord, s.tooLong = o.MaxWord, false
	if o.AddSpecial {
		dst = append(dst, t.prefix...)
	}
	if o.Cache != nil {
		dst, text = t.encodeCached(dst, text, s, o.Cache)
	}
	dst = t.encode(dst, text, s)
	if o.AddSpecial {
		dst = append(dst, t.suffix...)
	}
	if s.tooLong {
		dst = nil
	}
	t.pool.put(s)
	return dst
}

// encode is Encode of a text by itself.
func (t *Tokenizer) encode(dst []uint32, text string, s *scratch) []uint32 {
	if len(t.raw.tokens) == 0 {
		return t.part(dst, text, s)
	}
	return t.raw.split(dst, text, func(dst []uint32, part string) []uint32 { return t.part(dst, part, s) })
}

// part encodes what lies between two added tokens.
func (t *Tokenizer) part(dst []uint32, part string, s *scratch) []uint32 {
	part = normalize(t.norm, part, s)
	if len(t.normalized.tokens) == 0 {
		return t.words(dst, part, s)
	}
	return t.normalized.split(dst, part, func(dst []uint32, part string) []uint32 { return t.words(dst, part, s) })
}

// words splits normalized text and encodes each word.
func (t *Tokenizer) words(dst []uint32, text string, s *scratch) []uint32 {
	switch m := t.model; {
	case t.split != nil:
		s.piece = 0
		for i := 0; i < len(text); {
			e := t.split.next(t.class, text, i, &s.piece)
			dst = m.word(dst, text[i:e], s)
			i = e
		}
	case m.cross != nil:
		for i := 0; i < len(text); {
			e := m.cross.cut(text, i)
			dst = m.word(dst, text[i:e], s)
			i = e
		}
	case text != "":
		dst = m.word(dst, text, s)
	}
	return dst
}

// VocabSize returns how many tokens there are, added ones included.
func (t *Tokenizer) VocabSize() int { return t.model.vocab.count + len(t.odd) + t.beyond }

// TokenToID returns the id of a token as the file writes it, as in "Ġthe". false: there is none.
func (t *Tokenizer) TokenToID(token string) (uint32, bool) {
	if id, ok := t.added[token]; ok {
		return id, true
	}
	return t.modelID(token)
}

// IDToToken returns the token of an id as the file writes it. false: there is none.
func (t *Tokenizer) IDToToken(id uint32) (string, bool) {
	if int(id) >= len(t.model.vocab.spans) || t.model.vocab.spans[id].n == 0 {
		return "", false
	}
	b := t.model.vocab.bytes(id)
	if !t.model.byteLevel || t.oddID[id] {
		return string(b), true
	}
	out := make([]byte, 0, 2*len(b))
	for _, c := range b {
		out = utf8.AppendRune(out, byteChars[c])
	}
	return string(out), true
}

// SpecialID tells whether id is that of a special token: one that controls the model and that Decode can leave out.
func (t *Tokenizer) SpecialID(id uint32) bool { return int(id) < len(t.special) && t.special[id] }

// modelID returns the id of a token of the model's vocabulary.
func (t *Tokenizer) modelID(token string) (uint32, bool) { return t.mergeID([]byte(token)) }

func (t *Tokenizer) mergeID(token []byte) (uint32, bool) {
	if !t.model.byteLevel {
		return t.model.vocab.find(view(token))
	}
	var buf [64]byte
	b, ok := appendBytes(buf[:0], token)
	if !ok {
		id, ok := t.odd[string(token)]
		return id, ok
	}
	return t.model.vocab.find(view(b))
}

// appendToken appends a token's bytes as the vocabulary keeps them. odd: its characters stand for no bytes.
func (t *Tokenizer) appendToken(dst, token []byte) (_ []byte, odd bool) {
	if t.model.byteLevel {
		dst, ok := appendBytes(dst, token)
		if ok {
			return dst, false
		}
		return append(dst, token...), true
	}
	return append(dst, token...), false
}

// view is b as a string without a copy. b must not change while the string is in use.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
