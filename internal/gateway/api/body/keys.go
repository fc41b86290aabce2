package body

import (
	"iter"
	"math/bits"

	"github.com/perigee-llm/perigee/internal/gateway/api/body/lex"
)

// Key is one of the top-level keys that the gateway reads. Every other key is unknown: it may be repeated
// and passes as it is. Names are compared after their escapes are decoded, and by exact case.
type Key uint8

// The keys that are read.
const (
	Model Key = iota
	Stream
	StreamOptions
	MaxTokens
	MaxCompletionTokens
	MinTokens
	BestOf
	Messages
	Prompt
	PromptEmbeds

	// What changes the text or the ids that an engine makes of a prompt or of messages.
	Tools
	Functions
	Documents
	ChatTemplate
	ChatTemplateKwargs
	AddGenerationPrompt
	ContinueFinalMessage
	AddSpecialTokens
	Reasoning
	ReasoningEffort
	Task

	// The fields of the sampling contract.
	Temperature
	TopP
	TopK
	MinP
	RepetitionPenalty
	FrequencyPenalty
	PresencePenalty
	N

	// What a client may not set unless the configuration allows it.
	KVTransferParams
	BootstrapHost
	BootstrapPort
	BootstrapRoom
	InputIDs
	CacheSalt
	ExtraKey
	RID
	RoutedDPRank
	DataParallelRank
	DisaggPrefillDPRank // which of its ranks an SGLang decode engine is to fetch KV from
	VLLMXArgs           // what vLLM hands to connectors and extensions as it is: it may even change which KV events the engine publishes
	ECTransferParams    // where vLLM fetches encoded images from

	numKeys
)

var keyNames = [numKeys]string{
	Model: "model", Stream: "stream", StreamOptions: "stream_options", MaxTokens: "max_tokens",
	MaxCompletionTokens: "max_completion_tokens", MinTokens: "min_tokens", BestOf: "best_of", Messages: "messages", Prompt: "prompt",
	PromptEmbeds: "prompt_embeds",
	Tools:        "tools", Functions: "functions", Documents: "documents", ChatTemplate: "chat_template",
	ChatTemplateKwargs: "chat_template_kwargs", AddGenerationPrompt: "add_generation_prompt",
	ContinueFinalMessage: "continue_final_message", AddSpecialTokens: "add_special_tokens",
	Reasoning: "reasoning", ReasoningEffort: "reasoning_effort", Task: "task",
	Temperature: "temperature", TopP: "top_p", TopK: "top_k", MinP: "min_p", RepetitionPenalty: "repetition_penalty",
	FrequencyPenalty: "frequency_penalty", PresencePenalty: "presence_penalty", N: "n",
	KVTransferParams: "kv_transfer_params", BootstrapHost: "bootstrap_host", BootstrapPort: "bootstrap_port",
	BootstrapRoom: "bootstrap_room", InputIDs: "input_ids", CacheSalt: "cache_salt", ExtraKey: "extra_key",
	RID: "rid", RoutedDPRank: "routed_dp_rank", DataParallelRank: "data_parallel_rank",
	DisaggPrefillDPRank: "disagg_prefill_dp_rank", VLLMXArgs: "vllm_xargs", ECTransferParams: "ec_transfer_params",
}

// String returns the key's name in JSON.
func (k Key) String() string {
	if k < numKeys {
		return keyNames[k]
	}
	return ""
}

// KeyNamed returns the key with that exact name.
func KeyNamed(name string) (Key, bool) {
	for k, n := range keyNames {
		if n == name {
			return Key(k), true
		}
	}
	return 0, false
}

// Keys is a set of keys. The zero value is the empty set.
type Keys uint64

// KeysOf returns the set of ks.
func KeysOf(ks ...Key) Keys {
	var s Keys
	for _, k := range ks {
		s |= 1 << k
	}
	return s
}

// Has says whether k is in the set.
func (s Keys) Has(k Key) bool { return s&(1<<k) != 0 }

// Len returns the number of keys in the set.
func (s Keys) Len() int { return bits.OnesCount64(uint64(s)) }

// take removes the first key from the set and returns it. The loops of the request's path use it, because
// a loop over All moves what its body touches to the heap.
func (s *Keys) take() Key {
	k := Key(bits.TrailingZeros64(uint64(*s)))
	*s &= *s - 1
	return k
}

// All yields the keys in the order of their constants.
func (s Keys) All() iter.Seq[Key] {
	return func(yield func(Key) bool) {
		for ; s != 0; s &= s - 1 {
			if !yield(Key(bits.TrailingZeros64(uint64(s)))) {
				return
			}
		}
	}
}

// SamplingKeys are the fields that a Contract may hold. ProtectedKeys are what a client may not set unless the
// configuration allows it: they steer where KV goes, what is shared between tenants, and what an abort means. A
// priority is not among them: it is for clients to set, where the engine was started with priorities. These are all that the request classes of
// SGLang 0.5.23 (PDRoutingFields and what stands beside it) and vLLM 0.32 have of the kind; vLLM's request_id is none, since X-Request-Id, which
// always goes along, comes before it.
const (
	SamplingKeys  Keys = 1<<KVTransferParams - 1<<Temperature
	ProtectedKeys Keys = 1<<numKeys - 1<<KVTransferParams
)

// keyAt returns the known key whose raw name (without quotes) is raw.
func keyAt(raw []byte, escaped bool) (Key, bool) {
	// The longest known name has 22 characters; each of them is at most six bytes long when it is escaped.
	const longest, longestRaw = 22, 6 * 22
	if !escaped {
		if len(raw) > longest {
			return 0, false
		}
		return known(raw)
	}
	if len(raw) > longestRaw {
		return 0, false
	}
	var buf [longestRaw]byte
	return known(lex.AppendDecoded(buf[:0], raw))
}

// known is a switch because the compiler turns it into a search by length and content, which costs a few
// nanoseconds; a map of strings costs a hash.
func known(name []byte) (Key, bool) {
	switch string(name) {
	case "model":
		return Model, true
	case "stream":
		return Stream, true
	case "stream_options":
		return StreamOptions, true
	case "max_tokens":
		return MaxTokens, true
	case "max_completion_tokens":
		return MaxCompletionTokens, true
	case "min_tokens":
		return MinTokens, true
	case "best_of":
		return BestOf, true
	case "messages":
		return Messages, true
	case "prompt":
		return Prompt, true
	case "prompt_embeds":
		return PromptEmbeds, true
	case "temperature":
		return Temperature, true
	case "top_p":
		return TopP, true
	case "top_k":
		return TopK, true
	case "min_p":
		return MinP, true
	case "repetition_penalty":
		return RepetitionPenalty, true
	case "frequency_penalty":
		return FrequencyPenalty, true
	case "presence_penalty":
		return PresencePenalty, true
	case "n":
		return N, true
	}
	if k, ok := knownProtected(name); ok {
		return k, true
	}
	return knownShaping(name)
}

func knownShaping(name []byte) (Key, bool) {
	switch string(name) {
	case "tools":
		return Tools, true
	case "functions":
		return Functions, true
	case "documents":
		return Documents, true
	case "chat_template":
		return ChatTemplate, true
	case "chat_template_kwargs":
		return ChatTemplateKwargs, true
	case "add_generation_prompt":
		return AddGenerationPrompt, true
	case "continue_final_message":
		return ContinueFinalMessage, true
	case "add_special_tokens":
		return AddSpecialTokens, true
	case "reasoning":
		return Reasoning, true
	case "reasoning_effort":
		return ReasoningEffort, true
	case "task":
		return Task, true
	}
	return 0, false
}

func knownProtected(name []byte) (Key, bool) {
	switch string(name) {
	case "kv_transfer_params":
		return KVTransferParams, true
	case "bootstrap_host":
		return BootstrapHost, true
	case "bootstrap_port":
		return BootstrapPort, true
	case "bootstrap_room":
		return BootstrapRoom, true
	case "input_ids":
		return InputIDs, true
	case "cache_salt":
		return CacheSalt, true
	case "extra_key":
		return ExtraKey, true
	case "rid":
		return RID, true
	case "routed_dp_rank":
		return RoutedDPRank, true
	case "data_parallel_rank":
		return DataParallelRank, true
	case "disagg_prefill_dp_rank":
		return DisaggPrefillDPRank, true
	case "vllm_xargs":
		return VLLMXArgs, true
	case "ec_transfer_params":
		return ECTransferParams, true
	}
	return 0, false
}
