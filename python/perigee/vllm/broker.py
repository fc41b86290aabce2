"""The scheduler's connection with the Manager: one thread that owns the session, so that the scheduler never waits.

    b = Broker(path, register)          register() makes a Session, as often as one is lost; it may take its time
    q = b.ask(names, wait)              at once; q.state becomes READY or NOTHING by itself
    b.drop(q)                           its lease, if it has or will get one, is given up
    b.credentials                       of the session for the workers; None while there is none
"""

import collections
import os
import select
import threading
import time

from .. import client

ASKED, READY, NOTHING = "asked", "ready", "nothing"

# Queries that may be open at once. The Manager's own bound for a session is about as large; beyond it requests compute.
MOST_OPEN = 128
# A Manager that is not there is tried again after this long, doubled each time up to the second figure: a restart is seen within a
# moment, and a machine without a Manager pays a failed connect() a few times a minute.
FIRST_RETRY_S, LAST_RETRY_S = 0.1, 5.0


class Query:
    """One question. The broker's thread writes it, state last; the scheduler reads it."""

    __slots__ = ("names", "wait", "until", "state", "why", "lease", "hits", "session", "ticket", "dropped")

    def __init__(self, names, wait):
        self.names, self.wait, self.until = names, wait, time.monotonic() + wait
        self.state, self.why, self.lease, self.hits, self.session, self.ticket, self.dropped = ASKED, "", None, 0, None, None, False


class Broker:
    def __init__(self, register, consumers, log):
        self._register, self._consumers, self._log = register, consumers, log
        self._commands = collections.deque()  # of (what, query); bounded by MOST_OPEN asks and a drop for each
        self._open = []  # this thread's
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        self._ended = threading.Event()
        self.credentials = None
        self.open = 0  # queries that are not answered: the scheduler adds, the thread takes away
        self._count = threading.Lock()
        self.sessions = 0
        self._thread = threading.Thread(target=self._run, name="perigee-broker", daemon=True)
        self._thread.start()

    # The scheduler's side.

    def ask(self, names, wait):
        q = Query(names, wait)
        with self._count:
            if self.credentials is None or self.open >= MOST_OPEN:
                q.state, q.why = NOTHING, "no Manager" if self.credentials is None else "too many queries"
                return q
            self.open += 1
        self._command("ask", q)
        return q

    def drop(self, q):
        if not q.dropped and (q.state == ASKED or q.lease is not None):
            q.dropped = True
            self._command("drop", q)

    def _command(self, what, q):
        self._commands.append((what, q))
        try:
            os.write(self._wake_w, b"\0")
        except BlockingIOError:
            pass  # it is awake

    def close(self):
        self._ended.set()
        self._command("end", None)
        self._thread.join(timeout=5)

    # The thread.

    def _run(self):
        session, retry = None, FIRST_RETRY_S
        while not self._ended.is_set():
            try:
                if session is None:
                    session = self._register()
                    self.sessions += 1
                    retry, self.credentials = FIRST_RETRY_S, session.credentials
                    self._log.info("Perigee: registered with the Cache Manager, session %d of epoch %016x", session.credentials.session, session.credentials.epoch)
                self._serve(session)
            except Exception as e:
                known = isinstance(e, (client.PerigeeError, OSError))
                if session is not None or retry == FIRST_RETRY_S:
                    self._log.warning("Perigee: no Cache Manager, so everything is computed: %s", e, exc_info=None if known else e)
                self._lost(session)
                session = None
                self._ended.wait(retry)
                retry = min(2 * retry, LAST_RETRY_S)
        self._lost(session)

    def _lost(self, session):
        self.credentials = None
        while self._commands:
            what, q = self._commands.popleft()
            if what == "ask":
                self._open.append(q)
        for q in self._open:
            self._answer(q, NOTHING, "the Manager was lost")
        self._open = []
        if session is not None:
            session.close()

    def _answer(self, q, state, why=""):
        with self._count:
            self.open -= 1
        q.why, q.state = why, state  # state last: the scheduler goes by it

    def _serve(self, session):
        while not self._ended.is_set():
            left = min((q.until for q in self._open), default=None)
            wait = None if left is None else max(0.0, left - time.monotonic())
            readable = select.select([session, self._wake_r], [], [], wait)[0]
            if self._wake_r in readable:
                os.read(self._wake_r, 4096)
            while self._commands:
                self._do(session, *self._commands.popleft())
            session.poll()
            self._open = [q for q in self._open if not self._settle(session, q)]

    def _do(self, session, what, q):
        if what == "ask":
            wait = q.until - time.monotonic()
            if q.dropped or wait <= 0:
                self._answer(q, NOTHING, "timed out")
                return
            q.session = session.credentials
            q.ticket = session.ask([(0, q.names)], consumers=self._consumers, wait=wait)
            self._open.append(q)
        elif what == "drop" and q.lease is not None and q.session == session.credentials:
            session.release(q.lease)
            q.lease = None

    def _settle(self, session, q):
        """Whether a query has its last answer."""
        try:
            a = session.answer(q.ticket, block=False)
        except client.Refused as e:
            self._answer(q, NOTHING, e.name)
            return True
        if a is not None and a.outcome not in (client.LOADING,):
            if a.lease is not None and q.dropped:
                session.release(a.lease)
            elif a.lease is not None:
                q.lease, q.hits = a.lease, a.lease.hits[0]
            self._answer(q, READY if q.lease is not None else NOTHING, a.why or a.outcome)
            return True
        if q.dropped or time.monotonic() >= q.until:
            session.cancel(q.ticket)
            self._answer(q, NOTHING, "timed out")
            return True
        return False
