package state

import "strconv"

// example is a rank as vLLM on CPU registers it: two layers of full attention and two of a window.
func example() Namespace {
	return Namespace{
		Scope:  "tenant-a",
		Engine: Engine{"vllm", "0.32.0+cpu"},
		Model: Model{
			Content: Digest{1}, Processor: Digest{2}, WeightVersion: "default", Quantization: "awq", Overrides: Digest{3},
		},
		Compute: Compute{
			DType: "bfloat16", Device: "cpu", ISA: "avx2", Attention: "CPU_ATTN", Prefill: "p", Decode: "d", KVScales: "checkpoint",
			Speculation: "eagle", Options: []Option{{"disable_sliding_window", "false"}, {"moe", "fused"}},
		},
		Hash:  HashScheme{"sha256_cbor", "0", 16},
		Shard: Shard{Rank{1, 2}, Rank{0, 1}, Rank{0, 1}, Rank{0, 1}, Rank{0, 1}},
		Layout: Layout{
			Order: "HND", CrossLayer: true, KVDType: "bfloat16", Format: FormatRaw, BlockTokens: 32,
			Groups: []Group{exampleGroup(Of(AttentionKV), RulePrefix, 0, 0), exampleGroup(Of(WindowKV), RuleWindow, 100, 2)},
		},
	}
}

func exampleGroup(c Components, r Rule, window uint64, layer int) Group {
	g := Group{Components: c, Rule: r, Window: window}
	for i := range 2 {
		g.Segments = append(g.Segments, Segment{
			Layer: "model.layers." + strconv.Itoa(layer+i) + ".attn", Part: "kv", DType: "bfloat16",
			Shape: []uint32{2, 32, 128}, Strides: []uint64{8192, 256, 2}, Bytes: 16384,
		})
	}
	return g
}

// rank is the example as one rank of several.
func rank(tensor, pipeline Rank) Namespace {
	n := example()
	n.Shard.Tensor, n.Shard.Pipeline = tensor, pipeline
	return n
}
