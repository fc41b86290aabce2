package body

import "github.com/perigee-llm/perigee/internal/gateway/api/body/lex"

// MaxDepth is the deepest nesting that Scan accepts; the top-level object is level 1. See lex.MaxDepth for
// the reason.
const MaxDepth = lex.MaxDepth

// MaxLen is the longest body that Scan accepts, in bytes. Offsets are kept in 32 bits; the gateway's own
// limit is far below.
const MaxLen = 1 << 30

// Kind is the endpoint that a body was sent to.
type Kind uint8

// The kinds of bodies.
const (
	Chat       Kind = iota // /v1/chat/completions: messages
	Completion             // /v1/completions: prompt
)

// Count is a non-negative whole number that may be unknown; unknown is not zero.
type Count = lex.Count

// Span is a range of bytes of the body, [Start, End). The zero value is absent.
type Span struct{ Start, End int }

// Present says whether there is a value, which may be null.
func (s Span) Present() bool { return s.End > s.Start }

// Of returns the bytes of the span; nil when it is absent. They alias body.
func (s Span) Of(body []byte) []byte {
	if !s.Present() {
		return nil
	}
	return body[s.Start:s.End]
}

// PromptKind says how the prompt was given.
type PromptKind uint8

// The kinds of prompts.
const (
	PromptNone     PromptKind = iota // not read: a body without one
	PromptMessages                   // chat messages
	PromptText                       // one string
	PromptTexts                      // a list of strings
	PromptIDs                        // one list of token ids
	PromptIDLists                    // a list of lists of token ids
	PromptVectors                    // prompt_embeds without a prompt: nothing of it can be counted
)

// PromptFacts measures the input in tokens.
//
// Token ids are counted, and exact. Text is estimated as its bytes in UTF-8 after escapes are decoded,
// divided by four, at least 1 a prompt. Chat messages and embeddings are estimated as the whole body's
// bytes divided by four, at least 1. (The quarter is sgl-router's rule for requests that are not tokenised.)
type PromptFacts struct {
	Kind    PromptKind
	Exact   bool // Longest and Total were counted, not estimated
	Count   int  // prompts in the request; 1 for chat
	Longest int  // tokens of the longest prompt; an empty list of ids inside a list is 0
	Total   int  // tokens of all prompts
}

// Facts is what Scan reads of a body. It aliases the body. A null value reads as absent, but Has says that
// the key is there.
type Facts struct {
	Kind   Kind
	Model  []byte // decoded, never absent; a part of the body unless its spelling has escapes
	Stream bool   // absent is false

	MaxTokens           Count
	MaxCompletionTokens Count

	// FanOut says that the request may run as several sequences in the engine: n or best_of is more than 1,
	// or cannot be read as a number.
	FanOut bool

	// RID is the request id that the caller chose for the engine, decoded; nil when there is none or when
	// it is not a string (Has(RID) tells them apart).
	RID []byte

	IncludeUsage bool // stream_options.include_usage is true

	Prompt PromptFacts

	keys    Keys
	open    int32 // offset of the opening brace
	close   int32 // offset of the closing brace
	members int32 // all members of the object, known or not
	at      [numKeys]member
}

// member is where a known key stands. Offsets are of the body.
type member struct {
	index      int32 // among all members, from 0
	comma      int32 // the comma before it; meaningless when index is 0
	key        int32 // the opening quote of its name
	value, end int32 // the value, [value, end)
	next       int32 // the comma behind it, 0 when it is the last member
}

// Keys returns the known keys that the body has, those with null among them.
func (f *Facts) Keys() Keys { return f.keys }

// Has says whether the body has the key, also with null.
func (f *Facts) Has(k Key) bool { return f.keys.Has(k) }

// Value returns the raw value of k as it stands in the body; absent when the body does not have it.
func (f *Facts) Value(k Key) Span {
	if !f.keys.Has(k) {
		return Span{}
	}
	return Span{int(f.at[k].value), int(f.at[k].end)}
}

// MaxOutput returns the number of output tokens that the request asks for at most: max_completion_tokens,
// else max_tokens, else unknown (sgl-router's order).
func (f *Facts) MaxOutput() Count {
	if f.MaxCompletionTokens.Known {
		return f.MaxCompletionTokens
	}
	return f.MaxTokens
}
