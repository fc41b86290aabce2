package bpe

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// An addedToken is found in the text before anything else looks at it.
type addedToken struct {
	id                                              uint32
	content                                         string
	special, normalized, lstrip, rstrip, singleWord bool
}

// A matcher finds added tokens in text: the leftmost, of those that start there the longest, then on from its end.
type matcher struct {
	tokens []addedToken
	nodes  []trieNode // node 0 is not used, so that 0 means none
	roots  [256]int32 // the node of each first byte
	only   int        // the first byte of all tokens, -1: they differ
	class  *classTable
}

// A trieNode's children are a list: at most a few, but below the roots.
type trieNode struct {
	b           byte
	token       int32 // index of the token that ends here, plus one
	child, next int32
}

func newMatcher(class *classTable) *matcher {
	return &matcher{nodes: make([]trieNode, 1), only: -1, class: class}
}

// add makes text stand for token. false: it stands for another one already.
func (m *matcher) add(text string, token addedToken) bool {
	if len(m.tokens) == 0 {
		m.only = int(text[0])
	} else if m.only != int(text[0]) {
		m.only = -1
	}
	at := &m.roots[text[0]]
	for i := 0; ; i++ {
		for *at != 0 && m.nodes[*at].b != text[i] {
			at = &m.nodes[*at].next
		}
		if *at == 0 {
			n := int32(len(m.nodes))
			*at = n // before append moves the nodes
			m.nodes = append(m.nodes, trieNode{b: text[i]})
			at = &m.nodes[n].child
			if i+1 == len(text) {
				m.tokens = append(m.tokens, token)
				m.nodes[n].token = int32(len(m.tokens))
				return true
			}
			continue
		}
		if n := *at; i+1 == len(text) {
			if m.nodes[n].token != 0 {
				return false
			}
			m.tokens = append(m.tokens, token)
			m.nodes[n].token = int32(len(m.tokens))
			return true
		}
		at = &m.nodes[*at].child
	}
}

// find returns the first match at or after byte i. nil: there is none.
func (m *matcher) find(s string, i int) (tok *addedToken, start, end int) {
	if len(m.tokens) == 0 {
		return nil, 0, 0
	}
	for ; ; i++ {
		if m.only >= 0 {
			d := strings.IndexByte(s[min(i, len(s)):], byte(m.only))
			if d < 0 {
				return nil, 0, 0
			}
			i += d
		} else {
			for i < len(s) && m.roots[s[i]] == 0 {
				i++
			}
			if i >= len(s) {
				return nil, 0, 0
			}
		}
		if tok, end := m.at(s, i); tok != nil {
			return tok, i, end
		}
	}
}

// at returns the longest match that starts at byte i.
func (m *matcher) at(s string, i int) (tok *addedToken, end int) {
	n := m.roots[s[i]]
	for n != 0 {
		i++
		if t := m.nodes[n].token; t != 0 {
			tok, end = &m.tokens[t-1], i
		}
		if i == len(s) {
			break
		}
		for n = m.nodes[n].child; n != 0 && m.nodes[n].b != s[i]; n = m.nodes[n].next {
		}
	}
	return tok, end
}

// split walks over s: text gets what lies between the tokens, token the tokens. Both take dst and return it. The rules
// of strip and single_word are the reference implementation's to the letter, also where one token's white space is
// another token.
func (m *matcher) split(dst []uint32, s string, text func(dst []uint32, part string) []uint32) []uint32 {
	from, at := 0, 0
	for {
		tok, start, end := m.find(s, at)
		if tok == nil {
			break
		}
		at = end
		if tok.singleWord && (m.wordBefore(s[:start]) || m.wordAfter(s[end:])) {
			continue
		}
		if tok.lstrip {
			start = max(len(strings.TrimRightFunc(s[:start], unicode.IsSpace)), from)
		}
		if tok.rstrip {
			end = len(s) - len(strings.TrimLeftFunc(s[end:], unicode.IsSpace))
		}
		if from < start {
			dst = text(dst, s[from:start])
		}
		if start < end { // else another token has stripped all of it
			dst = append(dst, tok.id)
		}
		from = end
	}
	if from < len(s) {
		dst = text(dst, s[from:])
	}
	return dst
}

func (m *matcher) wordBefore(s string) bool {
	r, n := utf8.DecodeLastRuneInString(s)
	return n > 0 && m.class.of(r)&cWord != 0
}

func (m *matcher) wordAfter(s string) bool {
	r, n := utf8.DecodeRuneInString(s)
	return n > 0 && m.class.of(r)&cWord != 0
}
