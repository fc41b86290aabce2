"""SGLang's storage interface: a thin shell over store.py."""

import logging
import os
import uuid

import numpy
import torch
from sglang.srt import runtime_context
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolName, PoolTransferResult

from .. import client
from . import facts, hooks, restorable
from .keeper import Connections, Keeper
from .lore import UNKNOWN, Lore
from .pools import Pool, Shared, regions
from .store import Asked, Store, names

logger = logging.getLogger("sglang.srt.perigee")

DEFAULT_SOCKET = "/run/perigee/cache.sock"
# How long a call may wait for the connection, and a lookup in the Manager. An answer takes less than a millisecond when it is idle.
LOOKUP_MS = 250
# For one answer that the Manager gives at once.
ANSWER_MS = 5000
# For how long an answer is looked for before the thread sleeps, where there is another processor for the Manager.
SPIN_US = 500


def connect(extra, instance, namespace, shared, program, timeout):
    """Registers a rank, and hands over its memory if there is any to share."""
    path, ranks = extra.get("socket", DEFAULT_SOCKET), [namespace]
    session = client.Session(
        path, instance, ranks, program=program, model=extra.get("model") or runtime_context.get_serving().served_model_name or "", url=extra.get("url", ""),
        pool_bytes=extra.get("pool_bytes", 0), timeout=timeout)
    try:
        reader = client.Session(path, instance, ranks, join=session.credentials, publishes=False, program=program, timeout=timeout)
        both = Connections(session, reader)
        if shared is not None:
            try:
                shared.offer(session)
                both.offered = True
            except client.Refused as e:
                logger.warning("Perigee: the Manager does not take the engine's memory, so pages are copied by this process: %s", e)
        if extra.get("follow_events", True):
            follow(session)
        return both
    except BaseException:
        session.close()
        raise


def follow(session):
    """Tells the Manager where this engine publishes its KV events, if it does, for what is stored without tokens."""
    at = facts.published()
    if at is None:
        return
    try:  # of more adapters than a message takes the pages of the rest stay as they are
        session.follow(*at, [(a.lora_name, a.lora_id) for a in facts.adapters()][:client.MAX_ADAPTERS])
    except client.Refused as e:  # it tells no gateway, or is older
        logger.info("Perigee: the Manager does not follow the engine's KV events: %s", e)


def numbers(slots, step):
    """pools.numbers for a tensor. Every call into torch is one that has left the processor's cache by then, so there are few."""
    try:
        a = slots.numpy()
    except TypeError:  # it is a device's
        a = slots.cpu().numpy()
    some = a[::step]
    return len(a), (some if some.dtype == numpy.int64 else some.astype(numpy.int64)).tobytes()


class PerigeeStorage(HiCacheStorage):
    """hicache-storage-backend-extra-config: socket, instance (a name; random by default), scope, weight_version, model_content, fingerprints, lookup_ms, answer_ms, spin_us, model and
    url as the Manager's KV events are to say them, follow_events, pool_bytes, allow_unqualified_version, allow_unqualified_ranks. For checks alone: notes false, and nothing is stored with
    its tokens."""

    def __init__(self, config, kwargs=None):
        self._config, self._extra = config, dict(config.extra_config or {})
        reasons = facts.unsupported(config, self._extra) + list(filter(None, [hooks.unknown_weights(self._extra.get("model_content"))]))
        if reasons:
            raise ValueError("PerigeeStorage: " + "; ".join(reasons))
        self._anchor, self._side = None, {}
        self._pools = {}  # by SGLang's name
        self._keeper = self._store = self._lore = None
        self._asked = Asked()
        self._closed = False
        missing = hooks.install(self._stop, self._getting)
        if missing:
            logger.warning("Perigee: no hook could be put on %s: gateways will not be told what can be restored, or weights must not be changed while it runs", ", ".join(missing))

    # The pools.

    def register_mem_pool_host(self, mem_pool_host):
        super().register_mem_pool_host(mem_pool_host)
        self._anchor = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool, host_pool_name):
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        n = str(host_pool_name)
        if n == str(PoolName.KV):
            return
        if self._keeper is not None:
            logger.warning("Perigee: the pool %s was added while the engine runs, and is not kept", n)
            return
        self._side[n] = host_pool

    def on_host_pools_registered(self):
        strange = sorted(set(self._side) - set(facts.SIDE_POOLS))
        if strange:
            raise ValueError(f"PerigeeStorage: pools of {', '.join(strange)} are not built")
        all_pools = [("kv", self._anchor), *sorted(self._side.items())]
        for group, (n, host) in enumerate(all_pools):
            slots = getattr(host, "logical_page_size", host.page_size)
            two = torch.arange(2 * slots) if type(host).__name__ in facts.EQUAL_PAGES else None
            self._pools[n] = Pool(n, group, host, torch.arange(slots), two, numbers)
        self._lore = Lore(self._pools["kv"].slots)
        self._answer_s = self._extra.get("answer_ms", ANSWER_MS) / 1000
        self._instance = self._extra.get("instance") or f"sglang-{uuid.uuid4().hex[:12]}"
        self._namespace = None
        self._shared = self._share(all_pools)
        self._keeper = Keeper(self._register, logger)
        names = {a.lora_id: a.lora_name for a in facts.adapters()}
        self._store = Store(self._keeper, self._extra.get("lookup_ms", LOOKUP_MS) / 1000, names, logger, self._shared,
                            self._extra.get("spin_us", SPIN_US if len(os.sched_getaffinity(0)) > 1 else 0) / 1e6)

    def _share(self, all_pools):
        """The pools' memory, if the Manager can be given all of it."""
        shared = Shared([r for _, host in all_pools for r in regions(host)])
        first = [self._pools[n].places(torch.arange(self._pools[n].slots), 1) for n, _ in all_pools]
        if shared.regions and all(shared.covers(p) for p in first):
            return shared
        if self._extra.get("allocator") == "shm":
            logger.warning("Perigee: \"allocator\": \"shm\" is set, and not all pools lie in shared memory: pages are copied by this process, too")
        return None

    def _register(self):
        """In the keeper's thread: the first time it reads the model."""
        if self._namespace is None:
            self._namespace = facts.namespace(self._config, self._extra, list(self._pools.values()), facts.content(self._extra))
        return connect(
            self._extra, self._instance + facts.rank_suffix(self._config), self._namespace, self._shared, "perigee-sglang", self._answer_s)

    def _stop(self, reason):
        if self._store is not None and not self._store.stopped:
            self._store.stopped = reason
            logger.warning("Perigee: %s: nothing is stored or restored until the engine is restarted", reason)

    def _getting(self):
        return self._store is not None and self._store.busy

    def note(self, keys, tokens, prefix, space):
        """From hooks.py, in the scheduler's thread."""
        if self._lore is not None and self._extra.get("notes", True):
            self._lore.note(keys, tokens, prefix, space)

    # KV pages.

    def batch_exists(self, keys, extra_info=None):
        """How many of the keys are there, from the first on."""
        (positions,) = self._store.there([(0, self._asked.joined(keys))])
        return restorable.leading(positions, len(keys))

    def batch_get_v1(self, keys, host_indices, extra_info=None):
        return self._get("kv", keys, host_indices)

    def batch_set_v1(self, keys, host_indices, extra_info=None):
        return self._set("kv", keys, host_indices, self._lore.take(keys))

    def _get(self, pool, keys, host_indices, whole=False):
        p = self._pools[pool]
        return self._store.get(p.group, self._asked.take(keys), p.places(host_indices, len(keys)), whole)

    def _set(self, pool, keys, host_indices, pages, whole=False):
        p = self._pools[pool]
        return self._store.set(p.group, names(keys), pages, p.places(host_indices, len(keys)), whole)

    # Side pools.

    def batch_exists_v2(self, keys, pool_transfers=None, extra_info=None):
        wanted = self._asked.joined(keys)
        transfers = [(str(t.name), t) for t in pool_transfers or []]
        if any(n not in self._pools for n, _ in transfers):
            return PoolTransferResult.empty()
        found = self._store.there([(0, wanted), *((self._pools[n].group, wanted) for n, _ in transfers)])
        kv = restorable.leading(found[0], len(keys))
        pools = {n: (str(t.hit_policy.value), len(t.keys or ()) or 1, f) for (n, t), f in zip(transfers, found[1:])}
        lengths, hits = restorable.prefixes(kv, pools)
        if kv:
            hits[str(PoolName.KV)] = kv
        return PoolTransferResult(lengths[-1] if lengths else 0, hits, lengths)

    def batch_get_v2(self, transfers, extra_info=None):
        return self._each(transfers, lambda n, t, whole: self._get(n, t.keys, t.host_indices, whole))

    def batch_set_v2(self, transfers, extra_info=None):
        return self._each(transfers, lambda n, t, whole: self._set(n, t.keys, t.host_indices, [UNKNOWN] * len(t.keys), whole))

    def _each(self, transfers, do):
        """Flags by pool. A window or a state is there as a whole or not at all."""
        out = {}
        for t in transfers:
            n, keys = str(t.name), t.keys or []
            out[t.name] = [False] * len(keys)
            if n in self._pools and keys:
                try:
                    out[t.name] = do(n, t, t.hit_policy.value == restorable.TRAILING_PAGES)
                except ValueError as e:
                    logger.warning("Perigee: %s", e)
        return out

    # The rest of the interface.

    def clear(self):
        logger.warning("Perigee: pages are shared with other engines, so they stay: use the Manager's /flush")

    def counts(self):
        """Pages, by what became of them."""
        return self._store.counts.take() | {"late": self._keeper.late}

    def close(self):
        hooks.remove(self._stop, self._getting)
        if self._keeper is not None and not self._closed:
            self._closed = True
            self._keeper.close()
            logger.info("Perigee: pages in all: %s", ", ".join(f"{k} {v}" for k, v in self.counts().items()))

    # Not called with interface_v1.

    def exists(self, key):
        return self.batch_exists([key]) == 1

    def get(self, key, target_location=None, target_sizes=None):
        return None

    def batch_get(self, keys, target_locations=None, target_sizes=None):
        return [None] * len(keys)

    def set(self, key, value=None, target_location=None, target_sizes=None):
        return False

    def batch_set(self, keys, values=None, target_locations=None, target_sizes=None):
        return False
