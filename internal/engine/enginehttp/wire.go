package enginehttp

import (
	"encoding/json"
	"strconv"
)

// shape writes the answers of one request in its flavor's form. The forms are those of vLLM 0.32 and SGLang 0.5.23; the tests compare
// their keys with answers of the real engines. Bytes are appended by hand: a stream of chunks is most of what an engine under load
// writes.
type shape struct {
	flavor    Flavor
	chat      bool
	id, model string
	created   int64 // Unix seconds
	hideCache bool

	head []byte // what every chunk begins with
}

// choice is one finished sequence.
type choice struct {
	text           string
	prompt, cached int // tokens
	tokens         []uint32
	reason         string
}

func (s *shape) object(stream bool) string {
	switch {
	case s.chat && stream:
		return "chat.completion.chunk"
	case s.chat:
		return "chat.completion"
	}
	return "text_completion"
}

func (s *shape) appendHead(b []byte, stream bool) []byte {
	b = append(append(b, `{"id":`...), quote(s.id)...)
	b = append(append(b, `,"object":"`...), s.object(stream)...)
	b = strconv.AppendInt(append(b, `","created":`...), s.created, 10)
	return append(append(append(b, `,"model":`...), quote(s.model)...), `,"choices":[`...)
}

func (s *shape) appendChunkHead(b []byte) []byte {
	if s.head == nil {
		s.head = s.appendHead([]byte("data: "), true)
	}
	return append(b, s.head...)
}

// appendFirst appends the chunk that opens choice index of a chat stream; completions have none.
func (s *shape) appendFirst(b []byte, index int) []byte {
	if !s.chat {
		return b
	}
	b = strconv.AppendInt(append(s.appendChunkHead(b), `{"index":`...), int64(index), 10)
	if s.flavor == SGLang {
		return append(b, `,"delta":{"role":"assistant","content":"","reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}`+"\n\n"...)
	}
	return append(b, `,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null}`+"\n\n"...)
}

// appendChunk appends a chunk with text, which must need no escape in JSON, and, if it is the last, the reason.
func (s *shape) appendChunk(b []byte, index int, text []byte, reason string) []byte {
	if s.chat && s.flavor == SGLang && reason != "" {
		if len(text) > 0 {
			b = s.appendChunk(b, index, text, "")
		}
		text = nil // SGLang ends a chat with a chunk of its own
	}
	b = strconv.AppendInt(append(s.appendChunkHead(b), `{"index":`...), int64(index), 10)
	switch {
	case s.chat && s.flavor == SGLang:
		b = append(append(b, `,"delta":{"role":null,"content":"`...), text...)
		b = append(b, `","reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":`...)
	case s.chat:
		b = append(append(b, `,"delta":{"content":"`...), text...)
		b = append(b, `"},"logprobs":null,"finish_reason":`...)
	default:
		b = append(append(b, `,"text":"`...), text...)
		b = append(b, `","logprobs":null,"finish_reason":`...)
	}
	b = appendReason(b, reason)
	switch {
	case s.flavor == SGLang:
		return append(b, `,"matched_stop":null}],"usage":null}`+"\n\n"...)
	case s.chat && reason != "":
		return append(b, `,"stop_reason":null,"token_ids":null}]}`+"\n\n"...)
	case s.chat:
		return append(b, `,"token_ids":null}]}`+"\n\n"...)
	}
	return append(b, `,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}],"usage":null}`+"\n\n"...)
}

// appendUsageChunk appends the chunk that stream_options.include_usage asks for.
func (s *shape) appendUsageChunk(b []byte, choices []choice) []byte {
	return append(s.appendUsage(append(s.appendChunkHead(b), `],"usage":`...), choices), "}\n\n"...)
}

// appendAnswer appends the whole answer of a request that is not streamed; as vLLM up to the value of kv_transfer_params.
func (s *shape) appendAnswer(b []byte, choices []choice) []byte {
	b = s.appendHead(b, false)
	for i := range choices {
		if i > 0 {
			b = append(b, ',')
		}
		b = s.appendChoice(b, i, &choices[i])
	}
	b = append(b, ']')
	if s.flavor == SGLang {
		b = s.appendUsage(append(b, `,"usage":`...), choices)
		n := 0
		for _, c := range choices {
			n += len(c.tokens)
		}
		return append(appendWeightVersions(append(b, `,"metadata":{`...), n), "}}"...)
	}
	b = append(b, `,"service_tier":null,"system_fingerprint":null,"usage":`...)
	b = s.appendUsage(b, choices)
	if s.chat {
		b = append(b, `,"prompt_logprobs":null,"prompt_token_ids":null`...)
	}
	return append(b, `,"kv_transfer_params":`...) // which the server knows
}

func (s *shape) appendChoice(b []byte, index int, c *choice) []byte {
	b = strconv.AppendInt(append(b, `{"index":`...), int64(index), 10)
	switch {
	case s.chat && s.flavor == SGLang:
		b = append(append(b, `,"message":{"role":"assistant","content":`...), quote(c.text)...)
		b = append(b, `,"reasoning_content":null},"logprobs":null,"finish_reason":`...)
	case s.chat:
		b = append(append(b, `,"message":{"role":"assistant","content":`...), quote(c.text)...)
		b = append(b, `,"refusal":null,"annotations":null,"audio":null,"function_call":null,"tool_calls":[],"reasoning":null},"logprobs":null,"finish_reason":`...)
	default:
		b = append(append(b, `,"text":`...), quote(c.text)...)
		b = append(b, `,"logprobs":null,"finish_reason":`...)
	}
	b = appendReason(b, c.reason)
	switch {
	case s.flavor == SGLang:
		return append(b, `,"matched_stop":null}`...)
	case s.chat:
		return append(b, `,"stop_reason":null,"token_ids":null}`...)
	}
	return append(b, `,"stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null}`...)
}

func (s *shape) appendUsage(b []byte, choices []choice) []byte {
	prompt, output, cached := 0, 0, 0
	for _, c := range choices {
		prompt, output, cached = prompt+c.prompt, output+len(c.tokens), cached+c.cached
	}
	b = strconv.AppendInt(append(b, `{"prompt_tokens":`...), int64(prompt), 10)
	b = strconv.AppendInt(append(b, `,"total_tokens":`...), int64(prompt+output), 10)
	b = strconv.AppendInt(append(b, `,"completion_tokens":`...), int64(output), 10)
	b = append(b, `,"prompt_tokens_details":`...)
	if s.hideCache {
		b = append(b, "null"...)
	} else {
		b = append(strconv.AppendInt(append(b, `{"cached_tokens":`...), int64(cached), 10), '}')
	}
	if s.flavor == SGLang {
		b = append(b, `,"reasoning_tokens":0,"completion_tokens_details":null`...)
	}
	return append(b, '}')
}

// appendWeightVersions appends what SGLang says about the weights that made the tokens.
func appendWeightVersions(b []byte, tokens int) []byte {
	b = append(b, `"weight_version":"default","weight_versions":[{"version":"default","start":0,"end":`...)
	return append(strconv.AppendInt(b, int64(tokens), 10), "}]"...)
}

func appendReason(b []byte, reason string) []byte {
	if reason == "" {
		return append(b, "null"...)
	}
	return append(append(append(b, '"'), reason...), '"')
}

// quote returns s as a JSON string.
func quote(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string always has a JSON form
	}
	return b
}
