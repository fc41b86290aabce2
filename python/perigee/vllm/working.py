"""What a rank does: joins the session, loads and saves, each in a thread of its own."""

import contextlib
import os
import queue
import select
import threading
import time

from .. import client
from . import trace as tracing
from .adapters import stamp
from .breaker import Backoff, Silence
from .keeper import keeper as own

# A step's saves wait at most this long for the engine's forward pass, which has raised if it takes longer: then nobody will say that it has ended.
FORWARD_S = 60.0


class _Joined:
    """A rank's member of a session, used by both threads and let go of by the last that does, or by whoever sees that it is dead while nobody does."""

    def __init__(self, member):
        self.member, self.session, self.users, self.dead, self.closing = member, member.session, 0, False, False

    def end(self):
        """Under the lock: it is dead. Whether it is the caller's to close."""
        self.dead = True
        mine = self.users == 0 and not self.closing
        self.closing = self.closing or mine
        return mine


class Joining:
    """Joins the session of which the scheduler tells, and lets go of it when it ends, also while there are no steps: its memory would be nobody's until then. make(credentials) gives a client.Session. One that could not be joined is tried again after a pause, which
    doubles: the scheduler goes on to lease for this rank, and a Manager that was full for a moment must not cost the rank all of them."""

    def __init__(self, make, clock=time.monotonic, keeper=own):
        self._make, self._clock, self._keeper, self._lock = make, clock, keeper, threading.Lock()
        self._joined, self._wanted = {}, None
        self._failed, self._backoff = None, Backoff()  # the credentials that the pause is of
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_w, False)
        self._ended = False
        self._watcher = threading.Thread(target=self._watch, name="perigee-joined", daemon=True)
        self._watcher.start()

    @contextlib.contextmanager
    def use(self, credentials):
        j = self._enter(credentials)
        try:
            yield j.session
        except client.Lost:
            j.dead = True  # its last user closes it
            raise
        finally:
            self._leave(j)

    def _enter(self, credentials):
        with self._lock:
            j = self._joined.get(credentials)
            if j is None:
                if credentials != self._failed:
                    self._failed, self._backoff = credentials, Backoff()
                if not self._backoff.allows(self._clock()):
                    raise client.Lost("the session could not be joined a moment ago")
                try:
                    j = self._joined[credentials] = _Joined(self._keeper.join(credentials, self._make))
                    self._wake()
                except (client.PerigeeError, OSError):
                    self._backoff.strike(self._clock())
                    raise
            if j.dead:
                raise client.Lost("the session has ended")
            j.users += 1
            return j

    def _leave(self, j):
        with self._lock:
            j.users -= 1
            last = j.dead and j.end()
        if last:
            self._end(j)

    @staticmethod
    def _end(j):
        """It is over, and nobody uses it: also the scheduler's half, if that is in this process, is told."""
        j.member.end()
        j.member.let_go()

    def retire(self, credentials):
        """Lets go of all sessions but one, or of all: their memory is the Manager's again. It is done in a thread, since a Manager that
        hangs may have to be waited for."""
        self._wanted = credentials
        threading.Thread(target=self._retire, name="perigee-retire", daemon=True).start()

    def _retire(self):
        with self._lock:
            idle = [j for j in [self._joined.pop(c) for c in list(self._joined) if c != self._wanted] if j.end()]
            self._wake()
        for j in idle:
            j.member.let_go()

    def close(self):
        """All sessions end as their users leave them."""
        with self._lock:
            self._wake()
            self._ended = True
        self.retire(None)
        self._watcher.join(timeout=5)

    def _wake(self):
        """Under the lock."""
        if not self._ended:
            with contextlib.suppress(BlockingIOError):  # it is awake
                os.write(self._wake_w, b"\0")

    def _watch(self):
        """A hang-up is seen by itself."""
        while True:
            with self._lock:
                if self._ended:
                    os.close(self._wake_r)
                    os.close(self._wake_w)
                    return
                joined = {j.session.fileno(): j for j in self._joined.values() if not j.dead}
            p = select.poll()
            p.register(self._wake_r, select.POLLIN)
            for fd in joined:
                p.register(fd, select.POLLRDHUP)
            for fd, _ in p.poll():
                if fd == self._wake_r:
                    os.read(fd, 4096)
                    continue
                with self._lock:
                    mine = joined[fd].end()
                if mine:
                    self._end(joined[fd])


class _Dropped(Exception):
    """The step has ended, or the load was given up."""


class Loader:
    """Restores leases into blocks. Every load ends: either all of its pages are there, or all of its blocks are reported as bad. If nothing has moved for
    wait_s, all loads that are open are given up, and what the Manager says of them later is not believed: no page is written any more."""

    def __init__(self, joining, pages, consumer, log, wait_s=1.0, trace=tracing.none, clock=time.monotonic):
        self._joining, self._pages, self._consumer, self._log, self._trace, self._clock = joining, pages, consumer, log, trace, clock
        self._queue = queue.SimpleQueue()  # bounded by the engine: each load has blocks of its own
        self._lock = threading.Lock()  # of all below, and held while a page is written
        self._done, self._bad = set(), set()
        self._silence, self._open = Silence(wait_s), {}  # by id(): loads that were submitted and are not over
        self.loaded = self.failed = 0
        self._thread = threading.Thread(target=self._run, name="perigee-load", daemon=True)
        self._thread.start()

    def submit(self, load):
        with self._lock:
            if self._silence.began(self._clock()):
                self._open[id(load)] = load
            else:
                self._over(load, False)
        self._queue.put(load)  # also if it was given up: what comes of it says whether the Manager answers again

    def take(self):
        """(requests that have ended, blocks that are not what they should be), each once. It is called all the time, and sees what takes too long."""
        with self._lock:
            if self._silence.over(self._clock()):
                given_up, self._open = self._open, {}
                for load in given_up.values():
                    self._over(load, False)
                self._log.warning("Perigee: nothing was restored for %.0f ms: %d requests compute what they waited for", 1000 * self._silence.limit_s, len(given_up))
            done, bad = self._done, self._bad
            self._done, self._bad = set(), set()
        return done, bad

    def refuse(self, load):
        """A load that is not to be begun: its blocks are reported."""
        with self._lock:
            self._over(load, False)

    def give_up(self):
        """All loads that are open: no page is written any more when this returns."""
        with self._lock:
            given_up, self._open = self._open, {}
            self._silence.dropped()
            for load in given_up.values():
                self._over(load, False)

    def _over(self, load, whole):
        if whole:
            self.loaded += 1
        else:
            self.failed += 1
            self._bad.update(b for b in load.blocks if b >= 0)
        self._done.add(load.request)
        self._trace("engine_ready" if whole else "restore_failed", load.request, len(load.blocks))

    def _run(self):
        while (load := self._queue.get()) is not None:
            fault = None
            with self._lock:
                if id(load) in self._open:
                    self._silence.moved(self._clock())
            try:
                with self._joining.use(load.session) as session:
                    self._trace("restore_start", load.request, len(load.blocks))
                    session.restore(load.lease, self._consumer, lambda i, page: self._write(load, i, page))
            except Exception as e:
                fault = e
            with self._lock:
                if self._open.pop(id(load), None) is not None:
                    self._over(load, fault is None)
                    self._silence.ended(self._clock())
                else:
                    self._silence.moved(self._clock())
                    if isinstance(fault, client.Refused):
                        fault = None  # its lease was given up with it, by the scheduler's half
            if fault is not None and not isinstance(fault, _Dropped):
                known = isinstance(fault, (client.PerigeeError, OSError))
                self._log.warning("Perigee: %s computes what was not restored: %s", load.request, fault, exc_info=None if known else fault)

    def _write(self, load, i, page):
        with self._lock:
            if id(load) not in self._open:
                raise _Dropped
            self._silence.moved(self._clock())
            if i == 0:
                self._trace("first_page", load.request)
            if load.blocks[i] >= 0:
                self._pages.write(load.blocks[i], page)

    def close(self):
        self._queue.put(None)
        self._thread.join(timeout=5)


class _Saves:
    """One step's."""

    def __init__(self, step):
        self.session, self.saves = step.session, step.saves
        self.computed, self.finished, self.lock, self.ended = threading.Event(), threading.Event(), threading.Lock(), False


class Saver:
    """Publishes what steps compute. Slots are asked for while the step computes; when it has, pages are copied. The step waits for that, up to
    wait_s; what is not copied by then is dropped, and so is all of the following steps as long as the Manager does not answer, and for a pause after that."""

    def __init__(self, joining, pages, part, block_tokens, wait_s, log, trace=tracing.none, clock=time.monotonic):
        self._trace, self._clock, self._backoff = trace, clock, Backoff()
        self._joining, self._pages, self._part, self._block, self._wait_s, self._log = joining, pages, part, block_tokens, wait_s, log
        self._queue = queue.SimpleQueue()  # of one step at most: see begin
        self._chains = {}  # the saver's thread's: by request, the name of its last block that was published, and the chain's there
        self._current = self._last = None
        self.sealed = self.present = self.refused = self.dropped = 0  # blocks
        self._thread = threading.Thread(target=self._run, name="perigee-save", daemon=True)
        self._thread.start()

    def begin(self, step):
        """Before the forward pass."""
        if not step.saves and not step.finished:
            return
        if self._last is not None and not self._last.finished.is_set() or not self._backoff.allows(self._clock()):
            for save in step.saves:
                self._drop(save)
        elif step.saves:
            self._current = self._last = _Saves(step)
            self._queue.put(self._current)
        if step.finished:
            self._queue.put(list(step.finished))

    def end(self):
        """After it: when this returns nothing of the saver reads the engine's memory."""
        s, self._current = self._current, None
        if s is None:
            return
        s.computed.set()
        if s.finished.wait(self._wait_s):
            self._backoff.passed()
            return
        with s.lock:  # not in the middle of a page
            s.ended = True
        self._backoff.strike(self._clock())

    def _drop(self, save):
        self.dropped += len(save.blocks)
        self._trace("save_dropped", save.request, len(save.blocks))

    def _run(self):
        while (s := self._queue.get()) is not None:
            if isinstance(s, list):
                for request in s:
                    self._chains.pop(request, None)
                continue
            try:
                for save in s.saves:
                    # The step waits for the copies, and not for the Manager's checksums of them.
                    self._save(s, save, s.finished.set if save is s.saves[-1] else None)
            finally:
                s.finished.set()

    def _save(self, s, save, copied):
        tokens = memoryview(save.tokens).cast("I")
        names = [save.parent, *save.names]
        blocks = [client.Block(names[i + 1], names[i], tokens[i * self._block:(i + 1) * self._block]) for i in range(len(save.names))]

        looked = save.adapter is None

        def write(i, slot):
            nonlocal looked
            if not s.computed.wait(FORWARD_S):
                raise _Dropped
            if not looked and stamp(save.adapter[0]) != save.adapter[1]:
                raise _Dropped  # this step may have loaded other weights than those that the names are of
            looked = True  # at the first block that is written, whichever that is: the Manager may have those before it
            with s.lock:
                if s.ended:
                    raise _Dropped
                self._pages.read(save.blocks[i], slot)

        try:
            with s.lock:
                if s.ended:
                    raise _Dropped
            with self._joining.use(s.session) as session:
                last, chain = self._chains.get(save.request, (None, (0, 0)))
                if last != save.parent:  # what is between was dropped: the Manager takes what it knows of the parent
                    chain = (0, 0)
                p = session.publish(blocks, write, part=self._part, root=("", save.lora, save.salt), parent_chain=chain, copied=copied)
            self._chains[save.request] = save.names[-1], p.chain
            self.sealed, self.present = self.sealed + p.sealed, self.present + p.present
            self.refused += len(blocks) - p.sealed - p.present
            self._trace("saved", save.request, p.sealed)
        except _Dropped:
            self._drop(save)
        except Exception as e:
            self._drop(save)
            known = isinstance(e, (client.PerigeeError, OSError))
            self._log.warning("Perigee: %d blocks of %s are not saved: %s", len(blocks), save.request, e, exc_info=None if known else e)

    def close(self):
        self._queue.put(None)
        self._thread.join(timeout=5)
