"""The connection with the Manager: one thread that registers, as often as the session is lost, so that no call of the engine waits for that.

    k = Keeper(register, log)            register() makes Connections; it may take its time
    with k.use(QUERIES, wait) as s:      a client.Session, for this thread alone; Lost at once if there is none, or if it is not free within wait seconds
    k.close()

Each of the session's three connections is used by one thread at a time: who asks, who restores, and who publishes. A call during which the Manager copies has no
bound but its answer or the Manager's end, since the memory is not the engine's before; what others want of that connection meanwhile
fails after a moment, and at once when it has lasted too long.
"""

import contextlib
import os
import select
import threading
import time

from .. import client
from ..client import fingerprint

QUERIES, RESTORES, PUBLISHES = LANES = "queries", "restores", "publishes"
# A Manager that is not there is tried again after this long, doubled each time up to the second figure: a restart is seen within a moment, and a
# machine without a Manager pays a failed connect() a few times a minute.
FIRST_RETRY_S, LAST_RETRY_S = 0.1, 5.0
# A call that has the connection for as long as this is one with a Manager that hangs.
STUCK_S = 2.0


class Connections:
    """A session as it was registered, and joined once more by the same process: for questions alone, so that no restore keeps one waiting. offered says that the
    engine's memory was handed over."""

    def __init__(self, session, reader, offered=False):
        self._session, self._reader, self.offered = session, reader, offered
        self.credentials = session.credentials

    def lane(self, name):
        return self._reader if name == RESTORES else self._session

    def fileno(self):
        return self._session.fileno()

    def close(self):
        """The end of a connection would be the session's: one goodbye is said for both, when nothing is mapped any more."""
        self._reader.unmap()
        self._session.close()
        self._reader.drop()


class _Use:
    """What Keeper.use returns: a context. A generator's costs twice as much, in the middle of a restore."""

    __slots__ = ("_keeper", "_lane", "_wait", "_session")

    def __init__(self, keeper, lane, wait):
        self._keeper, self._lane, self._wait = keeper, lane, wait

    def __enter__(self):
        self._session = self._keeper._begin(self._lane, self._wait)
        return self._session.lane(self._lane)

    def __exit__(self, kind, *_):
        try:
            if kind is not None and issubclass(kind, client.Lost):
                self._keeper._lose(self._session)
        finally:
            self._keeper._over(self._lane)


class Keeper:
    def __init__(self, register, log):
        self._register, self._log = register, log
        self._locks = {lane: threading.Lock() for lane in LANES}
        self._since = {}  # when the lane's holder got it
        self._state = threading.Lock()
        self._session, self._closed = None, False
        self._ended = threading.Event()
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_w, False)
        self.sessions = self.late = 0  # registered so far; calls that gave up on a busy connection
        self._thread = threading.Thread(target=self._run, name="perigee-keeper", daemon=True)
        self._thread.start()

    @property
    def up(self):
        """Whether there is a session."""
        return self._session is not None

    @property
    def offered(self):
        """Whether the Manager may copy from and to the engine's memory."""
        session = self._session
        return session is not None and session.offered

    def use(self, lane, wait):
        return _Use(self, lane, wait)

    def _begin(self, lane, wait):
        """The session, whose lane is the caller's until _over."""
        if self._session is None:
            raise client.Lost("there is no Manager")
        lock = self._locks[lane]
        if not lock.acquire(blocking=False):
            since = self._since.get(lane)
            if (since is not None and time.monotonic() - since > STUCK_S) or not lock.acquire(timeout=wait):
                self.late += 1
                raise client.Lost(f"the connection for {lane} is busy")
        self._since[lane] = time.monotonic()
        session = self._session
        if session is None:
            self._over(lane)
            raise client.Lost("there is no Manager")
        return session

    def _over(self, lane):
        self._since[lane] = None
        self._locks[lane].release()

    def _lose(self, session):
        with self._state:
            if self._session is session:
                self._session = None
        self._wake()

    def _wake(self):
        with self._state:
            if not self._closed:
                with contextlib.suppress(BlockingIOError):  # it is awake
                    os.write(self._wake_w, b"\0")

    def close(self):
        """Ends the session; nothing is used of it any more when this returns, unless a call of the engine still is."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._wake()
        self._thread.join(timeout=30)

    # The thread.

    def _run(self):
        retry, told = FIRST_RETRY_S, False
        while not self._ended.is_set():
            try:
                session = self._register()
            except fingerprint.Changed as e:
                self._log.warning("Perigee: nothing is stored or restored until the engine is started again: %s (model_content would say what the model is)", e)
                break
            except Exception as e:
                if not told:
                    told = True
                    known = isinstance(e, (client.PerigeeError, OSError, ValueError))
                    self._log.warning("Perigee: no Cache Manager, so everything is computed: %s", e, exc_info=None if known else e)
                self._ended.wait(retry)
                retry = min(2 * retry, LAST_RETRY_S)
                continue
            retry, told = FIRST_RETRY_S, False
            self.sessions += 1
            c = session.credentials
            self._log.info("Perigee: registered with the Cache Manager, session %d of epoch %016x", c.session, c.epoch)
            self._session = session
            self._watch(session)
            self._end(session)
            if not self._ended.is_set():
                self._log.warning("Perigee: the Cache Manager was lost: everything is computed until it is back")
        with self._state:
            self._closed = True
            for fd in (self._wake_r, self._wake_w):
                os.close(fd)

    def _watch(self, session):
        """Until it is lost. A hang-up is seen by itself, so that a call need not find out."""
        p = select.poll()
        p.register(self._wake_r, select.POLLIN)
        p.register(session.fileno(), select.POLLRDHUP)
        while self._session is session and not self._ended.is_set():
            for fd, _ in p.poll():
                if fd == self._wake_r:
                    os.read(fd, 4096)
                else:
                    self._lose(session)
        self._lose(session)

    def _end(self, session):
        """Waits for the calls that still use it, which have bounds of their own: the memory is not unmapped under them."""
        for lane in LANES:
            self._locks[lane].acquire()
        try:
            session.close()
        except Exception as e:
            self._log.warning("Perigee: the session was not closed in order: %s", e)
        finally:
            for lane in LANES:
                self._locks[lane].release()
