"""SGLang's linker (--unified-cache-external-linker-backend dynamic): pages go between the Manager and the device pool, without the engine's host pool.

    --enable-unified-cache-external-linker --unified-cache-external-linker-backend dynamic --unified-cache-external-linker-config
        '{"linker": "PerigeeLinker", "linker_module_path": "perigee.sglang.linker", "linker_extra_config": {"socket": "/run/perigee/cache.sock"}}'

SGLang aborts a request whose load fails, and has no "not yet" for a lookup. So a request is passed over (admission.py) until its pages lie in staging memory of this
process, whole and verified; what is then left of a load is copying to the device, which has nothing to fail. Only ordinary attention on a CPU is built: the
copies to and from a GPU, and its streams, are not.
"""

import collections
import logging
import queue
import threading
import time
import uuid

import torch
from sglang.srt import runtime_context
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import _mha_device_pool_entry
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import LayerWiseLoadCounter, UnifiedCacheLinker

from . import admission, facts, hooks, pools, restorable
from .keeper import STUCK_S, Keeper
from .staging import Staging
from .storage import ANSWER_MS, connect
from .store import Store, names

logger = logging.getLogger("sglang.srt.perigee")

# How long a request may be passed over. It is a guard, and no estimate: a prompt worth looking up takes about as long to compute.
BUDGET_MS = 1000
# Staging memory: what is looked up and what is being stored, at once.
STAGING_BYTES = 256 << 20
LOOKUP_MS = 250
# Lookups that wait for the worker, dropped ones included: an answer takes some milliseconds, so that a request behind so many would hardly be answered within its budget.
MOST_LOOKUPS = 64


class Lookup:
    """A question of one request. The worker writes it; slots are the staging memory of its pages, in their order."""

    __slots__ = ("names", "count", "slots", "hits", "dropped")

    def __init__(self, names):
        self.names, self.count, self.slots, self.hits, self.dropped = names, len(names), [], 0, False


class PerigeeLinker(UnifiedCacheLinker):
    """linker_extra_config: socket, instance, scope, weight_version, model_content, budget_ms, staging_bytes, lookup_ms, answer_ms, model, url, pool_bytes,
    allow_unqualified_version, allow_unqualified_ranks."""

    def __init__(self, server_args, params, *, components, extra_config=None, forward_stream=None):
        self._extra = dict(extra_config or {})
        kvcache = params.token_to_kv_pool_allocator.get_kvcache()
        reasons = facts.unsupported(_Ranks(), self._extra | {"interface_v1": 1})
        if _Ranks().tp_size > 1 and not self._extra.get("allow_unqualified_ranks"):
            reasons.append("several ranks: they agree on what waits, which was tested by simulation alone (allow_unqualified_ranks tries it)")
        if str(kvcache.device) != "cpu":
            reasons.append(f"a device pool on {kvcache.device}: only copies on a CPU are built")
        if {c.name for c in components} != {"FULL"} or type(kvcache).__name__ != "MHATokenToKVPool":
            reasons.append(f"a {type(kvcache).__name__}: only ordinary attention is built")
        if reasons:
            raise ValueError("PerigeeLinker: " + "; ".join(reasons))
        self.forward_stream = forward_stream
        self.page_size = params.page_size
        entry = _mha_device_pool_entry(PoolName.KV, kvcache, {i: i for i in range(kvcache.layer_num)}, self.page_size)
        self.pools = {PoolName.KV: entry}
        entry.layout, entry.dtype = "linker_layer_first", kvcache.dtype
        self._pool = pools.Pool("kv", 0, entry, torch.arange(self.page_size))
        self.layer_done_counter = LayerWiseLoadCounter(kvcache.layer_num)
        self._staging = Staging(max(1, self._extra.get("staging_bytes", STAGING_BYTES) // self._pool.bytes), self._pool.bytes)
        self._lock = threading.RLock()
        self._turn = admission.Turn(STUCK_S)
        self._admission = admission.Admission(self._ask, self._drop, self._extra.get("budget_ms", BUDGET_MS) / 1000, self._turn)
        self._jobs = queue.SimpleQueue()  # bounded by MOST_LOOKUPS, and by staging memory
        self._lookups = 0  # in it
        self._loads = {}  # rid: (places on the device, slots)
        self._done = collections.deque()
        self._flushes, self._reading = 0, False  # the worker reads the device
        self._idle = threading.Condition(self._lock)
        self._begin()

    def _begin(self):
        self._instance, self._namespace = self._extra.get("instance") or f"sglang-{uuid.uuid4().hex[:12]}", None
        self._shared = pools.Shared([self._staging.region()])
        self._keeper = Keeper(self._register, logger)
        self._store = Store(self._keeper, self._extra.get("lookup_ms", LOOKUP_MS) / 1000, {}, logger, self._shared)
        self._worker = threading.Thread(target=self._run, name="perigee-linker", daemon=True)
        self._worker.start()
        missing = hooks.install_admission(self) + hooks.install(self._stop)
        if missing:
            raise ValueError(f"PerigeeLinker: no hook could be put on {', '.join(missing)}")

    def _register(self):
        if self._namespace is None:
            self._namespace = facts.namespace(_Ranks(), self._extra, [self._pool], facts.content(self._extra))
        instance = self._instance + facts.rank_suffix(_Ranks())
        return connect(self._extra, instance, self._namespace, self._shared, "perigee-sglang-linker", self._extra.get("answer_ms", ANSWER_MS) / 1000)

    def _stop(self, reason):
        self._store.stopped = reason
        logger.warning("Perigee: %s: nothing is stored or restored until the engine is restarted", reason)

    # Admission: the scheduler's thread, and the worker's answers.

    def _ask(self, keys):
        if not self._keeper.up or self._store.stopped or self._lookups >= MOST_LOOKUPS:
            return None
        self._lookups += 1
        q = Lookup(names(keys))
        self._jobs.put(("get", q))
        return q

    def _drop(self, q):
        q.dropped = True
        slots, q.slots = q.slots, []
        self._staging.give(slots)

    def lookup(self, rid, transfers):
        (kv,) = transfers
        with self._lock:
            return list(range(1, self._admission.looked(rid, kv.keys, time.monotonic()) + 1))

    def verdict(self, rid):
        with self._lock:
            return self._admission.verdict(rid, time.monotonic())

    def agreed(self, rid, verdict):
        with self._lock:
            return self._admission.agreed(rid, verdict)

    def admitted(self, rid):
        with self._lock:
            self._admission.admitted(rid)

    # Loading.

    def load(self, rid, transfers):
        (kv,) = transfers
        with self._lock:
            taken = self._admission.take(rid, kv.keys)
            if taken is None:
                return False
            q, skip = taken
            n = len(kv.keys)
            slots, q.slots = q.slots[skip:skip + n], q.slots[:skip] + q.slots[skip + n:]
            self._drop(q)
            self._loads[rid] = (self._pool.places(kv.device_indices, n), slots)
            return True

    def start_layer_wise_loading(self):
        loads, self._loads = self._loads, {}
        if not loads:
            return -1
        index = self.layer_done_counter.update_producer()
        try:
            for places, slots in loads.values():
                for runs, slot in zip(places, slots):
                    pools.write(runs, self._staging.view(slot))
            for layer in range(self.layer_done_counter.num_layers):
                self.layer_done_counter.complete(index, layer)
        except Exception as e:
            logger.exception("Perigee: a load failed")
            self.layer_done_counter.fail(index, e)
        finally:
            for _, slots in loads.values():
                self._staging.give(slots)
        return index

    def finish_layer_wise_loading(self, counter_index):
        return self.layer_done_counter.finish(counter_index)

    def cancel_queued_load(self, rid):
        load = self._loads.pop(rid, None)
        if load is None:
            return False
        self._staging.give(load[1])
        return True

    # Storing.

    def offload(self, transfers, session_id=None):
        (kv,) = transfers
        # The engine keeps the pages on the device until it is told of them: not for as long as a Manager hangs.
        if not self._keeper.up or self._store.stopped or self._turn.stuck(time.monotonic()):
            return False
        slots = self._staging.take(len(kv.keys))
        if slots is None:
            return False  # computed again one day
        with self._lock:
            flushes = self._flushes
        self._jobs.put(("set", flushes, names(kv.keys), hooks.pages(kv.keys), self._pool.places(kv.device_indices, len(kv.keys)), slots))
        return True

    def num_completed_offloads(self):
        with self._lock:
            return len(self._done)

    def pop_completed_offload(self):
        with self._lock:
            return self._done.popleft()

    # The worker.

    def _run(self):
        while (job := self._jobs.get()) is not None:
            self._turn.begins(time.monotonic())
            try:
                self._get(job[1]) if job[0] == "get" else self._set(*job[1:])
            except Exception:
                logger.exception("Perigee: the linker's worker goes on")
            finally:
                self._turn.ends()

    def _get(self, q):
        slots, hits = [], 0
        try:
            if not q.dropped:
                (there,) = self._store.there([(0, q.names)])
                n = restorable.leading(there, q.count)
                slots = self._staging.take(n) or []
                if slots:
                    hits = sum(self._store.get(0, q.names[:n], self._staging.places(slots)))
        finally:
            with self._lock:
                self._lookups -= 1
                self._staging.give(slots[hits:])
                q.slots = slots[:hits]
                if q.dropped or not self._admission.answered(q, hits):
                    self._drop(q)

    def _set(self, flushes, names, pages, places, slots):
        ok = False
        try:
            if self._read(flushes, places, slots):
                ok = all(self._store.set(0, names, pages, self._staging.places(slots)))
        finally:
            self._staging.give(slots)
            with self._lock:
                if flushes == self._flushes:  # else the engine has forgotten that it asked
                    self._done.append(ok)

    def _read(self, flushes, places, slots):
        """Copies pages from the device, unless it was flushed since: then others' may lie there."""
        with self._lock:
            if flushes != self._flushes:
                return False
            self._reading = True
        try:
            for runs, slot in zip(places, slots):
                pools.read(runs, self._staging.view(slot))
        finally:
            with self._idle:
                self._reading = False
                self._idle.notify_all()
        return True

    # The end.

    def reset(self):
        """The engine's caches are flushed: nothing of its memory is read or written any more when this returns. It waits for copies within this process and not for the
        Manager, which may hang: what was copied is stored from staging memory, and nobody is told of it."""
        with self._idle:
            self._admission.clear()
            for rid in list(self._loads):
                self.cancel_queued_load(rid)
            self._flushes += 1
            self._idle.wait_for(lambda: not self._reading)
            self._done.clear()
        self.layer_done_counter.reset()

    def close(self):
        hooks.remove(self._stop)
        hooks.remove_admission(self)
        self.reset()
        self._jobs.put(None)
        self._worker.join(timeout=30)
        self._keeper.close()
        logger.info("Perigee: pages in all: %s", ", ".join(f"{k} {v}" for k, v in self._store.counts.take().items()))


class _Ranks:
    """The engine's ranks, as HiCacheStorageConfig has them."""

    is_mla_model = should_split_heads = False

    def __init__(self):
        p = runtime_context.get_parallel()
        self.tp_size, self.tp_rank, self.pp_size, self.pp_rank = p.tp_size, p.tp_rank, p.pp_size, p.pp_rank
        self.attn_cp_size, self.attn_cp_rank = getattr(p, "attn_cp_size", 1), getattr(p, "attn_cp_rank", 0)
        self.dcp_size = getattr(p, "attn_dcp_size", 1)
