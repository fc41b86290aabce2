"""model.py DIR: writes a small Llama with seeded random weights into DIR, with the tokenizer and the chat template of Qwen 3.

Run it with the Python of .cache/vllm/venv; scripts/tokenizers.sh must have fetched the tokenizer. Same arguments, same files.

It knows nothing, but what it says depends on all of its prompt: the weights are so large that attention decides the next token. (vLLM's own
--load-format dummy draws weights of 0.001, and says about the same whatever it is asked, so wrong KV would go unseen.) The tokenizer is a
real one, so that the gateway's counting is compared with an engine's on what people serve.
"""

import argparse
import json
import pathlib
import shutil

import torch
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOKENIZER = ROOT / ".cache/tokenizers/qwen3.json"
TEMPLATE = ROOT / "internal/gateway/tokens/template/testdata/templates/Qwen3-8B-Q8_0.jinja"
VOCABULARY = 151936  # the 151,669 tokens of the tokenizer, padded as Qwen 3 pads them
END_OF_TEXT, IM_END = 151643, 151645
SEED = 1234


def config(a):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": a.hidden,
        "intermediate_size": 2 * a.hidden,
        "num_hidden_layers": a.layers,
        "num_attention_heads": a.hidden // a.head,
        "num_key_value_heads": a.kv_heads,
        "head_dim": a.head,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": a.context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,  # else the last token's own embedding would be the likeliest answer
        "torch_dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": IM_END,
        "pad_token_id": END_OF_TEXT,
        "attention_bias": False,
    }


def weights(a):
    """The tensors by name. The scales keep the residual stream near unit size and the attention sharp."""
    g = torch.Generator().manual_seed(SEED)

    def normal(rows, columns, std):
        return (torch.randn(rows, columns, generator=g) * std).to(torch.bfloat16)

    def ones():
        return torch.ones(a.hidden, dtype=torch.bfloat16)

    h, kv, wide = a.hidden, a.kv_heads * a.head, 2 * a.hidden
    out = {
        "model.embed_tokens.weight": normal(VOCABULARY, h, 1.0),
        "lm_head.weight": normal(VOCABULARY, h, 0.3),
        "model.norm.weight": ones(),
    }
    for i in range(a.layers):
        layer = {
            "self_attn.q_proj": normal(h, h, 0.12),
            "self_attn.k_proj": normal(kv, h, 0.12),
            "self_attn.v_proj": normal(kv, h, 0.12),
            "self_attn.o_proj": normal(h, h, 0.12),
            "mlp.gate_proj": normal(wide, h, 0.08),
            "mlp.up_proj": normal(wide, h, 0.08),
            "mlp.down_proj": normal(h, wide, 0.08),
            "input_layernorm": ones(),
            "post_attention_layernorm": ones(),
        }
        out |= {f"model.layers.{i}.{name}.weight": t for name, t in layer.items()}
    return out


def write(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("dir", type=pathlib.Path)
    p.add_argument("--hidden", type=int, default=256)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--head", type=int, default=64, help="size of a head; vLLM's CPU kernels take 32, 64, 80, 96, 112, 128 …")
    p.add_argument("--kv-heads", type=int, default=2)
    p.add_argument("--context", type=int, default=16384)
    a = p.parse_args()
    made = {k: str(v) for k, v in vars(a).items() if k != "dir"} | {"seed": SEED, "script": pathlib.Path(__file__).read_text()}
    stamp = a.dir / "made.json"  # written last
    if stamp.exists() and json.loads(stamp.read_text()) == made:
        return
    if not TOKENIZER.exists():
        raise SystemExit(f"{TOKENIZER} is missing: run scripts/tokenizers.sh")
    a.dir.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    shutil.copyfile(TOKENIZER, a.dir / "tokenizer.json")
    shutil.copyfile(TEMPLATE, a.dir / "chat_template.jinja")
    write(a.dir / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": a.context,
        "clean_up_tokenization_spaces": False,
    })
    write(a.dir / "config.json", config(a))
    write(a.dir / "generation_config.json", {"eos_token_id": IM_END, "pad_token_id": END_OF_TEXT})
    save_file(weights(a), a.dir / "model.safetensors", metadata={"format": "pt"})
    write(stamp, made)
    print(f"a model of {sum(f.stat().st_size for f in a.dir.iterdir()) >> 20} MiB is in {a.dir}")


main()
