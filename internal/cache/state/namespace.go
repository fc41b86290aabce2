package state

// Namespace is what is fixed when an engine's rank registers: everything but the request and the tokens that decides the bytes of its
// pages. Two ranks share pages if and only if all of it is equal.
//
// A field is here when another value of it gives other bytes, or makes the same bytes mean something else. What is left out, and why:
// the data-parallel rank (replicas compute the same pages; sharing between them is the point), pool sizes and addresses (where a page
// lies is not what it is), scheduling settings (when something is computed), the tokenizer (the key is made of token ids).
//
// Words are the engine's own ("bfloat16", "TORCH_SDPA"). They are compared as bytes: two spellings of one thing cost hits, never a
// wrong page. An enumeration was rejected: each new dtype or backend would need a new Manager, to gain hits between engines that the
// engine and its version keep apart anyway.
//
// The zero value is invalid. fields in fields.go lists every field for the encoding; a new one goes there too, with a new version.
type Namespace struct {
	// Scope keeps tenants or experiments apart. "" is a scope like any other.
	Scope   string
	Engine  Engine
	Model   Model
	Compute Compute
	Hash    HashScheme
	Shard   Shard
	Layout  Layout
}

// Engine is the program that computes pages.
type Engine struct {
	// Name is the family: vllm, sglang, perigee-engine.
	Name string
	// Version is the exact release, with its build if the engine tells: layouts changed between patch releases of vLLM.
	Version string
}

// Model is what is computed with.
type Model struct {
	// Content is the fingerprint of the model's files, or of a hub's name and revision, or one that the operator declares: see
	// package fingerprint. A name alone is not enough, since what it names can change. The zero digest is invalid.
	Content Digest
	// Processor is the fingerprint of the tokenizer's and media processor's files where they are not the model's own: a processor
	// turns one media hash into different embeddings. Zero: they are the model's own.
	Processor Digest
	// WeightVersion is the version that a live weight update gave, as SGLang's weight_version; "" or the engine's default word.
	WeightVersion string
	// Quantization is how weights are held in memory; "": as they are stored.
	Quantization string
	// Overrides is SHA-256 of what replaces the model's own configuration, such as rope scaling, as JSON with sorted keys and no
	// white space. Zero: nothing does.
	Overrides Digest
}

// Compute is how pages are computed.
type Compute struct {
	// DType is the type of activations.
	DType string
	// Device is the kind of processor: cpu, cuda, rocm.
	Device string
	// ISA is the instruction set or architecture that chose the kernels: avx2, avx512_bf16, sm_90. vLLM's vector code on CPU stores
	// keys in another order than its plain code.
	ISA string
	// Attention, Prefill and Decode are the attention backends. Engines that tell two apart give both, and may leave Attention
	// empty; one of the three is required.
	Attention, Prefill, Decode string
	// KVScales says where the scales of a quantized cache come from: "checkpoint", or what identifies them. Scales that an engine
	// works out as it starts are its own: the adapter then puts something random here. "": the cache has none.
	KVScales string
	// Speculation is the method of speculative decoding, "" for none: SGLang hashes pairs of tokens under EAGLE.
	Speculation string
	// Options are further settings that decide bytes, for engines that have more of them than this type has fields. Sorted by name,
	// each name once.
	Options []Option
}

// Option is a setting of an engine by its own name.
type Option struct{ Name, Value string }

// HashScheme is how the engine names blocks. Under another scheme one hash means other tokens.
type HashScheme struct {
	// Algorithm as the engine names it: sha256, sha256_cbor, xxhash_cbor.
	Algorithm string
	// Seed is what the chain's root is made of: the value of PYTHONHASHSEED. An engine that seeds by chance gives its root here, in
	// hexadecimal; it then shares with nobody, which is the truth. "" is a seed like any other.
	Seed string
	// Tokens is how many tokens one step of the engine's hash chain covers. A page may span several; its key is the last one's.
	Tokens uint32
}

// Rank is one of Size equal parts, counted from 0. Where an axis is not used it is 0 of 1.
type Rank struct{ Index, Size uint32 }

// Shard is the part of the model's state that this rank holds, as far as the attention is split: an engine that runs attention data
// parallel inside tensor parallel gives the attention's own ranks. State that all ranks of an axis hold alike, as MLA's under tensor
// parallelism, is 0 of 1 on that axis, so that they share one page.
type Shard struct {
	Tensor   Rank
	Pipeline Rank
	// DecodeContext and PrefillContext are vLLM's DCP and PCP; SGLang's attention CP is the latter.
	DecodeContext  Rank
	PrefillContext Rank
	// Heads is the slice of its heads that a page holds, where an engine cuts pages finer than ranks so that other tensor-parallel sizes
	// can read them. Tensor is then 0 of 1.
	Heads Rank
}

// Layout is what lies where in a page.
type Layout struct {
	// Order is the physical order of the axes as the engine names it: HND, LBNHD, page_first_direct. SGLang's page_first and
	// page_first_direct have the same sizes and the same keys, and other bytes.
	Order string
	// CrossLayer says that one block holds all layers next to each other.
	CrossLayer bool
	// KVDType is the type that the cache stores. Each segment has its own, too; this is what the engine was told.
	KVDType string
	// Format is the representation that is stored: FormatRaw, or a codec and its version.
	Format string
	// BlockTokens is the length of a page in tokens, one for all groups.
	BlockTokens uint32
	// Groups are the KV cache groups, by number: Groups[i] is group i. Group 0 is attention over the whole prefix.
	Groups []Group
}

// FormatRaw is the format of pages whose stored bytes are the engine's own.
const FormatRaw = "raw"

// Group is the layers whose state has one rule. A page of the group is its segments, one after another.
type Group struct {
	Components Components
	Rule       Rule
	// Window is the number of past tokens that RuleWindow needs, and 0 for other rules; see PastWindow.
	Window   uint64
	Segments []Segment
}

// Segment is a run of bytes that an engine copies as one: the keys of a layer, or all of a block.
type Segment struct {
	// Layer is the engine's name of the layer, and Part what of it this is: "k", "v", "kv", "conv".
	Layer, Part string
	DType       string
	// Shape is the block's part in elements, Strides its steps in bytes, outermost first. Both may be empty for a segment that is
	// opaque; else there are as many of the one as of the other.
	Shape   []uint32
	Strides []uint64
	// Bytes is the segment's length. It is never 0.
	Bytes uint64
}

// PageBytes is the length of one page of the group: the sum of its segments'. Valid namespaces stay below MaxPageBytes.
func (g *Group) PageBytes() uint64 {
	var n uint64
	for i := range g.Segments {
		n += g.Segments[i].Bytes
	}
	return n
}
