package tokens

import (
	"bytes"
	"encoding/json"
)

// turn has the raw values of the keys that the rules look at; those that are not there are empty.
type turn struct {
	role, content, toolCalls, functionCall, reasoningContent, reasoning []byte
}

// set takes down a key's value.
func (t *turn) set(key, value []byte) {
	switch string(key) {
	case "role":
		t.role = value
	case "content":
		t.content = value
	case "tool_calls":
		t.toolCalls = value
	case "function_call":
		t.functionCall = value
	case "reasoning_content":
		t.reasoningContent = value
	case "reasoning":
		t.reasoning = value
	}
}

// name returns the role; false if there is none, or if it is no text.
func (t *turn) name() (role string, ok bool) {
	if n := len(t.role); n >= 2 && t.role[0] == '"' && bytes.IndexByte(t.role, '\\') < 0 {
		return string(t.role[1 : n-1]), true
	}
	ok = json.Unmarshal(t.role, &role) == nil
	return role, ok
}

// shapeOfValid is shapeOf for what is known to be JSON, as messages are that a template was rendered with. It passes over contents without
// decoding them: in a prompt of 32 KB shapeOf would be a third of all that is done before its request goes out.
func shapeOfValid(messages []byte) shape {
	var room [16]turn
	if turns, ok := readTurns(messages, room[:0]); ok {
		return shapeOfTurns(turns)
	}
	return shapeOf(messages)
}

// readTurns appends the turns of a list of objects. It is false for what it leaves to encoding/json: all that is not such a list, keys with
// escapes, and what is no JSON, as far as it sees that.
func readTurns(messages []byte, turns []turn) ([]turn, bool) {
	w := walker{b: messages}
	if w.next() != '[' {
		return nil, false
	}
	for w.enter(']') {
		if w.next() != '{' {
			return nil, false
		}
		var t turn
		for w.enter('}') {
			key := w.value()
			if len(key) < 2 || key[0] != '"' || bytes.IndexByte(key, '\\') >= 0 || w.next() != ':' {
				return nil, false
			}
			w.i++
			t.set(key[1:len(key)-1], w.value())
		}
		turns = append(turns, t)
	}
	return turns, !w.lost && w.next() == 0
}

// walker goes over JSON that is valid. Where it is not, the walker may get lost, or see something that is not there; it never leaves b.
type walker struct {
	b    []byte
	i    int
	lost bool
}

// next returns the next byte that is no white space, which it does not take; 0 at the end.
func (w *walker) next() byte {
	for ; w.i < len(w.b); w.i++ {
		switch c := w.b[w.i]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

// enter takes the bracket or the comma before an element. It takes the end too, and is false then, or when the walker is lost.
func (w *walker) enter(end byte) bool {
	switch c := w.next(); c {
	case '[', '{', ',':
		w.i++
		if w.next() != end {
			return !w.lost
		}
		w.lost = w.lost || c == ',' // a comma and no element
		w.i++
	case end:
		w.i++
	default:
		w.lost = true
	}
	return false
}

// value takes a value and returns it without the white space around; nothing when the walker is lost.
func (w *walker) value() []byte {
	w.next()
	from := w.i
	for depth := 0; w.i < len(w.b); {
		switch w.b[w.i] {
		case '"':
			w.text()
		case '[', '{':
			depth++
			w.i++
		case ']', '}':
			depth--
			w.i++
		case ' ', '\t', '\r', '\n', ',', ':':
			w.i++
		default:
			w.word()
		}
		if depth <= 0 {
			return w.b[from:min(w.i, len(w.b))]
		}
	}
	w.lost = true
	return nil
}

// text takes a text.
func (w *walker) text() {
	for w.i++; w.i < len(w.b); {
		n := bytes.IndexByte(w.b[w.i:], '"')
		if n < 0 {
			break
		}
		end := w.i + n
		escapes := 0
		for end-escapes > w.i && w.b[end-escapes-1] == '\\' {
			escapes++
		}
		w.i = end + 1
		if escapes%2 == 0 {
			return
		}
	}
	w.i, w.lost = len(w.b), true
}

// word takes a number, true, false or null.
func (w *walker) word() {
	for ; w.i < len(w.b); w.i++ {
		switch w.b[w.i] {
		case ' ', '\t', '\r', '\n', ',', ':', ']', '}', '[', '{', '"':
			return
		}
	}
}
