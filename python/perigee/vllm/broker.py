"""The scheduler's connection with the Manager: one thread that owns the session, so that the scheduler never waits.

    b = Broker(path, register)          register() makes a Session, as often as one is lost; it may take its time
    q = b.ask(names, wait)              at once; q.state becomes READY or NOTHING by itself
    b.drop(q)                           its lease, if it has or will get one, is given up
    b.credentials                       of the session for the workers; None while there is none
"""

import collections
import math
import os
import select
import threading
import time

from .. import client
from ..client import fingerprint
from . import trace as tracing
from .breaker import Breaker
from .keeper import keeper as own

ASKED, READY, NOTHING = "asked", "ready", "nothing"

# Queries that may be open at once. The Manager's own bound for a session is about as large; beyond it requests compute.
MOST_OPEN = 128
# A Manager that is not there is tried again after this long, doubled each time up to the second figure: a restart is seen within a
# moment, and a machine without a Manager pays a failed connect() a few times a minute.
FIRST_RETRY_S, LAST_RETRY_S = 0.1, 5.0
# A session that was lost sooner than this has not ended the failures before it: one that a rank cannot join, say, is lost as soon as it is there.
LASTED_S = 1.0


class Query:
    """One question. The broker's thread writes it, state last; the scheduler reads it."""

    __slots__ = ("names", "wait", "until", "state", "why", "lease", "hits", "session", "ticket", "dropped", "request", "sent")

    def __init__(self, names, wait, request="", now=0.0):
        self.names, self.wait, self.until, self.request, self.sent = names, wait, now + wait, request, 0.0
        self.state, self.why, self.lease, self.hits, self.session, self.ticket, self.dropped = ASKED, "", None, 0, None, None, False


class Broker:
    """budget_s is the longest that a question waits; a Manager that lets one pass without a word is not asked until it answers in time, see breaker.py."""

    def __init__(self, register, consumers, log, budget_s=0.25, trace=tracing.none, clock=time.monotonic, keeper=own):
        self._register, self._consumers, self._log, self._trace, self._clock = register, consumers, log, trace, clock
        self._keeper = keeper
        self._breaker = Breaker(budget_s)  # this thread's
        self._heard, self._probe = -1.0, None  # when the Manager last answered something; (ticket, when it was sent) of what is to end its silence
        self._halted, self._renewals = False, 0  # there is to be no session; how often another one was wanted
        self.silent = False  # as the breaker is: the thread writes, the scheduler reads
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

    def ask(self, names, wait, request=""):
        q = Query(names, wait, request, self._clock())
        with self._count:
            if self.credentials is None or self.open >= MOST_OPEN or self.silent:
                q.why = "no Manager" if self.credentials is None else "silent" if self.silent else "too many queries"
                q.state = NOTHING
                self._trace("nothing", request, tracing.why(q.why))
                return q
            self.open += 1
            self._command("ask", q)  # under the lock: who loses the session finds it, and answers
        return q

    def drop(self, q):
        if not q.dropped and (q.state == ASKED or q.lease is not None):
            q.dropped = True
            self._command("drop", q)

    def renew(self):
        """Another session, since what register() makes is another one's now. There are no credentials until it is there."""
        self._turn_over(False)

    def halt(self):
        """No session, until renew is called."""
        self._turn_over(True)

    def _turn_over(self, halted):
        with self._count:
            self._halted, self._renewals, self.credentials = halted, self._renewals + 1, None
        self._command("look", None)

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
        retry = FIRST_RETRY_S
        while not self._ended.is_set():
            if self._halted:
                self._rest()
                continue
            member, renewals, began = None, self._renewals, self._clock()  # before it registers: what changes meanwhile is seen
            try:
                member = self._keeper.hold(session := self._register())
                self._begin(session, renewals)
                self._serve(session, renewals)
            except fingerprint.Changed as e:
                self._halted = True
                self._log.warning("Perigee: nothing is stored or restored until the engine is started again: %s (model_content would say what the model is)", e)
            except Exception as e:
                known = isinstance(e, (client.PerigeeError, OSError))
                if member is not None and self._clock() - began >= LASTED_S:
                    retry = FIRST_RETRY_S
                if member is not None or retry == FIRST_RETRY_S:
                    self._log.warning("Perigee: no Cache Manager, so everything is computed: %s", e, exc_info=None if known else e)
                self._lost(member)
                self._ended.wait(retry)
                retry = min(2 * retry, LAST_RETRY_S)
            else:
                self._lost(member)
        self._lost(None)

    def _begin(self, session, renewals):
        self._breaker, self._probe, self._heard = Breaker(self._breaker.budget_s), None, -1.0
        self.silent = False
        self.sessions += 1
        with self._count:
            if renewals == self._renewals:
                self.credentials = session.credentials
        self._log.info("Perigee: registered with the Cache Manager, session %d of epoch %016x", session.credentials.session, session.credentials.epoch)

    def _rest(self):
        """Until there is a command, where there is to be no session."""
        self._lost(None)
        if self._wait(None, None):
            os.read(self._wake_r, 4096)

    def _lost(self, member):
        with self._count:  # from here on nothing is asked
            self.credentials = None
        while self._commands:
            what, q = self._commands.popleft()
            if what == "ask":
                self._open.append(q)
        for q in self._open:
            self._answer(q, NOTHING, "the Manager was lost")
        self._open = []
        if member is not None:  # a rank in this process is hung up on, and the goodbye is its to say if it still copies
            member.end()
            member.let_go()

    def _answer(self, q, state, why=""):
        if q.state != ASKED:
            return  # it is counted once: the session may be lost in the midst of taking answers in
        with self._count:
            self.open -= 1
        q.why, q.state = why, state  # state last: the scheduler goes by it
        if state == READY:
            self._trace("host_ready", q.request, q.hits)
        else:
            self._trace("nothing", q.request, tracing.why(why))

    def _serve(self, session, renewals):
        while not self._ended.is_set() and renewals == self._renewals:
            now = self._clock()
            waits = [max(0.0, q.until - now) for q in self._open]
            if (probe := self._breaker.wait(now)) is not None:
                waits.append(probe)
            wait = min(waits, default=None)
            if self._wait(session, wait):
                os.read(self._wake_r, 4096)
            while self._commands:
                self._do(session, *self._commands.popleft())
            session.poll()
            if self._probe is not None:
                self._listen(session)
            asked_of_nobody = self.silent
            self._open = [q for q in self._open if not self._settle(session, q)]
            if self.silent and not asked_of_nobody:  # those before the one that ran out, too
                self._open = [q for q in self._open if not self._settle(session, q)]
            if self._breaker.wait(self._clock()) == 0:
                self._ask_again(session)

    def _wait(self, session, seconds):
        """Until the Manager says something, or the time is up, or there are commands: then it is true."""
        p = select.poll()  # and not select, whose descriptors are below 1024
        if session is not None:
            p.register(session.fileno(), select.POLLIN)
        p.register(self._wake_r, select.POLLIN)
        return any(fd == self._wake_r for fd, _ in p.poll(None if seconds is None else math.ceil(1000 * seconds)))

    def _do(self, session, what, q):
        if what == "ask":
            wait = q.until - self._clock()
            if q.dropped or wait <= 0 or self.silent:
                self._answer(q, NOTHING, "silent" if self.silent else "timed out")
                return
            q.session, q.sent = session.credentials, self._clock()
            self._trace("read_start", q.request, len(q.names) // 32)
            self._open.append(q)  # before, so that it is answered whatever happens
            q.ticket = session.ask([(0, q.names)], consumers=self._consumers, wait=wait)
        elif what == "drop" and q.lease is not None and q.session == session.credentials:
            session.release(q.lease)
            q.lease = None

    def _settle(self, session, q):
        """Whether a query has its last answer."""
        try:
            a = session.answer(q.ticket, block=False)
        except client.Refused as e:
            self._hear(q.sent)
            self._answer(q, NOTHING, e.name)
            return True
        if a is not None:
            self._hear(q.sent)
        if a is not None and a.outcome not in (client.LOADING,):
            if a.lease is not None and q.dropped:
                session.release(a.lease)
            elif a.lease is not None:
                q.lease, q.hits = a.lease, a.lease.hits[0]
            self._answer(q, READY if q.lease is not None else NOTHING, a.why or a.outcome)
            return True
        now = self._clock()
        if not q.dropped and now >= q.until and self._heard < q.sent and self._breaker.late(now, q.sent):
            self._turn(True)
            self._probe = (q.ticket, q.sent)
            self._answer(q, NOTHING, "silent")
            return True
        if q.dropped or now >= q.until or self.silent:
            session.cancel(q.ticket)
            self._answer(q, NOTHING, "silent" if self.silent and now < q.until else "timed out")
            return True
        return False

    # A Manager that does not answer.

    def _hear(self, sent):
        self._heard = self._clock()
        self._breaker.heard(self._heard, sent)
        if self._breaker.closed and self.silent:
            self._turn(False)

    def _turn(self, silent):
        self.silent = silent
        self._trace("silent" if silent else "answering")
        if silent:
            self._log.warning("Perigee: the Cache Manager has not answered for %.0f ms: it is not asked until it does", 1000 * self._breaker.budget_s)
        else:
            self._log.info("Perigee: the Cache Manager answers again")

    def _listen(self, session):
        """Whether the probe was answered: any answer will do."""
        ticket, sent = self._probe
        try:
            a = session.answer(ticket, block=False)
        except client.Refused:
            a = None
        else:
            if a is None or a.outcome == client.LOADING:
                return
        self._probe = None
        if a is not None and a.lease is not None:
            session.release(a.lease)
        self._hear(sent)

    def _ask_again(self, session):
        """A question about one block that nobody has: it reads nothing and lends nothing."""
        self._probe = (session.ask([(0, bytes(32))], mode=client.DISCOVER), self._clock())
        self._breaker.probed()
