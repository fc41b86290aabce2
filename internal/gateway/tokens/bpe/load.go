package bpe

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxFileBytes is the size of the largest file that Parse takes: twice the largest in use (Gemma's 33 MB), and with
// what is built from it about 150 MB of memory.
const MaxFileBytes = 64 << 20

// maxMerges is what the 24 bits of a rank hold; the largest vocabulary in use has 514,906 merges.
const maxMerges = noRank

// maxAdded and maxAddedBytes bound added tokens, and their text together; Gemma has 6,415 of 81,000 bytes. The trie that
// finds them takes 16 bytes for each.
const (
	maxAdded      = 1 << 16
	maxAddedBytes = 4 << 20
)

// Open is Parse of the file at path.
func Open(path string) (*Tokenizer, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// The file may be of any size, and change while it is read: neither its length nor its end alone is to be trusted.
	var buf bytes.Buffer
	if st, err := f.Stat(); err == nil && st.Size() <= MaxFileBytes {
		buf.Grow(int(st.Size()) + bytes.MinRead)
	}
	if _, err := buf.ReadFrom(io.LimitReader(f, MaxFileBytes+1)); err != nil {
		return nil, err
	}
	t, err := Parse(buf.Bytes())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// Parse reads the text of a tokenizer.json. The error is an *UnsupportedError for what is well formed and not ours to
// do, else a *FormatError. data is not kept.
func Parse(data []byte) (*Tokenizer, error) {
	if len(data) > MaxFileBytes {
		return nil, &FormatError{Problem: fmt.Sprintf("larger than %d bytes", MaxFileBytes)}
	}
	if !utf8.Valid(data) {
		return nil, &FormatError{Problem: "not UTF-8"}
	}
	l := &loader{class: theClasses(), t: &Tokenizer{pool: newScratchPool(), model: &model{}}}
	if err := l.file(&cursor{b: data}); err != nil {
		return nil, err
	}
	for _, step := range []func() error{l.normalizer, l.preTokenizer, l.modelSettings, l.vocabulary, l.merges, l.addedTokens, l.postProcessor, l.decoder} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	l.t.finish()
	return l.t, nil
}

// A loader holds the parts of a file until all are there: what one means depends on others that may come later.
type loader struct {
	t       *Tokenizer
	class   *classTable
	parts   map[string]any // the small ones, by their key at the top
	model   *fields
	vocab   []byte // the texts of the two large ones
	mergesB []byte
}

func (l *loader) file(c *cursor) error {
	l.parts = map[string]any{}
	err := c.object(func(key []byte) error {
		k := string(key)
		if _, twice := l.parts[k]; twice {
			return &FormatError{Part: k, Problem: "appears twice"}
		}
		l.parts[k] = nil
		if k == "model" {
			return l.modelParts(c)
		}
		v, err := c.tree(k, 0)
		l.parts[k] = v
		return err
	})
	if err != nil {
		return err
	}
	if c.peek() != 0 || c.i < len(c.b) {
		return c.fail("text after the end")
	}
	top := &fields{vals: l.parts}
	for k := range l.parts {
		switch k {
		case "version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model":
		default:
			top.unsupported(k, "an unknown part")
		}
	}
	for _, k := range []string{"truncation", "padding"} {
		if l.parts[k] != nil {
			top.unsupported(k, "ids would be cut off or added; set it to null")
		}
	}
	if v, ok := l.parts["version"]; ok && v != "1.0" {
		top.unsupported("version", "only 1.0 is known")
	}
	if l.model == nil {
		top.bad("model", "missing")
	}
	return top.err
}

func (l *loader) modelParts(c *cursor) error {
	l.model = &fields{path: "model", vals: map[string]any{}}
	return c.object(func(key []byte) error {
		k := string(key)
		var err error
		switch {
		case k == "vocab" && l.vocab == nil:
			l.vocab, err = c.skip(1)
			return err
		case k == "merges" && l.mergesB == nil:
			l.mergesB, err = c.skip(1)
			return err
		}
		if _, twice := l.model.vals[k]; twice || k == "vocab" || k == "merges" {
			return &FormatError{Part: "model." + k, Problem: "appears twice"}
		}
		l.model.keys = append(l.model.keys, k)
		l.model.vals[k], err = c.tree("model."+k, 1)
		return err
	})
}

func (l *loader) modelSettings() error {
	f, m := l.model, l.t.model
	if typ := f.text("type"); f.err == nil && typ != "BPE" {
		f.unsupported("type", quote(typ)+"; only BPE is")
	}
	if v, _ := f.take("dropout"); v != nil && v != number("0.0") && v != number("0") {
		f.unsupported("dropout", "merges left out at random")
	}
	for _, k := range []string{"continuing_subword_prefix", "end_of_word_suffix"} {
		if f.optionalText(k) != "" {
			f.unsupported(k, "only null and the empty string are")
		}
	}
	m.fuseUnknown = f.optionalFlag("fuse_unk", false)
	m.byteFallback = f.optionalFlag("byte_fallback", false)
	m.ignoreMerges = f.optionalFlag("ignore_merges", false)
	return nil // unk_token is left: it needs the vocabulary
}

// vocabulary reads the tokens. A byte-level vocabulary is kept as the bytes that its characters stand for: then text
// needs no conversion before it is looked up. Its tokens of other characters are those that no text can reach; they are
// kept as they are, in odd.
func (l *loader) vocabulary() error {
	if l.vocab == nil {
		return &FormatError{Part: "model.vocab", Problem: "missing"}
	}
	type entry struct {
		id  uint32
		at  span
		odd bool
	}
	t, c := l.t, &cursor{b: l.vocab}
	var arena = make([]byte, 0, len(l.vocab)/2)
	entries := make([]entry, 0, len(l.vocab)/16)
	top := uint32(0)
	err := c.object(func(key []byte) error {
		e := entry{at: span{off: uint32(len(arena))}}
		arena, e.odd = t.appendToken(arena, key)
		e.at.n = uint32(len(arena)) - e.at.off
		var err error
		e.id, err = c.id()
		entries = append(entries, e)
		top = max(top, e.id)
		return err
	})
	switch {
	case err != nil:
		return inPart("model.vocab", err)
	case len(entries) == 0:
		return &FormatError{Part: "model.vocab", Problem: "no tokens"}
	case int(top) > 4*len(entries)+1024:
		// Tables are indexed by id. Real ids have no gaps to speak of.
		return &UnsupportedError{Part: "model.vocab", Why: "ids that are far apart"}
	}
	v := newVocabulary(len(entries), int(top)+1)
	v.arena = arena
	t.model.vocab = v
	for _, e := range entries {
		name := string(v.arena[e.at.off : e.at.off+e.at.n])
		switch {
		case e.at.n == 0:
			return &UnsupportedError{Part: "model.vocab", Why: "a token without characters"}
		case v.spans[e.id].n != 0:
			return &FormatError{Part: "model.vocab", Problem: "two tokens have id " + strconv.Itoa(int(e.id))}
		}
		v.spans[e.id] = e.at
		if _, twice := t.odd[name]; e.odd && twice || !e.odd && !v.add(e.id, e.at) {
			return &FormatError{Part: "model.vocab", Problem: "token " + quote(name) + " appears twice"}
		}
		if e.odd {
			t.odd[name] = e.id
			t.oddID[e.id] = true
		}
	}
	return l.unknownToken()
}

func (l *loader) unknownToken() error {
	m, name := l.t.model, l.model.optionalText("unk_token")
	if name != "" {
		id, ok := l.t.modelID(name)
		if !ok {
			l.model.bad("unk_token", "the vocabulary lacks "+quote(name))
		}
		m.hasUnknown, m.unknown = true, id
	}
	return l.model.done()
}

func inPart(part string, err error) error {
	if f, ok := err.(*FormatError); ok && f.Part == "" {
		return &FormatError{Part: part, Problem: f.Problem}
	}
	return err
}

// merges reads the merges in either form: "left right" or ["left", "right"].
func (l *loader) merges() error {
	if l.mergesB == nil {
		return &FormatError{Part: "model.merges", Problem: "missing"}
	}
	// A merge takes at least 6 bytes, real ones 17 or more.
	table := newMergeTable(len(l.mergesB) / 16)
	c := &cursor{b: l.mergesB}
	var pair []byte // the left and the right token
	pairs, strs := false, false
	err := c.array(func(i int) error {
		var cut int
		if c.peek() == '"' {
			strs = true
			s, err := c.str()
			if err != nil {
				return err
			}
			text := string(s)
			if strings.HasPrefix(text, "#version") {
				return nil // the reference implementation skips the head of the older format
			}
			left, right, ok := strings.Cut(text, " ")
			if !ok || strings.Contains(right, " ") {
				return &FormatError{Part: mergePart(i), Problem: "two tokens with one space between are needed"}
			}
			pair, cut = append(append(pair[:0], left...), right...), len(left)
		} else {
			pairs = true
			pair = pair[:0]
			n := 0
			err := c.array(func(int) error {
				s, err := c.str()
				pair = append(pair, s...)
				if n++; n == 1 {
					cut = len(s)
				}
				return err
			})
			if err != nil {
				return err
			}
			if n != 2 {
				return &FormatError{Part: mergePart(i), Problem: "two tokens are needed"}
			}
		}
		return l.merge(table, i, pair, cut)
	})
	if err == nil && pairs && strs {
		err = &FormatError{Part: "model.merges", Problem: "strings and pairs are mixed"}
	}
	l.t.model.merges = table
	return inPart("model.merges", err)
}

func mergePart(i int) string { return "model.merges[" + strconv.Itoa(i) + "]" }

func (l *loader) merge(table *mergeTable, i int, pair []byte, cut int) error {
	if len(table.made) == maxMerges {
		return &UnsupportedError{Part: "model.merges", Why: "more than " + strconv.Itoa(maxMerges)}
	}
	left, ok1 := l.t.mergeID(pair[:cut])
	right, ok2 := l.t.mergeID(pair[cut:])
	made, ok3 := l.t.mergeID(pair)
	if !ok1 || !ok2 || !ok3 || cut == 0 || cut == len(pair) {
		return &FormatError{Part: mergePart(i), Problem: "the vocabulary lacks the left, the right or the merged token of " + quote(string(pair[:cut])+" "+string(pair[cut:]))}
	}
	table.add(left, right, made)
	return nil
}
