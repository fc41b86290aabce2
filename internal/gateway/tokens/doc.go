// Package tokens measures requests in tokens as an engine would see them: it joins a model's tokenizer and its chat template.
//
// It promises that a length which it calls exact is the engine's own (same template, same tokenizer, no guess), that every other
// length says how it was come by, and that ids are called forwardable only for shapes of requests whose rendering all engines
// agree on. Where it cannot say more it says less: a conversation that cannot be rendered is measured by its bare text.
//
// A [Model] is made once and may be used by any number of goroutines at once. The memory of the prefixes that it remembers is the
// [bpe.Cache]'s that it was given, shared by all models of a process.
package tokens
