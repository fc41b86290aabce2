"""Hooks into SGLang, by its own registry for them: what the storage interface does not tell. They are put in place as the backend is made, before the
engine serves.

  - What is handed to the backup queue is noted with its tokens, the key before, adapter and salt (lore.py). Without it pages are stored and restored all the
    same, and gateways are not told of them.
  - When weights are changed in place, or let go of without a copy, what was stored is another model's: the backend stops, and none is made again in that process. Nor is one made
    where the engine has run before without these hooks, since nobody knows what has become of its weights meanwhile.
  - A restore that has lasted too long for its request is in no queue of SGLang's any more, and may still write into the host pool, since a Manager that hangs may go on. A flush
    would join its thread for ten seconds and then end the engine: it is refused while there is such a restore on any rank. So is the backend's removal (DELETE), which would
    do the same and leave the engine with a storage that has no threads.
  - With the linker, a request that is being looked up is passed over (admission.py), and what is offloaded is noted with its tokens, too.
"""

import logging
import threading

from sglang.srt import runtime_context
from sglang.srt.plugins.hook_registry import HookRegistry, HookSource, HookType

from .lore import UNKNOWN, Lore, Space

CONTROLLER = "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller.HybridCacheController.write_storage"
TREE = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.write_backup_storage"
WEIGHTS = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager._select_runners"
RELEASED = "sglang.srt.managers.scheduler_components.weight_updater._export_static_state"
FLUSH = "sglang.srt.managers.scheduler.Scheduler.flush_cache"
DETACH = "sglang.srt.managers.scheduler.Scheduler.detach_hicache_storage_wrapped"

ADD = "sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req"
OFFLOAD = "sglang.srt.mem_cache.unified_cache.unified_cache_linker.UnifiedCacheLinkerWrapper._offload_node"
RELEASE = "sglang.srt.mem_cache.unified_cache.unified_cache_linker.UnifiedCacheLinkerWrapper.release_request"

_here = threading.local()
_stop = []  # functions of those who want to know of new weights
_getting = []  # functions that say whether something is being restored
_done = []
_changed = []  # why the weights are not those that the engine has loaded as it started


def _backend(controller):
    """The controller's backend, within what SGLang may have put around it for tests."""
    b = getattr(controller, "storage_backend", None)
    return getattr(b, "_backend", b)


def _snapshot(core, node_id):
    """(keys, tokens, the keys before them as far as is needed, Space) of a node of the radix tree; None if it does not say."""
    try:
        s = core.snapshot_buffer_backup(node_id, False)
        before = [] if s.parent_is_root else [s.parent_last_hash]
        return None if before == [None] else (s.hash_values, s.key.raw_token_ids(), before, Space(s.key.extra_key, s.key.cache_salt))
    except Exception:  # it has left the device, or is another version's
        return None


def _node(original, tree, node_id, *args, **kwargs):
    _here.node = _snapshot(tree.tree_core, node_id)
    try:
        return original(tree, node_id, *args, **kwargs)
    finally:
        _here.node = None


def _written(original, controller, host_indices, token_ids, hash_value=None, prefix_keys=None, *args, **kwargs):
    note = getattr(_backend(controller), "note", None)
    if note is not None and hash_value:
        known = getattr(_here, "node", None)
        before, space = (known[2], known[3]) if known and list(known[0]) == list(hash_value) else (prefix_keys, Space())
        note(hash_value, token_ids, before, space)
    return original(controller, host_indices, token_ids, hash_value, prefix_keys, *args, **kwargs)


def _weights(*args, **kwargs):
    _not_what_they_were("the weights were changed in place")


def _released(*args, **kwargs):
    """They are about to be let go of (/release_memory_occupation); without a copy their memory has anything in it afterwards, until they are loaded anew."""
    features = runtime_context.get_exec().features
    if features.enable_memory_saver and not features.enable_weights_cpu_backup:
        _not_what_they_were("the weights were let go of without a copy")


def _not_what_they_were(reason):
    _changed[:] = _changed or [reason]
    for f in list(_stop):
        f(reason)


def unknown_weights(declared):
    """Why nobody knows which weights this process has, or "": for who is about to install, in an engine that may have run for long. declared says that an
    operator has said what they are."""
    if _changed:
        return f"{_changed[0]}: only an engine that is started anew is known to have its model's"
    if WEIGHTS not in _done and runtime_context.get_memory().hicache_storage_backend is None and not declared:
        return "this engine has run without it, and its weights may have been changed since: start it with --hicache-storage-backend, or declare model_content in the extra config"
    return ""


def _restoring(scheduler):
    """Whether something is, on any rank: all of them do the same."""
    cache = scheduler.tree_cache
    busy = int(any(f() for f in list(_getting)))
    return agree(cache, busy) if hasattr(cache, "_all_reduce_attn_groups") else busy


def _flush(original, scheduler, *args, **kwargs):
    if _restoring(scheduler):
        logging.getLogger(__name__).warning("Perigee: the cache is not flushed: pages are still being restored")
        return False
    return original(scheduler, *args, **kwargs)


def _detach(original, scheduler, *args, **kwargs):
    if _restoring(scheduler):
        from sglang.srt.managers.io_struct import DetachHiCacheStorageReqOutput
        return DetachHiCacheStorageReqOutput(success=False, message="Perigee: pages are still being restored")
    return original(scheduler, *args, **kwargs)


def _install(hooks):
    """Puts hooks in place, each once a process, and returns those that could not be."""
    for target, hook, kind in hooks:
        if target not in _done:
            _done.append(target)
            HookRegistry.register(target, hook, kind, source=HookSource(plugin_name="perigee", dist_name="perigee"))
    HookRegistry.apply_hooks()
    return [target for target, _, _ in hooks if target not in HookRegistry._patched]


def install(on_weights, getting=None):
    """For a storage backend, or a linker. on_weights(reason) is called whenever weights are changed; getting() says whether a thread of SGLang's is in a
    question or in a restore: a flush would join it, and use the memory again."""
    _stop.append(on_weights)
    if getting is not None:
        _getting.append(getting)
    return _install([
        (TREE, _node, HookType.AROUND), (CONTROLLER, _written, HookType.AROUND), (WEIGHTS, _weights, HookType.BEFORE), (RELEASED, _released, HookType.BEFORE), (FLUSH, _flush, HookType.AROUND),
        (DETACH, _detach, HookType.AROUND)])


def remove(on_weights, getting=None):
    """Takes both back; the hooks stay, and do nothing for a backend that is gone."""
    for functions, f in ((_stop, on_weights), (_getting, getting)):
        if f in functions:
            functions.remove(f)


# The linker's.

_linkers = []


def _add(original, adder, req, *args, **kwargs):
    """A request that waits for its pages is not added, and others are."""
    from sglang.srt.managers.schedule_policy import AddReqResult
    linker = _of(getattr(adder.tree_cache, "linker", None))
    if linker is None:
        return original(adder, req, *args, **kwargs)
    if linker.agreed(req.rid, agree(adder.tree_cache, linker.verdict(req.rid))):
        return AddReqResult.CONTINUE
    result = original(adder, req, *args, **kwargs)
    if adder.can_run_list and adder.can_run_list[-1] is req:
        linker.admitted(req.rid)
    return result


def agree(cache, verdict):
    """The largest verdict of all ranks."""
    import torch
    v = torch.tensor([verdict], dtype=torch.int)
    cache._all_reduce_attn_groups(v, torch.distributed.ReduceOp.MAX)
    return int(v.item())


def _offload(original, wrapper, node_id, transfers, *args, **kwargs):
    if _of(wrapper) is None:
        return original(wrapper, node_id, transfers, *args, **kwargs)
    _here.node = _snapshot(wrapper.cache.tree_core, node_id)
    try:
        return original(wrapper, node_id, transfers, *args, **kwargs)
    finally:
        _here.node = None


def pages(keys):
    """What is known of the node that is being offloaded: a lore.Page for each key."""
    node = getattr(_here, "node", None)
    if not node or not keys:
        return [UNKNOWN] * len(keys)
    hashes, tokens, before, space = node
    book = Lore(len(tokens) // max(1, len(hashes)))
    book.note(hashes, tokens, before, space)
    return book.take(keys)


def _release(original, wrapper, rid, *args, **kwargs):
    linker = _of(wrapper)
    if linker is not None:
        linker.admitted(rid)
    return original(wrapper, rid, *args, **kwargs)


def _of(wrapper):
    linker = getattr(wrapper, "cache_linker", None)
    return linker if linker in _linkers else None


def install_admission(linker):
    _linkers.append(linker)
    return _install([(ADD, _add, HookType.AROUND), (OFFLOAD, _offload, HookType.AROUND), (RELEASE, _release, HookType.AROUND)])


def remove_admission(linker):
    if linker in _linkers:
        _linkers.remove(linker)
