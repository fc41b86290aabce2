"""What of an engine decides its pages' bytes, as docs/cache-identity.md wants it. The only file beside connector.py that knows vLLM's configuration."""

import dataclasses
import hashlib
import json
import os
import platform
import uuid

import torch
import vllm

from ..client import fingerprint

QUALIFIED = "0.32.0"

# Ways of loading that read the model's own files, which its fingerprint covers.
OWN_FILES = frozenset((
    "auto", "hf", "dummy", "fastsafetensors", "instanttensor", "mistral", "npcache", "pt", "runai_streamer", "runai_streamer_sharded", "safetensors", "sharded_state",
))

# Fields of vLLM's configurations of the model and of its loading that no byte of a page depends on, or that the namespace has in another way.
IRRELEVANT = frozenset((
    "model", "model_weights", "tokenizer", "tokenizer_mode", "tokenizer_revision", "skip_tokenizer_init", "revision", "hf_token", "hf_config_path", "hf_overrides", "seed",
    "served_model_name", "allowed_local_media_path", "allowed_media_domains", "max_logprobs", "logprobs_mode", "return_sampling_mask", "logits_processors",
    "generation_config", "override_generation_config", "io_processor_plugin", "renderer_num_workers", "enable_sleep_mode", "sleep_preserve_parameter_names",
    "sleep_mode_backend", "sleep_mode_offload_cudagraph", "enable_trace_replay",
    "download_dir", "safetensors_prefetch_num_threads", "safetensors_prefetch_block_size", "use_tqdm_on_load",
))
# The same, of a model's own configuration: where it was found, and by which program it was written.
WHENCE = frozenset(("_name_or_path", "_commit_hash", "transformers_version"))


def unsupported(config, kv_cache, extra):
    """Why this engine cannot be served: all reasons, in words. Left out is what cannot occur in the qualified version."""
    found = []

    def no(bad, why):
        if bad:
            found.append(why)

    parallel, cache = config.parallel_config, config.cache_config
    version = vllm.__version__.split("+")[0]
    no(version != QUALIFIED and not extra.get("allow_unqualified_version"),
       f"vLLM {vllm.__version__}: this connector is qualified for {QUALIFIED} alone; connectors' interfaces change between versions "
       "(allow_unqualified_version in kv_connector_extra_config tries it all the same)")
    no(config.kv_transfer_config.kv_load_failure_policy != "recompute",
       'kv_load_failure_policy must be "recompute": with "fail" a page that was lost would end its request with an error')
    no(not cache.enable_prefix_caching, "prefix caching is off, and with it the names of blocks")
    no(parallel.pipeline_parallel_size > 1, "pipeline parallelism is not built")
    no(getattr(parallel, "decode_context_parallel_size", 1) > 1 or getattr(parallel, "prefill_context_parallel_size", 1) > 1,
       "context parallelism is not built")
    no(config.speculative_config is not None, "speculative decoding is not qualified: a draft model's state must not be published")
    # With uni both halves are one process, see keeper.py. external_launcher has a scheduler in each rank, which would register for itself alone; others' own nobody knows.
    no(parallel.distributed_executor_backend not in ("mp", "ray", "uni"), f"the executor {parallel.distributed_executor_backend!r} is not built: use mp, or uni for one rank")
    if not extra.get("model_content"):
        found += _weights(config.model_config, config.load_config)
    if kv_cache is not None:
        found += _layout(kv_cache)
    return found


def _weights(model, load):
    """Why the files of the model, or its commit, do not say which weights it has."""
    declare = "declare model_content, 64 hexadecimal digits, in kv_connector_extra_config"
    found = []
    if load.load_format not in OWN_FILES:
        found.append(f"load_format {load.load_format!r} takes weights from elsewhere than the model's files: {declare}")
    if model.model_weights:
        found.append(f"the weights are those of {model.model_weights}, which is not read for a fingerprint: {declare}")
    if model.hf_config_path not in (None, "", model.model) and (model.trust_remote_code or not os.path.exists(model.model)):
        found.append(f"with hf_config_path neither the commit of a hub's model is known nor what remote code does: {declare}")
    return found


def _layout(kv_cache):
    groups = kv_cache.kv_cache_groups
    if len(groups) != 1:
        return [f"{len(groups)} groups of KV caches: hybrid models are not built"]
    spec = groups[0].kv_cache_spec
    specs = list(getattr(spec, "kv_cache_specs", {}).values()) or [spec]
    found = [f"a KV cache of {type(s).__name__} is not qualified" for s in specs if type(s).__name__ != "FullAttentionSpec"][:1]
    if kv_cache.hash_block_size not in (None, spec.block_size):
        found.append(f"blocks of {spec.block_size} tokens that are hashed by {kv_cache.hash_block_size}")
    return found


def of_rank(config, kv_cache, pages, extra):
    """A rank's namespace, but for the model's content and the hash's seed."""
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    spec = kv_cache.kv_cache_groups[0].kv_cache_spec
    tp = parallel.tensor_parallel_size
    return {
        "scope": extra.get("scope", ""),
        "engine": {"name": "vllm", "version": f"{vllm.__version__} torch {torch.__version__}"},
        "model": {"quantization": model.quantization or "", "overrides": _overrides(model), "weight_version": extra.get("weight_version", "")},
        "compute": {
            "dtype": str(model.dtype).removeprefix("torch."), "device": "cpu", "isa": _isa(model, spec, cache), "attention": _attention(config, kv_cache),
            # Scales that the engine works out as it starts are nobody else's.
            "kv_scales": uuid.uuid4().hex if "fp8" in str(cache.cache_dtype) else "",
            "options": [{"name": n, "value": v} for n, v in sorted(_options(config).items())],
        },
        "shard": {"tensor": {"index": _rank(tp), "size": tp}},
        "layout": {
            "order": kv_cache.kv_cache_layout or "unnamed", "kv_dtype": pages.segments[0]["dtype"], "format": "raw", "block_tokens": spec.block_size,
            "groups": [{"components": 1, "rule": 1, "segments": pages.segments}],
        },
    }


def _rank(tp):
    if tp == 1:
        return 0
    from vllm.distributed import get_tensor_model_parallel_rank
    return get_tensor_model_parallel_rank()


def _isa(model, spec, cache):
    """The vector instructions that kernels are chosen by, and the order of a block's bytes as the attention kernel names it."""
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa
    head = getattr(spec, "head_size", None) or next(iter(spec.kv_cache_specs.values())).head_size
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability().lower()} {_get_attn_isa(model.dtype, spec.block_size, head, cache.cache_dtype)}"


def _attention(config, kv_cache):
    layers = config.compilation_config.static_forward_context
    names = {layers[n].get_attn_backend().get_name() for n in kv_cache.kv_cache_groups[0].layer_names if hasattr(layers.get(n), "get_attn_backend")}
    return "+".join(sorted(names)) or "unnamed"


def _overrides(model):
    if not model.hf_overrides:
        return None
    if callable(model.hf_overrides):
        return uuid.uuid4().bytes * 2  # a program: nobody can say what it does
    return hashlib.sha256(json.dumps(model.hf_overrides, sort_keys=True, separators=(",", ":")).encode()).digest()


def _options(config):
    out = {"compilation": str(int(getattr(config.compilation_config, "mode", 0) or 0)), "max_model_len": str(config.model_config.max_model_len)}
    if config.load_config.load_format == "dummy":
        out["seed"] = str(config.model_config.seed)
    settings = {name: _plain(c) for name, c in (("model", config.model_config), ("load", config.load_config))}
    out["settings"] = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return out


def _plain(value):
    """What JSON can say of a setting. What it cannot, as a function, is said by its name, and perhaps by its address: then nobody else has it."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(str(v) for v in value)
    if hasattr(value, "to_dict"):  # transformers' configurations
        return _plain({k: v for k, v in value.to_dict().items() if k not in WHENCE})
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name, None)) for f in dataclasses.fields(value) if f.name not in IRRELEVANT}
    return str(value)


def complete(namespace, config, content, version=""):
    """Adds what the scheduler's half knows. version is what makes its weights other ones than the model's."""
    from vllm.v1.core import kv_cache_utils
    algorithm = config.cache_config.prefix_caching_hash_algo
    return namespace | {
        "model": namespace["model"] | {"content": content, "weight_version": f"{namespace['model']['weight_version']} {version}".strip()},
        "hash": {"algorithm": str(algorithm), "seed": kv_cache_utils.get_none_hash_seed(), "tokens": namespace["layout"]["block_tokens"]},
    }


def content(config, extra):
    """The model's fingerprint: what is declared, a hub's commit, or the files'. It reads them all in the last case, but for those that it has read before;
    and they must be older than this process, which begins before the ranks that load them."""
    declared = extra.get("model_content")
    if declared:
        return bytes.fromhex(declared)
    model = config.model_config
    if os.path.exists(model.model):
        return fingerprint.of_loaded(model.model, fingerprint.began(), fingerprint.known(extra))
    commit = getattr(model.hf_config, "_commit_hash", None)
    if not commit:
        raise ValueError(f"{model.model} is neither a path nor of a known commit: declare model_content, 64 hexadecimal digits, in kv_connector_extra_config")
    return fingerprint.of_revision(model.model, commit)
