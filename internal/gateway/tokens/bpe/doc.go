// Package bpe turns text into the token ids that an engine would see, from a Hugging Face tokenizer.json.
//
// It does byte-pair encoding of five kinds: byte-level as in Llama 3, Qwen 2 and 3, DeepSeek V3 and gpt-oss, and over
// characters with byte fallback as in Gemma. It promises:
//
//   - The ids are those of the reference implementation, the tokenizers library, id for id, on every text. Golden ids
//     under testdata hold it to that.
//   - A file with a part that this package does not know is refused, and the error names the part. Nothing is passed
//     over in silence.
//   - A hostile file is an error, not a panic, and needs memory in proportion to its size, which is bounded.
//
// It knows nothing of engines, models' names or chat templates.
package bpe
