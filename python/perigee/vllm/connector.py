"""vLLM's hooks. Each passes on to scheduling.py or working.py; what vLLM promises of each is in its base class."""

import uuid
from dataclasses import dataclass

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1, KVConnectorHandshakeMetadata, KVConnectorMetadata, KVConnectorRole, KVConnectorWorkerMetadata,
)
from vllm.logger import init_logger

from .. import client
from . import facts, weights, working
from . import trace as tracing
from .adapters import Adapters
from .broker import Broker
from .messages import Facts, Step
from .pages import Pages
from .scheduling import Scheduling

logger = init_logger("vllm.perigee")

DEFAULT_SOCKET = "/run/perigee/cache.sock"
# How long a request may be "not known yet". An answer takes less than a millisecond when the Manager is idle; a prompt worth asking for takes
# longer than this to compute.
LOOKUP_MS = 250
# How long a step waits for its own saves. Copying 4,000 tokens takes some ten milliseconds.
SAVE_MS = 500
# How long nothing may move while something is restored; then it is computed. A page comes every few milliseconds; but on two cores with a load average of 40 one load in
# ten stood still for a second, and computing what it brought took five.
LOAD_MS = 3000
# For one answer that the Manager gives at once.
ANSWER_S = 10.0
# The same for a rank: longer than the Manager's patience of two minutes. Nothing waits for it but threads, and giving up earlier would end the session, for good as
# long as the Manager lives: it waits for this process to end before it gives its memory to anybody.
RANK_S = 130.0


@dataclass
class Metadata(Step, KVConnectorMetadata):
    pass


@dataclass
class Handshake(Facts, KVConnectorHandshakeMetadata):
    pass


@dataclass
class Spoiled(KVConnectorWorkerMetadata):
    """A rank's weights were changed since that reset."""

    number: int

    def aggregate(self, other):
        return self if self.number >= other.number else other


class PerigeeConnector(KVConnectorBase_V1):
    """kv_connector_extra_config: socket, instance (a name, the engine's id by default), scope, weight_version, model_content, lookup_ms, save_ms, load_ms,
    trace (a folder for the files of trace.py; none), least_blocks (restoring fewer is not worth it; 1), model and url as the Manager's KV events are to say them, pool_bytes, allow_unqualified_version,
    adapters_immutable (nobody ever writes again where an adapter was loaded from), fingerprints (a file that remembers digests of the model's files).

    It is no SupportsHMA: hybrid models' groups have rules of their own, which are not built. vLLM then makes one group of what it can."""

    def __init__(self, vllm_config, role, kv_cache_config=None):
        super().__init__(vllm_config, role, kv_cache_config)
        self._extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        reasons = facts.unsupported(vllm_config, kv_cache_config, self._extra)
        if reasons:
            raise ValueError("PerigeeConnector: " + "; ".join(reasons))
        self._socket = self._extra.get("socket", DEFAULT_SOCKET)
        self._config, self._kv_cache = vllm_config, kv_cache_config
        self._block = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        self._scheduling = self._broker = None
        self._loader = self._saver = self._joining = self._pages = None
        self._bad = set()
        if role == KVConnectorRole.SCHEDULER:
            self._begin_scheduling()

    @property
    def requires_kv_delivery(self):
        return False  # a cache: what is not saved is computed again

    # The scheduler's half.

    def _begin_scheduling(self):
        t = self._kv_transfer_config
        self._ranks, self._content, self._version = None, None, ""
        budget, self._trace = self._extra.get("lookup_ms", LOOKUP_MS) / 1000, tracing.make(self._extra.get("trace"), "scheduler")
        self._broker = Broker(self._register, self._config.parallel_config.tensor_parallel_size, logger, budget, self._trace)
        self._scheduling = Scheduling(
            self._broker, self._block, Adapters(logger, bool(self._extra.get("adapters_immutable"))), loads=t.is_kv_consumer, saves=t.is_kv_producer,
            budget_s=budget, least_blocks=self._extra.get("least_blocks", 1), trace=self._trace)

    def set_xfer_handshake_metadata(self, metadata):
        self._ranks = [metadata[i].namespace for i in sorted(metadata)]

    def _register(self):
        """In the broker's thread."""
        if self._ranks is None:
            raise OSError("the engine is still starting")
        if self._content is None:
            self._content = facts.content(self._config, self._extra)
        ranks = [facts.complete(r, self._config, self._content, self._version) for r in self._ranks]
        served = self._config.model_config.served_model_name
        return client.Session(
            self._socket, self._extra.get("instance", self._kv_transfer_config.engine_id), ranks, publishes=False, program="perigee-vllm",
            model=self._extra.get("model", served if isinstance(served, str) else served[0]), url=self._extra.get("url", ""),
            pool_bytes=self._extra.get("pool_bytes", 0), timeout=ANSWER_S)

    def on_new_request(self, request):
        self._scheduling.arrived(request)

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self._scheduling.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        self._scheduling.allocated(request, blocks.get_block_ids()[0] if num_external_tokens else (), num_external_tokens)

    def build_connector_meta(self, scheduler_output):
        blocks = scheduler_output.kv_connector_block_state
        step = self._scheduling.step(scheduler_output.num_scheduled_tokens, lambda ident: blocks.get_block_ids(ident)[0])
        return Metadata(**vars(step))

    def update_connector_output(self, connector_output):
        self._scheduling.restored(connector_output.finished_recving or (), connector_output.invalid_block_ids)
        spoiled = connector_output.kv_connector_worker_meta
        if spoiled is not None and spoiled.number == self._scheduling.resets:
            self._broker.halt()

    def request_finished(self, request, block_ids):
        self._scheduling.ended(request)
        return False, None

    def reset_cache(self):
        """vLLM has reset its own caches, as other weights want it. A plain /reset_prefix_cache does not come here."""
        if self._kv_cache_manager is None or self._kv_cache_manager.usage > 0:
            logger.warning("Perigee: requests have blocks, so the caches are not reset: they would be saved under another name than they were computed")
            return False
        self._version = uuid.uuid4().hex
        self._scheduling.reset()
        self._broker.renew()
        logger.warning("Perigee: the caches were reset: from now on pages are kept for this engine alone, and under another name, since its weights may be others. "
                       "Those of before are other engines' too, and stay: see the Manager's /flush")
        return True

    # The workers' half.

    def register_kv_caches(self, kv_caches):
        self._pages = Pages(kv_caches, self._kv_cache.num_blocks)
        own = facts.of_rank(self._config, self._kv_cache, self._pages, self._extra)
        self._handshake = Handshake(own)
        shard = own["shard"]["tensor"]
        ranks = [own] * shard["size"]  # of which only our own page's length is looked at
        self._joining = working.Joining(lambda c: client.Session(self._socket, "", ranks, join=c, program="perigee-vllm-rank", timeout=RANK_S))
        trace = tracing.make(self._extra.get("trace"), f"rank{shard['index']}")
        self._loader = working.Loader(self._joining, self._pages, shard["index"], logger, self._extra.get("load_ms", LOAD_MS) / 1000, trace)
        self._saver = working.Saver(self._joining, self._pages, shard["index"], self._block, self._extra.get("save_ms", SAVE_MS) / 1000, logger, trace)
        self._session, self._trust, self._trusted = None, weights.Trust(), True
        missing = weights.install(self._changed)
        if missing and not self._extra.get("allow_unqualified_version"):
            raise ValueError(f"PerigeeConnector: this vLLM has no {', '.join(missing)}, so nobody would say that weights change")

    def _changed(self):
        """In the rank's own thread, between steps."""
        self._trust.change()
        self._loader.give_up()

    def get_handshake_metadata(self):
        return self._handshake

    def handle_preemptions(self, kv_connector_metadata):
        """The first hook of each step. Nothing waits for a preemption here: no save reads memory between steps, and a request whose load is under way
        cannot be preempted. The slots for this step's saves are asked for while it computes."""
        m = kv_connector_metadata
        if m.session != self._session:
            self._session = m.session
            self._joining.retire(m.session)
        trusted, self._trusted = self._trusted, self._trust.step(m)
        if trusted and not self._trusted:
            logger.warning("Perigee: the weights were changed in place: nothing is stored or restored until the caches are reset, with reset_external or by a pause or a sleep that clears them")
        self._saver.begin(m if self._trusted else Step(finished=m.finished))

    def start_load_kv(self, forward_context, **kwargs):
        m = self._get_connector_metadata()
        for load in m.loads:
            if self._trusted and load.session == m.session:
                self._loader.submit(load)
            else:
                self._loader.refuse(load)

    def wait_for_layer_load(self, layer_name):
        pass  # loads are between steps

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        pass  # it is not called in every step that completes a block

    def wait_for_save(self):
        self._saver.end()

    def get_finished(self, finished_req_ids):
        done, bad = self._loader.take()
        self._bad |= bad
        return None, done or None

    def get_block_ids_with_load_errors(self):
        bad, self._bad = self._bad, set()
        return bad

    def build_connector_worker_meta(self):
        return None if self._trust.spoiled is None else Spoiled(self._trust.spoiled)

    def shutdown(self):
        for part in (self._loader, self._saver, self._broker):
            if part is not None:
                part.close()
        if self._joining is not None:
            weights.remove(self._changed)
            self._joining.close()
