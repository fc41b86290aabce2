"""What the scheduler's half decides. It knows vLLM's requests only by their attributes, and imports nothing of vLLM."""

import array
import time

from .. import client
from ..client import NO_BLOCK
from . import broker as brokering
from . import trace as tracing
from .messages import Load, Save, Step

# Blocks in one Save: the Manager takes 4 MiB in a message, which 2,048 blocks of 256 tokens reach.
MOST_IN_A_SAVE = 512


class Tracked:
    """What is known of a request."""

    __slots__ = ("request", "names", "identity", "adapter", "alone", "query", "start", "local", "until", "settled", "preemptions", "saved", "used")

    def __init__(self, request):
        self.request = request
        self.names = []  # of its complete blocks, as far as they were needed
        self.identity = None  # bytes once it is known
        self.adapter = None  # where its adapter's files are, and what they were like when their digest was taken
        self.alone = False  # its adapter's weights are not known for certain
        self.preemptions = request.num_preemptions
        self.saved = 0  # blocks that the workers were told to save
        self.used = False  # something of it was computed, since it came or was preempted
        self.fresh()

    def fresh(self):
        self.query, self.start, self.local, self.until, self.settled = None, 0, 0, None, False


class Scheduling:
    """loads and saves say what this engine does at all, budget_s how long a request may be "not known yet", adapters gives (digest, stamp) of
    a LoRA request without waiting: None if it is not known yet, a digest of None if the request is to be left alone."""

    def __init__(self, broker, block_tokens, adapters, *, loads=True, saves=True, budget_s=0.25, least_blocks=1, clock=time.monotonic, trace=tracing.none):
        self.broker, self.block, self.adapters = broker, block_tokens, adapters
        self.loads, self.saves, self.budget_s, self.least, self.clock = loads, saves, budget_s, least_blocks, clock
        self.tracked, self._trace = {}, trace
        self.pending, self.finished = [], []
        self.resets, self._untouched = 0, False  # the latter: nothing was computed since the last reset
        self.loading = {}  # by request: [its query, its blocks, whether a rank has failed]; until all ranks have ended it

    @staticmethod
    def eligible(request):
        """Requests whose tokens do not say all of what is computed are left alone: media, embeddings; and those whose prompt may yet change."""
        return not (request.mm_features or request.prompt_embeds is not None or request.resumable or request.prompt_is_token_ids is not None)

    def _of(self, request):
        t = self.tracked.get(request.request_id)
        if t is None:
            t = self.tracked[request.request_id] = Tracked(request)
        return t

    def _names(self, t, count):
        """The first count names, or None as long as the request's adapter is not known, and if it is left alone."""
        if t.identity is None:
            lora = t.request.lora_request
            digest = None
            if lora is not None:
                found = self.adapters(lora)
                t.alone = found is not None and found[0] is None
                if found is None or t.alone:
                    return None
                digest, t.adapter = found[0], (lora.lora_path, found[1])
            t.identity = client.request_id(lora=digest, salt=t.request.cache_salt or "")
        for h in t.request.block_hashes[len(t.names):count]:
            t.names.append(client.block_name(bytes(h), t.identity))
        return t.names[:count]

    # Asking.

    def matched(self, request, computed):
        """get_num_new_matched_tokens: (tokens or None, whether they are loaded between steps)."""
        if not self.loads or not self.eligible(request) or request.skip_reading_prefix_cache:
            return 0, False
        t = self._of(request)
        if t.preemptions != request.num_preemptions:  # its blocks are gone: a new start
            self._drop(t)
            t.preemptions, t.used = request.num_preemptions, False
            t.fresh()
        local = computed // self.block
        # One token at least is computed, since its logits are what the next one is drawn from.
        end = min((request.num_tokens - 1) // self.block, len(request.block_hashes))
        if t.settled:
            return 0, False
        if end - local < self.least:
            return self._settle(t)
        if t.until is None:
            t.until = self.clock() + self.budget_s
        if t.query is not None and t.query.state != brokering.ASKED and (local < t.start or t.query.lease is not None and t.query.session != self.broker.credentials):
            self._drop(t)  # what the engine held before the part that we asked for is gone, or the session is
        if t.query is None and not self._ask(t, local, end):
            return self._later(t)
        q = t.query
        if q.state == brokering.ASKED:
            return self._later(t)
        n = t.start + q.hits - local
        if q.state == brokering.NOTHING or n < self.least:
            return self._settle(t)
        t.local = local
        return n * self.block, True

    def _ask(self, t, local, end):
        left = t.until - self.clock()
        names = self._names(t, end) if left > 0 else None
        if names is None:
            return False
        t.start = local
        t.query = self.broker.ask(b"".join(names[local:]), left, t.request.request_id)
        return True

    def _later(self, t):
        return (None, False) if self.clock() < t.until and not t.alone else self._settle(t)

    def _settle(self, t):
        self._drop(t)
        t.settled = True
        return 0, False

    def _drop(self, t):
        if t.query is not None:
            self.broker.drop(t.query)
            t.query = None

    def allocated(self, request, blocks, external):
        """update_state_after_alloc; blocks are the ids of all of the request's blocks."""
        t = self.tracked.get(request.request_id)
        if t is None or t.settled:
            return
        if external == 0 or t.query is None or t.query.lease is None:
            if external:
                raise AssertionError(f"{request.request_id}: {external} tokens to load, and no lease")
            self._settle(t)
            return
        q, skip, n = t.query, t.local - t.start, external // self.block
        where = [-1] * skip + list(blocks[t.local:t.local + n])
        where += [-1] * (q.hits - len(where))
        self.pending.append(Load(request.request_id, q.session, q.lease, where))
        self.loading[request.request_id] = [q, {b for b in where if b >= 0}, False]
        self._trace("restore_submit", request.request_id, n)
        t.query, t.settled = None, True  # the lease is the workers' now

    def restored(self, ended, bad):
        """update_connector_output: requests whose loads all ranks have ended, and blocks that are not what they should be. A rank that could not even begin has not said so to
        the Manager, which would keep the pages for it: the lease is given up."""
        if bad:
            for entry in self.loading.values():
                entry[2] = entry[2] or not bad.isdisjoint(entry[1])
        for ident in ended:
            q, _, failed = self.loading.pop(ident, (None, None, False))
            if failed:
                self.broker.drop(q)

    # Saving.

    def step(self, scheduled, blocks_of):
        """build_connector_meta: scheduled is the tokens of each request in this step, blocks_of(id) the ids of its blocks."""
        out = Step(self.broker.credentials, self.pending, [], self.finished, self.resets, self._untouched)
        self.pending, self.finished, self._untouched = [], [], self._untouched and not scheduled
        for ident, tokens in scheduled.items():
            t = self.tracked.get(ident)
            if t is None:
                continue
            if not t.used:
                t.used = True
                self._trace("first_use", ident)
            if self.saves and out.session is not None:
                self._save(out, t, tokens, blocks_of)
        return out

    def _save(self, out, t, tokens, blocks_of):
        r = t.request
        full = min(len(r.block_hashes), (r.num_computed_tokens + tokens) // self.block)
        names = self._names(t, full) if full > t.saved else None
        if names is None:
            return
        blocks = blocks_of(r.request_id)
        while t.saved < full:
            # The first save of a request begins at its first block, also if that was restored or is held by the engine: the Manager says which it has,
            # gets back what it has evicted, and learns the prompt's chain.
            first, end = t.saved, min(full, t.saved + MOST_IN_A_SAVE)
            raw = array.array("I", r.all_token_ids[first * self.block:end * self.block]).tobytes()
            lora = r.lora_request.lora_name if r.lora_request else ""
            out.saves.append(Save(r.request_id, names[first:end], names[first - 1] if first else NO_BLOCK, raw, list(blocks[first:end]), lora, r.cache_salt or "", t.adapter))
            t.saved = end

    def reset(self):
        """reset_cache, where no request has a block: all is computed anew, and is to be saved again under another name."""
        self.resets, self._untouched = self.resets + 1, True
        for t in self.tracked.values():
            self._drop(t)
            t.fresh()
            t.saved, t.used = 0, False

    def arrived(self, request):
        """on_new_request."""
        self._trace("enqueue", request.request_id)
        if self.eligible(request):
            self._of(request)

    def ended(self, request):
        """request_finished: what was not handed to the workers is given up."""
        t = self.tracked.pop(request.request_id, None)
        if t is not None:
            self._drop(t)
            self.finished.append(request.request_id)
