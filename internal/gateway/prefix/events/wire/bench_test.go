//go:build unix

package wire

import (
	"fmt"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// message is a vLLM batch with one store, of blocks of 16 tokens: the common workload has 32 of them, 2.9 KB.
func message(blocks int, asMap bool) []byte {
	b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), 1.7e9)
	b = msgp.AppendArrayHeader(b, 1)
	key := func(string) {}
	if asMap {
		b = msgp.AppendMapHeader(b, 9)
		key = func(k string) { b = msgp.AppendString(b, k) }
	} else {
		b = msgp.AppendArrayHeader(b, 9)
	}
	key("type")
	b = msgp.AppendString(b, "BlockStored")
	key("block_hashes")
	b = msgp.AppendArrayHeader(b, uint32(blocks))
	for i := range blocks {
		b = msgp.AppendUint64(b, 0x9e3779b97f4a7c15*uint64(i+1)|1<<63)
	}
	key("parent_block_hash")
	b = msgp.AppendUint64(b, 1<<63|7)
	key("token_ids")
	b = msgp.AppendArrayHeader(b, uint32(16*blocks))
	for i := range 16 * blocks {
		b = msgp.AppendUint32(b, uint32(i*7919+13)%152064)
	}
	key("block_size")
	b = msgp.AppendInt(b, 16)
	key("lora_id")
	b = msgp.AppendNil(b)
	key("medium")
	b = msgp.AppendString(b, "GPU")
	key("lora_name")
	b = msgp.AppendNil(b)
	key("extra_keys")
	b = msgp.AppendArrayHeader(b, uint32(blocks))
	for range blocks {
		b = msgp.AppendNil(b)
	}
	return msgp.AppendInt(b, 0)
}

// BenchmarkBatch has ours beside a reader of the same message by msgp's functions, with nothing checked, in one run.
func BenchmarkBatch(b *testing.B) {
	for _, blocks := range []int{1, 32} {
		for _, form := range []string{"array", "map"} {
			p := message(blocks, form == "map")
			b.Run(fmt.Sprintf("ours/%s/blocks=%d", form, blocks), func(b *testing.B) {
				var d Decoder
				b.ReportAllocs()
				began := cpuTime()
				for b.Loop() {
					if d.Begin(p) != nil || d.Next() != Event || d.Next() != End {
						b.Fatal("not read")
					}
				}
				reportBlocks(b, cpuTime()-began, b.N*blocks)
			})
		}
		p := message(blocks, false)
		b.Run(fmt.Sprintf("msgp/array/blocks=%d", blocks), func(b *testing.B) {
			var hashes []prefix.Hash
			var tokens []uint32
			b.ReportAllocs()
			began := cpuTime()
			for b.Loop() {
				hashes, tokens = withMsgp(b, p, hashes[:0], tokens[:0])
			}
			reportBlocks(b, cpuTime()-began, b.N*blocks)
		})
	}
}

func withMsgp(b *testing.B, p []byte, hashes []prefix.Hash, tokens []uint32) ([]prefix.Hash, []uint32) {
	var n uint32
	var v uint64
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	_, p, err := msgp.ReadArrayHeaderBytes(p)
	must(err)
	_, p, err = msgp.ReadFloat64Bytes(p)
	must(err)
	_, p, err = msgp.ReadArrayHeaderBytes(p)
	must(err)
	_, p, err = msgp.ReadArrayHeaderBytes(p)
	must(err)
	_, p, err = msgp.ReadStringZC(p)
	must(err)
	n, p, err = msgp.ReadArrayHeaderBytes(p)
	must(err)
	for range n {
		v, p, err = msgp.ReadUint64Bytes(p)
		must(err)
		hashes = append(hashes, prefix.Hash(v))
	}
	_, p, err = msgp.ReadUint64Bytes(p)
	must(err)
	n, p, err = msgp.ReadArrayHeaderBytes(p)
	must(err)
	for range n {
		var u uint32
		u, p, err = msgp.ReadUint32Bytes(p)
		must(err)
		tokens = append(tokens, u)
	}
	for range 5 {
		p, err = msgp.Skip(p)
		must(err)
	}
	_, err = msgp.Skip(p)
	must(err)
	return hashes, tokens
}
