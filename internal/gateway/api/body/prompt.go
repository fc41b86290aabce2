package body

import "github.com/perigee-llm/perigee/internal/gateway/api/body/lex"

// prompt reads the prompt of a completion and measures it.
func (r *reader) prompt(p *PromptFacts, i int) int {
	switch r.Byte(i) {
	case 'n':
		return r.Scalar(i)
	case '"':
		p.Kind = PromptText
		return r.text(p, i)
	case '[':
	default:
		return r.wrongType(Prompt.String(), i)
	}
	first := r.Enter(i)
	switch c := r.Byte(first); {
	case c == ']':
		return r.refuse(ErrMissingPrompt, "", i)
	case c == '"':
		p.Kind = PromptTexts
		return r.list(p, first, '"')
	case c == '[':
		p.Kind, p.Exact = PromptIDLists, true
		return r.list(p, first, '[')
	}
	p.Kind, p.Exact = PromptIDs, true
	return r.idList(p, first)
}

// list reads elements that all begin with the byte open, from the first one to the closing bracket.
func (r *reader) list(p *PromptFacts, i int, open byte) int {
	for more := true; more; {
		if r.Byte(i) != open {
			return r.wrongType(Prompt.String(), i)
		}
		// A call through a function value would move the reader and the facts to the heap.
		if open == '"' {
			i = r.text(p, i)
		} else {
			i = r.ids(p, i)
		}
		if i < 0 {
			return -1
		}
		if i, more = r.Next(i); i < 0 {
			return -1
		}
	}
	return i
}

// text reads one prompt that is a string.
func (r *reader) text(p *PromptFacts, i int) int {
	shrink := r.Shrink
	end := r.String(i)
	if end >= 0 {
		p.add(quarter(end - i - 2 - (r.Shrink - shrink)))
	}
	return end
}

// ids reads one prompt that is a list of token ids inside a list.
func (r *reader) ids(p *PromptFacts, i int) int {
	if i = r.Enter(i); i >= 0 && r.Byte(i) == ']' {
		p.add(0)
		return r.Leave(i)
	}
	return r.idList(p, i)
}

func (p *PromptFacts) add(tokens int) {
	p.Count++
	p.Total += tokens
	p.Longest = max(p.Longest, tokens)
}

// maxID is the largest token id that is read. Vocabularies end below 2^20; engines keep ids in 32 bits.
const maxID = 1<<32 - 1

// idList reads token ids from the first one to the closing bracket. A prompt of ids has tens of thousands
// of them, so it looks at each byte once and leaves the common case to one loop.
func (r *reader) idList(p *PromptFacts, i int) int {
	b := r.b
	for n := 1; ; n++ {
		start, id := i, uint64(0)
		for uint(i) < uint(len(b)) && b[i]-'0' <= 9 && id <= maxID {
			id = id*10 + uint64(b[i]-'0')
			i++
		}
		if i == start || id > maxID {
			return r.wrongType(Prompt.String(), start)
		}
		if b[start] == '0' && i-start > 1 {
			return r.Fail(lex.Syntax, start+1)
		}
		switch c := r.Byte(i); c {
		case '.', 'e', 'E':
			return r.wrongType(Prompt.String(), start)
		case ',':
			if i++; r.Byte(i) == ' ' { // as Python's json writes them
				i++
			}
			if r.Byte(i) > ' ' {
				continue
			}
			i = r.Space(i)
		default:
			var more bool
			if i, more = r.Next(i); i < 0 {
				return -1
			}
			if !more {
				p.add(n)
				return i
			}
		}
	}
}

// AppendIDs appends the token ids of one list, whose raw text (with brackets) Scan has accepted as a prompt
// of ids, to dst.
func AppendIDs(dst []uint32, raw []byte) []uint32 {
	id, in := uint32(0), false
	for _, c := range raw {
		if c-'0' <= 9 {
			id, in = id*10+uint32(c-'0'), true
		} else if in {
			dst = append(dst, id)
			id, in = 0, false
		}
	}
	return dst
}
