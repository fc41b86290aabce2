// Package wire reads what engines publish about their KV caches and their load: msgpack of vLLM and SGLang, in all forms that
// their versions have, of TensorRT-LLM's publisher and of llm-d's simulator.
//
// # A batch
//
//	batch = [ts, [event, …], rank?, …]                                            an array, what follows the rank is passed over
//	      | {"ts": …, "events": [event, …], "data_parallel_rank" | "attn_dp_rank": …}   a map, other keys are passed over
//	event = {"type": tag, key: value, …}                                          the fields in any order, unknown ones are passed over
//	      | [tag, value, …]                                                       the fields in the order below; the tail may be missing
//	tag   = "BlockStored" | "BlockRemoved" | "AllBlocksCleared"
//
//	BlockStored:  block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium, lora_name, extra_keys, group_idx,
//	              kv_cache_spec_kind, kv_cache_spec_sliding_window, locality; by name only: cache_salt
//	BlockRemoved: block_hashes, medium, group_idx, locality
//
// SGLang's older arrays have a map of further fields in the place of lora_name. A field that is missing is as one that is nil.
//
//	hash      a number, signed or not, by its 64 bits; or bytes, at least 8, by their last 8, big-endian. A parent of 0 is none.
//	token     a number below 2³²; or a bigram, [token, its successor], by its first: so the last block of a chain may be claimed
//	          though its last token has another successor than the one asked for
//	medium    GPU, nil; CPU, CPU_PINNED; DISK, STORAGE; EXTERNAL, REMOTE; without regard to case. A medium that nobody knows
//	          drops what is stored on it, and makes a removal one from everywhere. locality REMOTE makes all but GPU external.
//	kind      full_attention, mla_attention, sink_full_attention, nil: full; sliding_window*: with its window; mamba is
//	          [prefix.Event.Recurrent]; the others, and a sliding window without its width, have [prefix.Boundless]
//	extra key a LoRA name, an image's [identifier, offset], a salt, a digest, an entry a block: what is no LoRA and no salt
//	          becomes [prefix.Event.Extras]. The salt is the last string of a chain's first block. A name may also be tagged,
//	          ["lora", name], ["cache_salt", salt].
//
// A LoRA of which only the number is published (lora_id, older vLLM) is named "\x00id:N", which no request asks for.
//
// # Faults
//
// An event that is of no use costs itself alone: it is counted by [Class], and the next is read. What it means depends on what it
// was. A store that is lost makes us claim too little, which is safe, and is counted ([Decoder.Holes]), so that nobody takes that for all there is. A removal that is lost makes us claim what is gone: then, and
// where it cannot be told what the event was, [Decoder.Next] returns [Lost], and who claims something of this stream must drop it.
// An event of a type that nobody knows is passed over and claims nothing. A batch that is no batch, or that ends in the midst of
// an event, is an error: the rest of it is lost.
//
// No length is believed: nothing is allocated that the payload's own bytes do not fill, and what one event may need is capped
// ([MaxHashes] and the others). Nesting costs nothing, since what is passed over is not walked recursively.
//
// # Why our own reader
//
// tinylib/msgp's functions on byte slices are the fastest library that we know. The loop over tokens is where the time goes, and a
// call with three results for each token costs twice what a switch in the loop does: BenchmarkBatch has both in one run. Besides,
// its Skip is recursive, and an error in the midst of a value leaves the reader nowhere.
//
// The package is pure. A [Decoder] belongs to one goroutine.
package wire
