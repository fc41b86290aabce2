package bpe

import (
	"slices"
	"strconv"
	"strings"
)

// part returns a small part of the file as an object; nil where it is missing or null.
func (l *loader) part(key string) (*fields, error) {
	v := l.parts[key]
	if v == nil {
		return nil, nil
	}
	return asObject(v, key)
}

// steps calls f with the object f, or with each of the list in it under key if it is a Sequence.
func steps(o *fields, key string, f func(typ string, o *fields)) error {
	typ := o.text("type")
	if typ != "Sequence" {
		f(typ, o)
		return o.done()
	}
	for i, v := range o.list(key) {
		e, err := asObject(v, o.path+"."+key+"["+strconv.Itoa(i)+"]")
		if err != nil {
			return err
		}
		typ := e.text("type")
		if f(typ, e); e.done() != nil {
			return e.done()
		}
	}
	return o.done()
}

// unknownType is the answer to a part of a type that is not implemented. The rest of its settings is of no interest.
func unknownType(o *fields, typ string) {
	o.unsupported("type", quote(typ))
	o.keys = nil
}

// maxSteps bounds every Sequence; real ones have up to 5.
const maxSteps = 16

func (l *loader) normalizer() error {
	o, err := l.part("normalizer")
	if o == nil {
		return err
	}
	return steps(o, "normalizers", func(typ string, o *fields) {
		switch {
		case len(l.t.norm) == maxSteps:
			o.unsupported("type", "a sequence this long")
		case typ == "NFC":
			l.t.norm = append(l.t.norm, normStep{nfc: true})
		case typ == "Replace":
			st := normStep{}
			st.from, st.to = replacement(o)
			if slices.ContainsFunc(l.t.norm, func(st normStep) bool { return !st.nfc }) {
				o.unsupported("type", "a second replacement")
			}
			l.t.norm = append(l.t.norm, st)
		default:
			unknownType(o, typ)
		}
	})
}

// maxReplacement bounds what a replacement makes of a byte, and with it how much longer than itself a text can get. The
// one in use, of a space by ▁, has three bytes.
const maxReplacement = 16

func replacement(o *fields) (from, to string) {
	from, to = pattern(o, "String"), o.text("content")
	if o.err == nil && from == "" {
		o.unsupported("pattern", "an empty one")
	}
	if len(to) > maxReplacement {
		o.unsupported("content", "more than "+strconv.Itoa(maxReplacement)+" bytes")
	}
	return from, to
}

// pattern reads {"String": "..."} or {"Regex": "..."}, whichever is wanted.
func pattern(o *fields, kind string) string {
	p := o.object("pattern")
	if p.err != nil {
		o.fail(p.err)
		return ""
	}
	for _, other := range p.keys {
		if other != kind {
			p.unsupported(other, "only "+kind+" is here")
		}
	}
	s := p.text(kind)
	o.fail(p.done())
	return s
}

// preTokenizer finds the splitter by the exact text of its patterns.
func (l *loader) preTokenizer() error {
	o, err := l.part("pre_tokenizer")
	if o == nil {
		return err
	}
	var patterns []string
	var at []string // where they are in the file
	err = steps(o, "pretokenizers", func(typ string, o *fields) {
		switch {
		case l.t.model.byteLevel:
			o.unsupported("type", "a step after ByteLevel")
			o.keys = nil
		case typ == "ByteLevel":
			l.byteLevel(o, len(patterns) == 0)
		case typ == "Split":
			if p := l.split(o); p != "" {
				patterns, at = append(patterns, p), append(at, o.path+".pattern")
			}
		default:
			unknownType(o, typ)
		}
	})
	if err != nil || len(patterns) == 0 {
		return err
	}
	for _, k := range []struct {
		patterns []string
		split    *splitter
	}{
		{[]string{llamaPattern}, llamaSplit},
		{[]string{qwenPattern}, qwenSplit},
		{[]string{o200kPattern}, o200kSplit},
		{[]string{deepSeekDigits, deepSeekHan, deepSeekRest}, deepSeekSplit},
	} {
		if slices.Equal(patterns, k.patterns) {
			l.t.split = k.split
			return nil
		}
	}
	return &UnsupportedError{Part: at[0], Why: "an unknown pattern or sequence of patterns, " + quote(patterns[0])}
}

func (l *loader) byteLevel(o *fields, first bool) {
	if o.flag("add_prefix_space") {
		o.unsupported("add_prefix_space", "true")
	}
	o.optionalFlag("trim_offsets", true) // of no influence on ids
	if o.optionalFlag("use_regex", true) {
		if !first {
			o.unsupported("use_regex", "true after another pattern")
		}
		l.t.split = gpt2Split
	}
	l.t.model.byteLevel = true
	l.t.odd, l.t.oddID = map[string]uint32{}, map[uint32]bool{}
}

// split returns the pattern of a Split, "" if it is one that does nothing.
func (l *loader) split(o *fields) string {
	behavior := o.text("behavior")
	if o.optionalFlag("invert", false) {
		o.unsupported("invert", "true")
	}
	if p, ok := o.vals["pattern"].(*fields); ok && slices.Contains(p.keys, "String") {
		s := pattern(o, "String")
		// Gemma splits at spaces after having replaced them all: nothing is left to split at.
		n := len(l.t.norm)
		if n == 0 || s == "" || l.t.norm[n-1].from != s || strings.Contains(l.t.norm[n-1].to, s) || len(s) > 1 {
			o.unsupported("pattern", "a string that the normalizer does not replace by another")
		}
		return ""
	}
	if behavior != "Isolated" {
		o.unsupported("behavior", quote(behavior))
	}
	return pattern(o, "Regex")
}

func (l *loader) postProcessor() error {
	o, err := l.part("post_processor")
	if o == nil {
		return err
	}
	templates := 0
	return steps(o, "processors", func(typ string, o *fields) {
		switch typ {
		case "ByteLevel": // it moves offsets only
			o.optionalFlag("add_prefix_space", true)
			o.optionalFlag("trim_offsets", true)
			o.optionalFlag("use_regex", true)
		case "TemplateProcessing":
			if templates++; templates > 1 {
				o.unsupported("type", "a second template")
				return
			}
			l.template(o)
		default:
			unknownType(o, typ)
		}
	})
}

// template reads what goes around a text alone. The template for pairs of texts is of no interest.
func (l *loader) template(o *fields) {
	o.take("pair")
	special := o.object("special_tokens")
	text := false
	for i, v := range o.list("single") {
		at := o.path + ".single[" + strconv.Itoa(i) + "]"
		e, err := asObject(v, at)
		if err != nil {
			o.fail(err)
			return
		}
		if slices.Contains(e.keys, "Sequence") {
			seq := e.object("Sequence")
			if id := seq.text("id"); id != "A" || text {
				seq.unsupported("id", "anything but A, once")
			}
			text = true
			seq.take("type_id")
			o.fail(seq.done())
			o.fail(e.done())
			continue
		}
		tok := e.object("SpecialToken")
		name := tok.text("id")
		tok.take("type_id")
		o.fail(tok.done())
		o.fail(e.done())
		if o.err != nil {
			return
		}
		ids := l.templateIDs(special, name)
		o.fail(special.err)
		if text {
			l.t.suffix = append(l.t.suffix, ids...)
		} else {
			l.t.prefix = append(l.t.prefix, ids...)
		}
		if len(l.t.prefix)+len(l.t.suffix) > maxTemplate {
			o.unsupported("single", "more than "+strconv.Itoa(maxTemplate)+" tokens")
			return
		}
	}
	if !text {
		o.unsupported("single", "a template without the text")
	}
}

// maxTemplate bounds the tokens around a text; real templates have one or two.
const maxTemplate = 64

func (l *loader) templateIDs(special *fields, name string) (ids []uint32) {
	tok, ok := special.vals[name].(*fields)
	if !ok {
		special.bad(name, "missing")
		return nil
	}
	list, ok := tok.vals["ids"].([]any)
	if !ok {
		special.bad(name, "no ids")
	}
	for _, v := range list {
		n, ok := v.(number)
		id, err := strconv.ParseUint(string(n), 10, 32)
		if !ok || err != nil || id > maxID {
			special.bad(name, "an id is not a number from 0 to "+strconv.Itoa(maxID))
			return nil
		}
		ids = append(ids, uint32(id))
	}
	return ids
}

func (l *loader) decoder() error {
	o, err := l.part("decoder")
	if o == nil {
		return err
	}
	l.t.decoder = []decodeStep{}
	return steps(o, "decoders", func(typ string, o *fields) {
		st := decodeStep{}
		switch typ {
		case "ByteLevel":
			o.optionalFlag("add_prefix_space", true)
			o.optionalFlag("trim_offsets", true)
			o.optionalFlag("use_regex", true)
			st.kind = decodeByteLevel
		case "ByteFallback":
			st.kind = decodeByteFallback
		case "Fuse":
			st.kind = decodeFuse
		case "Replace":
			st.kind = decodeReplace
			st.from, st.to = replacement(o)
			if slices.ContainsFunc(l.t.decoder, func(st decodeStep) bool { return st.kind == decodeReplace }) {
				o.unsupported("type", "a second replacement")
			}
		case "Strip":
			st = decodeStep{kind: decodeStrip, from: o.text("content"), stripLeft: o.count("start"), stripRight: o.count("stop")}
			if o.err == nil && len([]rune(st.from)) != 1 {
				o.bad("content", "one character is needed")
			}
			if st.stripLeft > maxSteps || st.stripRight > maxSteps {
				o.unsupported("start", "more than "+strconv.Itoa(maxSteps))
			}
		default:
			unknownType(o, typ)
		}
		if len(l.t.decoder) == maxSteps {
			o.unsupported("type", "a sequence this long")
		}
		l.t.decoder = append(l.t.decoder, st)
	})
}
