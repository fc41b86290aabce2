package tokens

import (
	"bytes"
	"encoding/json"
)

// Outcome says whether a conversation's ids may go to the engine in place of its own rendering, and if not, why. The rules are
// sgl-router's: each excludes a shape that some version of the engine renders otherwise. The first that applies is named.
type Outcome string

// The outcomes, in the order in which they are looked for. The first is the caller's to find, who knows the whole request.
const (
	CallerIDs       Outcome = "caller_input_ids"    // the client sent ids of its own
	NoMessages      Outcome = "no_messages"         // messages is no list, or an empty one
	UnreadableTurns Outcome = "unreadable_messages" // messages has something else than objects
	HasTools        Outcome = "tools"               // tools or functions, or turns that used some
	NonTextContent  Outcome = "non_text_content"    // content that is not a text: parts, or none
	HasReasoning    Outcome = "reasoning_history"   // a turn with its reasoning
	UnusualTurns    Outcome = "unusual_turns"       // a system turn that is not the first, or two user turns in a row
	IsSteered       Outcome = "steered"             // the request changes its rendering
	IsContinuation  Outcome = "continuation"        // the answer goes on where the last turn ends
	NotRendered     Outcome = "not_rendered"        // the template could not be followed
	Forwarded       Outcome = "forwarded"
)

// shape is what the rules look at in a conversation. The zero value is an ordinary one.
type shape struct {
	noMessages, unreadable, tools, parts, reasoning, unusual, developer, assistantLast bool
}

// Forwardable judges a request whose facts are f, which Measure returned for it.
func Forwardable(r Request, f Facts) Outcome {
	switch s := f.shape; {
	case r.Prompt != nil, s.noMessages:
		return NoMessages
	case s.unreadable:
		return UnreadableTurns
	case r.Functions, given(r.Tools), s.tools:
		return HasTools
	case s.parts:
		return NonTextContent
	case s.reasoning:
		return HasReasoning
	case s.unusual:
		return UnusualTurns
	case r.Steered, given(r.Kwargs), given(r.Documents): // the engines that take ids know no documents
		return IsSteered
	case r.ContinueFinal, r.NoGenerationPrompt, s.assistantLast:
		return IsContinuation
	case f.Source != Rendered, !s.plain(), r.asksMore():
		return NotRendered
	}
	return Forwarded
}

// plain tells that every engine hands these messages to the template as they are. Tools and tool calls are not so: engines
// complete them, reorder their keys, or leave them out, as tool_choice says.
func (s shape) plain() bool {
	return !(s.noMessages || s.unreadable || s.tools || s.parts || s.reasoning)
}

// TextOnly tells whether messages is a list, not empty, of turns whose contents are texts.
func TextOnly(messages []byte) bool {
	s := shapeOf(messages)
	return !(s.noMessages || s.unreadable || s.parts)
}

// shapeOf reads the messages. Names of keys are compared exactly and the last of two counts, as engines do; encoding/json
// would take "Content" for content where it reads into a struct.
func shapeOf(messages []byte) (s shape) {
	var decoded []map[string]json.RawMessage
	if m := bytes.TrimLeft(messages, " \t\r\n"); len(m) == 0 || m[0] != '[' {
		s.noMessages = true
		return s
	}
	if json.Unmarshal(messages, &decoded) != nil {
		s.unreadable = true
		return s
	}
	turns := make([]turn, len(decoded))
	for i, d := range decoded {
		for key, value := range d {
			turns[i].set([]byte(key), value)
		}
	}
	return shapeOfTurns(turns)
}

// shapeOfTurns judges what was read. A turn without a role, or null, is unreadable.
func shapeOfTurns(turns []turn) (s shape) {
	s.noMessages = len(turns) == 0
	before := ""
	for i := range turns {
		t := &turns[i]
		role, ok := t.name()
		if !ok {
			s.unreadable = true
			return s
		}
		s.tools = s.tools || role == "tool" || role == "function" || given(t.toolCalls) || given(t.functionCall)
		s.parts = s.parts || !isText(t.content)
		s.reasoning = s.reasoning || given(t.reasoningContent) || given(t.reasoning) // SGLang's and vLLM's names
		// Templates treat these differently.
		s.unusual = s.unusual || i > 0 && (role == "system" || role == "developer" || role == "user" && before == "user")
		s.developer = s.developer || role == "developer"
		s.assistantLast = role == "assistant"
		before = role
	}
	return s
}

// given tells whether a raw value is there and not null.
func given(raw []byte) bool { return len(raw) > 0 && string(raw) != "null" }

func isText(raw []byte) bool { return len(raw) > 0 && raw[0] == '"' }
