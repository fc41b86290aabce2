"""What of an engine decides its pages' bytes, as docs/cache-identity.md wants it, from SGLang's configuration."""

import hashlib
import json
import os
import platform

import sglang
import torch
from sglang.srt import environ, runtime_context
from sglang.srt.disaggregation.kv_events import KVEventsConfig

from ..client import fingerprint
from . import lore

QUALIFIED = "0.5.23"

# Groups of side pools: SGLang's name, our components and rule (docs/cache-identity.md).
SIDE_POOLS = {"indexer": (4, 1), "swa": (8, 2), "mamba": (16 | 32, 3)}

# Host pools whose pages lie at equal distances, in all of their layouts, and are not moved: by name, and not what is derived from them.
EQUAL_PAGES = frozenset(("MHATokenToKVPoolHost", "MLATokenToKVPoolHost"))

# Ways of loading whose weights are all in the model's files, in such as a fingerprint reads. Others take them from another process or place, from a copy of their own
# (npcache), or from files of other names (expert_pack).
OWN_FILES = frozenset((
    "auto", "pt", "safetensors", "instanttensor", "fastsafetensors", "dummy", "sharded_state", "gguf", "bitsandbytes", "mistral", "layered", "runai_streamer"))

# Settings that name a file or a directory beside the model of which its numbers depend, too.
BESIDE = ("decrypted_config_file", "modelopt_checkpoint_restore_path", "kt_weight_path")

# Settings of the namespaces below that no byte of a page depends on, or that the namespace has in another way.
IRRELEVANT = frozenset((
    "model_path", "tokenizer_path", "download_dir", "revision", "tokenizer_revision", "tokenizer_mode", "tokenizer_worker_num", "skip_tokenizer_init",
    "weight_loader_disable_mmap", "weight_loader_prefetch_checkpoints", "weight_loader_prefetch_num_threads", "weight_loader_drop_cache_after_load",
    "engine_info_bootstrap_port", "remote_instance_weight_loader_seed_instance_ip", "remote_instance_weight_loader_seed_instance_service_port",
    "remote_instance_weight_loader_send_weights_group_ports", "delete_ckpt_after_loading", "startup_weight_load_mode", "model_checksum",
    "lora_paths", "grammar_backend", "sampling_backend", "enable_watermark", "watermark_key", "watermark_key_b", "weight_cache_socket", "weight_cache_timeout",
))

# Words in the names of environment variables that no byte of a page depends on, and which may differ from process to process.
IRRELEVANT_WORDS = frozenset((
    "ADDR", "AFFINITY", "CI", "COREDUMP", "DIR", "DISAGG", "DISAGGREGATION", "ENCODER", "ENDPOINT", "GRAMMAR", "GRPC", "HEALTH", "HICACHE", "HTTP", "ID", "INTERVAL", "IP", "KEY", "LOG",
    "METRICS", "NUMA", "NVTX", "OTLP", "PORT", "PROFILE", "PROFILER", "RANK", "RAY", "SOCKET", "TEST", "TIMEOUT", "TOOL", "TRACE", "URL", "UVICORN", "WARMUP", "ZMQ"))


def leaves(bag):
    """A namespace of SGLang's configuration, those below it included, as a dict."""
    out = dict(object.__getattribute__(bag, "_fields"))
    for sub in object.__getattribute__(bag, "_subs").values():
        out |= leaves(sub)
    return out


def model_config(args):
    from sglang.srt.arg_groups.model_override_base import model_config_of
    return model_config_of(args)


def unsupported(config, extra):
    """Why this engine cannot be served: all reasons, in words."""
    found = []

    def no(bad, why):
        if bad:
            found.append(why)

    args = runtime_context.get_server_args()
    no(sglang.__version__ != QUALIFIED and not extra.get("allow_unqualified_version"),
       f"SGLang {sglang.__version__}: this backend is qualified for {QUALIFIED} alone; its calls change between versions (allow_unqualified_version in the "
       "extra config tries it all the same)")
    no(not extra.get("interface_v1"), '"interface_v1": 1 is missing in the extra config: without it SGLang copies each page once more, and does not say where to')
    no(runtime_context.get_spec().speculative_algorithm is not None, "speculative decoding is not qualified: its pages hold pairs of tokens, and a draft model's state")
    no(model_config(args).is_multimodal, "a model with media: SGLang puts 30 bits of a hash in the place of a picture's tokens, which do not tell pictures apart")
    ranks = {"pp": config.pp_size, "attention cp": config.attn_cp_size, "dcp": config.dcp_size}
    wide = [f"{k}={v}" for k, v in ranks.items() if v > 1]
    no(wide and not extra.get("allow_unqualified_ranks"), f"{', '.join(wide)}: such ranks are built and were never run (allow_unqualified_ranks tries it)")
    replicas = max(args.dp_size, runtime_context.get_parallel().attn_dp_size)
    no(replicas > 1, f"dp={replicas}: data-parallel ranks of one engine, those of its attention too, have one URL, and what a gateway is told of one would count for all: "
       "start an engine for each")
    no(config.dcp_size > 1 or config.should_split_heads, "context-parallel decoding and split heads are not built")
    model = leaves(runtime_context.get_model())
    form = getattr(model["load_format"], "value", model["load_format"])
    declare = "declare model_content, 64 hexadecimal digits, in the extra config"
    if not extra.get("model_content"):
        no(form not in OWN_FILES or model.get("weight_cache_mode", "off") != "off",
           f"load_format {form} (weight cache {model.get('weight_cache_mode')}) takes weights from another process or place than the model's files: {declare}")
        beside = [name for name in BESIDE if (model | leaves(runtime_context.get_exec())).get(name)]
        no(beside, f"{', '.join(beside)}: files that are not read for a fingerprint: {declare}")
    return found


def namespace(config, extra, pools, content):
    """The rank's namespace. pools are pools.Pool with the KV pool first."""
    args = runtime_context.get_server_args()
    model, executor = leaves(runtime_context.get_model()), leaves(runtime_context.get_exec())
    kv = pools[0].host
    device = runtime_context.get_device().device
    return {
        "scope": extra.get("scope", ""),
        "engine": {"name": "sglang", "version": f"{sglang.__version__} torch {torch.__version__}"},
        "model": {
            "content": content, "quantization": model["quantization"] or "", "weight_version": extra.get("weight_version", ""),
            "overrides": _overrides(model["json_model_override_args"]),
        },
        "compute": {
            "dtype": _dtype(model_config(args).dtype), "device": device, "isa": _isa(device),
            "attention": str(executor["attention_backend"] or "unnamed"), "prefill": str(executor["prefill_attention_backend"] or ""),
            "decode": str(executor["decode_attention_backend"] or ""), "kv_scales": _scales(model["quantization_param_path"]),
            "options": [{"name": n, "value": v} for n, v in sorted(_options(config, args, pools).items())],
        },
        "hash": {"algorithm": "sglang_sha256", "tokens": pools[0].slots},
        "layout": {
            "order": kv.layout, "kv_dtype": _dtype(kv.dtype), "format": "raw", "block_tokens": pools[0].slots,
            "groups": [_group(p, config.is_mla_model, args) for p in pools],
        },
    }


def _dtype(t):
    return str(t).removeprefix("torch.")


def _group(pool, latent, args):
    components, rule = (2 if latent else 1, 1) if pool.group == 0 else SIDE_POOLS[pool.name]
    group = {"components": components, "rule": rule, "segments": [_segment(pool, i, n) for i, n in enumerate(pool.sizes)]}
    if rule == 2:
        group["window"] = _window(args)
    return group


def _segment(pool, i, size):
    """A run of a page's bytes: how they lie in it follows from the model and the order's name."""
    return {"part": f"{pool.name}{i}", "dtype": _dtype(getattr(pool.host, "dtype", torch.uint8)), "bytes": size}


def _window(args):
    return int(getattr(model_config(args), "sliding_window_size", None) or 1)


def _isa(device):
    if device == "cpu":
        return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability().lower()}"
    if device == "cuda":
        return "sm_{}{}".format(*torch.cuda.get_device_capability())
    return device


def _overrides(text):
    value = json.loads(text or "{}")
    if not value:
        return None
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).digest()


def _scales(path):
    return fingerprint.of_loaded(path, fingerprint.began()).hex() if path else ""


def _options(config, args, pools):
    """Ranks, adapters, and a digest of all other settings that could decide a byte. A setting that decides none and differs costs hits, no more."""
    settings = {}
    for name in ("get_model", "get_exec", "get_lora", "get_mm"):
        settings[name] = {k: v for k, v in leaves(getattr(runtime_context, name)()).items() if k not in IRRELEVANT}
    watched = leaves(runtime_context.get_observability())
    settings["hooks"] = [watched[k] for k in ("forward_hooks", "debug_tensor_dump_input_file")]  # which put other numbers into the model
    out = {"settings": _digest(settings), "environment": _digest(_environment())}
    # Each rank registers by itself, and SGLang takes what all ranks have: to the Manager a rank is an instance of its own. What is the same in
    # all ranks of an axis, as latent KV and its index keys are under tensor parallelism, is shared by them: a recurrent state beside it is not.
    if config.tp_size > 1 and not (config.is_mla_model and all(p.name in ("kv", "indexer") for p in pools)):
        out["rank tensor"] = f"{config.tp_rank}/{config.tp_size}"
    for axis, rank, size in (("pipeline", config.pp_rank, config.pp_size), ("context", config.attn_cp_rank, config.attn_cp_size)):
        if size > 1:
            out[f"rank {axis}"] = f"{rank}/{size}"
    # SGLang's key has an adapter's name and path in it, and not its weights: with other weights at its path the engine is another.
    if adapters():
        h = hashlib.sha256()
        for name, path, ident in sorted((a.lora_name, a.lora_path, a.lora_id) for a in adapters()):
            h.update(f"{len(name)} {name} {ident} ".encode() + fingerprint.of_loaded(path, fingerprint.began()))
        out["adapters"] = h.hexdigest()
    if str(leaves(runtime_context.get_model())["load_format"]).lower().endswith("dummy"):
        out["seed"] = str(getattr(args, "random_seed", ""))
    return out


def _digest(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def _environment():
    """The variables that SGLang reads, as they are set: types, layouts and kernels are chosen by some of them (SGLANG_MAMBA_CONV_DTYPE, SGLANG_ROPE_CACHE_FP32)."""
    known = {name for name, field in vars(environ.Envs).items() if isinstance(field, environ.EnvField)}
    return {k: v for k, v in os.environ.items() if (k in known or k.startswith("SGLANG_")) and not IRRELEVANT_WORDS & set(k.split("_"))}


def rank_suffix(config):
    """What is behind the engine's name in the name of this rank's instance."""
    return "" if config.tp_size * config.pp_size == 1 else f".{config.pp_rank}.{config.tp_rank}"


def adapters():
    """The adapters of --lora-paths, as SGLang has read them: in its arguments they are as they were written. One that is loaded later has a random id, and its pages are found by
    nobody after it is unloaded."""
    return list(leaves(runtime_context.get_lora())["lora_paths"] or [])


def published():
    """Where this engine publishes its KV events: as lore.published has it. An engine with data-parallel ranks, whose ports are others, is refused elsewhere."""
    text = leaves(runtime_context.get_observability()).get("kv_events_config")
    return lore.published(KVEventsConfig.from_cli(text).model_dump()) if text else None


def content(extra):
    """The model's fingerprint: what is declared, a hub's commit, or the files'. It reads them all in the last case, but for those that it has read before, and they must be older than this process, which has loaded them."""
    declared = extra.get("model_content")
    if declared:
        return bytes.fromhex(declared)
    path = runtime_context.get_server_args().model_path
    if os.path.exists(path):
        return fingerprint.of_loaded(path, fingerprint.began(), fingerprint.known(extra))
    commit = getattr(model_config(runtime_context.get_server_args()).hf_config, "_commit_hash", None)
    if not commit:
        raise ValueError(f"{path} is neither a path nor of a known commit: declare model_content, 64 hexadecimal digits, in the extra config")
    return fingerprint.of_revision(path, commit)
