package engine

// The simulator's tokenizer is not a real one. A token is four bytes of the text, and its id is those bytes read as a big-endian
// number; a piece's last token may have fewer. So a gateway that estimates a token as four bytes is about right, a text's
// prefix has a prefix of its tokens, and Detokenize gives the text back. Ids reach 2^32-1, as those of llm-d's simulator do.

// Special tokens: their first byte, 0xff, never occurs in UTF-8, so no text can contain them.
const (
	tokenBegin     = 0xff000001 // first token of a conversation
	tokenEnd       = 0xff000002 // ends a message
	tokenRoleFirst = 0xff000010 // user, assistant, system, tool; a role beyond those follows as text
)

// Message is one turn of a conversation.
type Message struct{ Role, Content string }

// AppendTokens appends the tokens of text to dst.
func AppendTokens(dst []uint32, text string) []uint32 {
	for len(text) >= 4 {
		dst = append(dst, uint32(text[0])<<24|uint32(text[1])<<16|uint32(text[2])<<8|uint32(text[3]))
		text = text[4:]
	}
	if len(text) > 0 {
		var id uint32
		for i := range len(text) {
			id = id<<8 | uint32(text[i])
		}
		dst = append(dst, id)
	}
	return dst
}

// AppendChat appends the tokens of a conversation, up to the place where the assistant's next turn begins. Each message is
// cut into tokens by itself, so the tokens of a conversation are a prefix of those of any continuation of it, the
// simulator's own answer included.
func AppendChat(dst []uint32, messages []Message) []uint32 {
	dst = append(dst, tokenBegin)
	for _, m := range messages {
		dst = appendRole(dst, m.Role)
		dst = append(AppendTokens(dst, m.Content), tokenEnd)
	}
	return appendRole(dst, "assistant")
}

func appendRole(dst []uint32, role string) []uint32 {
	switch role {
	case "user":
		return append(dst, tokenRoleFirst)
	case "assistant":
		return append(dst, tokenRoleFirst+1)
	case "system", "developer":
		return append(dst, tokenRoleFirst+2)
	case "tool":
		return append(dst, tokenRoleFirst+3)
	}
	return append(AppendTokens(append(dst, tokenRoleFirst+4), role), tokenRoleFirst+5)
}

// AppendText appends the bytes that token stands for. Special tokens stand for none. It is the inverse of AppendTokens for text
// without NUL bytes: a leading NUL of a token is lost. Bytes of a single token need not be whole UTF-8 characters.
func AppendText(dst []byte, token uint32) []byte {
	if token>>24 == 0xff {
		return dst
	}
	for shift := 24; shift >= 0; shift -= 8 {
		if b := byte(token >> shift); b != 0 || token>>(shift+8) != 0 {
			dst = append(dst, b)
		}
	}
	return dst
}

// outputToken is the answer's token number index of the prompt whose hash is h: a space and three letters, so that each token
// of an answer is whole UTF-8 and needs no escape in JSON.
func outputToken(seed uint64, h BlockHash, index int) uint32 {
	w := mum(h.Lo^seed^mix0, h.Hi^mix1^uint64(index)*mix2)
	id := uint32(' ')
	for range 3 {
		id = id<<8 | uint32('a'+w%26)
		w /= 26
	}
	return id
}
