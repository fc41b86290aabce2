package bpe

import "strconv"

// addedTokens reads the added tokens and gives them the ids that the reference implementation gives them; a file whose
// own numbers differ is refused, for readers of the file would disagree.
func (l *loader) addedTokens() error {
	t := l.t
	t.raw, t.normalized = newMatcher(l.class), newMatcher(l.class)
	t.added = map[string]uint32{}
	t.special = make([]bool, len(t.model.vocab.spans))
	v := l.parts["added_tokens"]
	if v == nil {
		return nil
	}
	list, ok := v.([]any)
	if !ok {
		return &FormatError{Part: "added_tokens", Problem: "a list is needed"}
	}
	if len(list) > maxAdded {
		return &UnsupportedError{Part: "added_tokens", Why: "more than " + strconv.Itoa(maxAdded)}
	}
	next := uint32(t.model.vocab.count + len(t.odd)) // the id of the next token that the vocabulary lacks
	bytes := 0
	for i, v := range list {
		part := "added_tokens[" + strconv.Itoa(i) + "]"
		o, err := asObject(v, part)
		if err != nil {
			return err
		}
		tok := addedToken{
			id: o.count("id"), content: o.text("content"), singleWord: o.flag("single_word"), lstrip: o.flag("lstrip"),
			rstrip: o.flag("rstrip"), normalized: o.flag("normalized"), special: o.flag("special"),
		}
		if err := o.done(); err != nil {
			return err
		}
		if bytes += len(tok.content); bytes > maxAddedBytes {
			return &UnsupportedError{Part: part + ".content", Why: "more than " + strconv.Itoa(maxAddedBytes) + " bytes of added tokens"}
		}
		if tok.content == "" {
			return &UnsupportedError{Part: part + ".content", Why: "a token without characters"}
		}
		if _, twice := t.added[tok.content]; twice {
			return &FormatError{Part: part + ".content", Problem: "appears twice"}
		}
		id, known := t.modelID(tok.content)
		if !known {
			id = next
		}
		if id != tok.id {
			return &UnsupportedError{Part: part + ".id", Why: strconv.Itoa(int(tok.id)) + " for a token that gets " + strconv.Itoa(int(id))}
		}
		// The reference counts on from the highest id of an added token, if that is not one of the vocabulary.
		if id >= next {
			next = id + 1
		}
		if err := l.addToken(tok, known, part); err != nil {
			return err
		}
	}
	return nil
}

func (l *loader) addToken(tok addedToken, known bool, part string) error {
	t := l.t
	t.added[tok.content] = tok.id
	if !known {
		if tok.id > maxID {
			return &UnsupportedError{Part: part + ".id", Why: "more than " + strconv.Itoa(maxID)}
		}
		v := t.model.vocab
		for int(tok.id) >= len(v.spans) {
			v.spans, t.special = append(v.spans, span{}), append(t.special, false)
		}
		if v.spans[tok.id].n != 0 {
			return &UnsupportedError{Part: part + ".id", Why: "the id of another token"}
		}
		at := span{off: uint32(len(v.arena))}
		var odd bool
		v.arena, odd = t.appendToken(v.arena, []byte(tok.content))
		at.n = uint32(len(v.arena)) - at.off
		v.spans[tok.id] = at
		if odd {
			t.oddID[tok.id] = true
		}
		t.beyond++
	}
	t.special[tok.id] = tok.special
	m, text := t.raw, tok.content
	if tok.normalized {
		m, text = t.normalized, normalize(t.norm, tok.content, &scratch{})
	}
	if text == "" {
		return &UnsupportedError{Part: part + ".content", Why: "nothing is left of it after normalization"}
	}
	if !m.add(text, tok) {
		return &UnsupportedError{Part: part + ".content", Why: "the same as another token's after normalization"}
	}
	return nil
}
