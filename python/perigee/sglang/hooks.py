"""Hooks into SGLang, by its own registry for them: what the storage interface does not tell. They are put in place as the backend is made, before the
engine serves.

  - What is handed to the backup queue is noted with its tokens, prefix, adapter and salt (lore.py). Without it pages are stored and restored all the
    same, and gateways are not told of them.
  - When weights are changed in place, what was stored is another model's: the backend stops.
"""

import threading

from sglang.srt.plugins.hook_registry import HookRegistry, HookSource, HookType

from .lore import Space

CONTROLLER = "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller.HybridCacheController.write_storage"
TREE = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.write_backup_storage"
WEIGHTS = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager._select_runners"

_here = threading.local()
_stop = []  # functions of those who want to know of new weights
_done = []


def _backend(controller):
    """The controller's backend, within what SGLang may have put around it for tests."""
    b = getattr(controller, "storage_backend", None)
    return getattr(b, "_backend", b)


def _node(original, tree, node_id, *args, **kwargs):
    try:
        _here.space = Space(*tree.tree_core.prefetch_anchor_info(node_id))
    except Exception:  # another version's tree: then salts and adapters are not known
        _here.space = None
    try:
        return original(tree, node_id, *args, **kwargs)
    finally:
        _here.space = None


def _written(original, controller, host_indices, token_ids, hash_value=None, prefix_keys=None, *args, **kwargs):
    note = getattr(_backend(controller), "note", None)
    if note is not None and hash_value:
        note(hash_value, token_ids, prefix_keys, getattr(_here, "space", None) or Space())
    return original(controller, host_indices, token_ids, hash_value, prefix_keys, *args, **kwargs)


def _weights(*args, **kwargs):
    for f in list(_stop):
        f("the weights were changed in place")


def install(on_weights):
    """Puts the hooks in place, once a process, and returns those that could not be. on_weights(reason) is called whenever weights are changed."""
    _stop.append(on_weights)
    if not _done:
        source = HookSource(plugin_name="perigee", dist_name="perigee")
        HookRegistry.register(TREE, _node, HookType.AROUND, source=source)
        HookRegistry.register(CONTROLLER, _written, HookType.AROUND, source=source)
        HookRegistry.register(WEIGHTS, _weights, HookType.BEFORE, source=source)
        HookRegistry.apply_hooks()
        _done.append(True)
    return [t for t in (TREE, CONTROLLER, WEIGHTS) if t not in HookRegistry._patched]


def remove(on_weights):
    """Takes on_weights back; the hooks stay, and do nothing for a backend that is gone."""
    if on_weights in _stop:
        _stop.remove(on_weights)
