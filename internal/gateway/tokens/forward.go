package tokens

import "encoding/json"

// Outcome says whether a conversation's ids may go to the engine in place of its own rendering, and if not, why. The rules are
// sgl-router's: each excludes a shape that some version of the engine renders otherwise. The first that applies is named.
type Outcome string

// The outcomes.
const (
	Forwarded       Outcome = "forwarded"
	NoMessages      Outcome = "no_messages"
	HasTools        Outcome = "tools"
	NonTextContent  Outcome = "non_text_content"
	HasReasoning    Outcome = "reasoning_history"
	UnusualTurns    Outcome = "unusual_turns"
	IsSteered       Outcome = "steered"
	IsContinuation  Outcome = "continuation"
	NotRendered     Outcome = "not_rendered"
	UnreadableTurns Outcome = "unreadable_messages"
)

// turn is what the rules look at in a message.
type turn struct {
	Role             string          `json:"role"`
	Content          json.RawMessage `json:"content"`
	ReasoningContent json.RawMessage `json:"reasoning_content"`
	ToolCalls        json.RawMessage `json:"tool_calls"`
	FunctionCall     json.RawMessage `json:"function_call"`
}

// Forwardable judges a request whose facts are f. functions tells that the request has the old field of that name.
func Forwardable(r Request, f Facts, functions bool) Outcome {
	if r.Messages == nil {
		return NoMessages
	}
	var turns []turn
	if json.Unmarshal(r.Messages, &turns) != nil {
		return UnreadableTurns
	}
	if functions || given(r.Tools) || anyTurn(turns, turn.usesTools) {
		return HasTools
	}
	switch {
	case anyTurn(turns, func(t turn) bool { return !isText(t.Content) }):
		return NonTextContent
	case anyTurn(turns, func(t turn) bool { return given(t.ReasoningContent) }):
		return HasReasoning
	case unusual(turns):
		return UnusualTurns
	case r.Steered, given(r.Kwargs):
		return IsSteered
	case r.ContinueFinal, r.NoGenerationPrompt, len(turns) > 0 && turns[len(turns)-1].Role == "assistant":
		return IsContinuation
	case f.Source != Rendered, !f.Exact:
		return NotRendered
	}
	return Forwarded
}

func (t turn) usesTools() bool {
	return t.Role == "tool" || t.Role == "function" || given(t.ToolCalls) || given(t.FunctionCall)
}

// unusual tells of a system turn that is not the first, or of two user turns in a row: templates treat these differently.
func unusual(turns []turn) bool {
	for i, t := range turns {
		if i > 0 && (t.Role == "system" || t.Role == "developer" || t.Role == "user" && turns[i-1].Role == "user") {
			return true
		}
	}
	return false
}

func anyTurn(turns []turn, is func(turn) bool) bool {
	for _, t := range turns {
		if is(t) {
			return true
		}
	}
	return false
}

// given tells whether a raw value is there and not null.
func given(raw []byte) bool { return len(raw) > 0 && string(raw) != "null" }

func isText(raw []byte) bool { return len(raw) > 0 && raw[0] == '"' }

// plainContent tells whether every message's content is a text: lists of parts are flattened by each engine in its own way.
func plainContent(messages []byte) bool {
	var turns []turn
	return json.Unmarshal(messages, &turns) == nil && !anyTurn(turns, func(t turn) bool { return !isText(t.Content) })
}
