package enginehttp

import (
	"github.com/tinylib/msgp/msgp"

	"github.com/perigee-llm/perigee/internal/engine"
)

// appendBatch appends a batch of events as the flavor publishes it, in msgpack: [timestamp in seconds, events, rank], each event a
// map with its type first. The fields and their order are those of vLLM 0.32 and SGLang 0.5.23.
func appendBatch(b []byte, f Flavor, ts float64, events []*engine.KVEvent) []byte {
	b = msgp.AppendArrayHeader(b, 3)
	b = msgp.AppendFloat64(b, ts)
	b = msgp.AppendArrayHeader(b, uint32(len(events)))
	for _, ev := range events {
		switch {
		case ev.Kind == engine.AllBlocksCleared:
			b = msgp.AppendMapHeader(b, 1)
			b = appendField(b, "type", "AllBlocksCleared")
		case ev.Kind == engine.BlockRemoved:
			b = appendRemoved(b, f, ev)
		case f == VLLM:
			b = appendStoredVLLM(b, ev)
		default:
			b = appendStoredSGLang(b, ev)
		}
	}
	return msgp.AppendInt(b, 0)
}

func appendRemoved(b []byte, f Flavor, ev *engine.KVEvent) []byte {
	n := uint32(3)
	if f == VLLM {
		n = 4
	}
	b = msgp.AppendMapHeader(b, n)
	b = appendField(b, "type", "BlockRemoved")
	b = appendHashes(b, f, ev.Hashes)
	b = appendField(b, "medium", "GPU")
	if f == VLLM {
		b = msgp.AppendInt(msgp.AppendString(b, "group_idx"), 0)
	}
	return b
}

func appendStoredVLLM(b []byte, ev *engine.KVEvent) []byte {
	b = msgp.AppendMapHeader(b, 11)
	b = appendField(b, "type", "BlockStored")
	b = appendChain(b, VLLM, ev)
	b = msgp.AppendNil(msgp.AppendString(b, "lora_id"))
	b = appendField(b, "medium", "GPU")
	b = msgp.AppendString(b, "lora_name")
	if ev.LoRA == "" {
		b = msgp.AppendNil(b)
	} else {
		b = msgp.AppendString(b, ev.LoRA)
	}
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "extra_keys"), uint32(len(ev.Hashes)))
	for i := range ev.Hashes {
		b = appendExtra(b, ev, i == 0 && !ev.HasParent)
	}
	b = msgp.AppendInt(msgp.AppendString(b, "group_idx"), 0)
	return appendField(b, "kv_cache_spec_kind", "full_attention")
}

// appendExtra appends the extra keys of a block: the adapter's name on each, the salt on a prompt's first only.
func appendExtra(b []byte, ev *engine.KVEvent, first bool) []byte {
	var keys []string
	if ev.LoRA != "" {
		keys = append(keys, ev.LoRA)
	}
	if first && ev.Salt != "" {
		keys = append(keys, ev.Salt)
	}
	if keys == nil {
		return msgp.AppendNil(b)
	}
	b = msgp.AppendArrayHeader(b, uint32(len(keys)))
	for _, k := range keys {
		b = msgp.AppendString(b, k)
	}
	return b
}

// appendStoredSGLang leaves out what is not there, as the engine does.
func appendStoredSGLang(b []byte, ev *engine.KVEvent) []byte {
	n := uint32(7)
	salted := ev.Salt != "" && !ev.HasParent
	if salted {
		n++
	}
	if ev.LoRA != "" {
		n++
	}
	b = msgp.AppendMapHeader(b, n)
	b = appendField(b, "type", "BlockStored")
	b = appendChain(b, SGLang, ev)
	b = msgp.AppendNil(msgp.AppendString(b, "lora_id"))
	b = appendField(b, "medium", "GPU")
	if salted {
		b = appendField(b, "cache_salt", ev.Salt)
	}
	if ev.LoRA != "" {
		b = appendField(b, "lora_name", ev.LoRA)
	}
	return b
}

// appendChain appends what the flavors have in common: hashes, parent, tokens and block size.
func appendChain(b []byte, f Flavor, ev *engine.KVEvent) []byte {
	b = appendHashes(b, f, ev.Hashes)
	b = msgp.AppendString(b, "parent_block_hash")
	if ev.HasParent {
		b = appendHash(b, f, ev.Parent)
	} else {
		b = msgp.AppendNil(b)
	}
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "token_ids"), uint32(len(ev.Tokens)))
	for _, t := range ev.Tokens {
		b = msgp.AppendUint32(b, t)
	}
	return msgp.AppendInt(msgp.AppendString(b, "block_size"), ev.BlockSize)
}

func appendHashes(b []byte, f Flavor, hashes []engine.BlockHash) []byte {
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "block_hashes"), uint32(len(hashes)))
	for _, h := range hashes {
		b = appendHash(b, f, h)
	}
	return b
}

// appendHash appends 64 bits of a hash: unsigned in vLLM, signed in SGLang.
func appendHash(b []byte, f Flavor, h engine.BlockHash) []byte {
	if f == VLLM {
		return msgp.AppendUint64(b, h.Lo)
	}
	return msgp.AppendInt64(b, int64(h.Lo))
}

func appendField(b []byte, key, value string) []byte {
	return msgp.AppendString(msgp.AppendString(b, key), value)
}

// appendLoad appends a load report as SGLang's load stream has it: a tag, then figures in a fixed order, the last two cumulative.
func appendLoad(b []byte, l engine.Load) []byte {
	b = msgp.AppendArrayHeader(b, 11)
	b = msgp.AppendString(b, "LoadStat")
	for _, n := range [...]int64{
		int64(l.Running), int64(l.Waiting), int64(l.UsedTokens), int64(l.CapacityTokens), 0, // the rank
		int64(l.WaitingUncachedTokens), int64(l.TotalTokens), int64(l.MaxRunning), l.PrefillUncachedTokens, l.PrefillBusy.Microseconds(),
	} {
		b = msgp.AppendInt64(b, n)
	}
	return b
}
