"""What a storage backend is asked for, against the Manager. It knows nothing of SGLang: pages are names, places runs of memory.

Every call ends: it has the answer, or it gives up and says that nothing is there, or that nothing was stored. Threads may call at once.
"""

import collections
import contextlib
import threading

from .. import client
from . import pools
from .keeper import PUBLISHES, QUERIES, RESTORES
from .lore import UNKNOWN

# Names in one question: a megabyte, and well below what the Manager takes.
MOST_NAMES = 32768
# A page that fails is dropped by the Manager, so that the next try ends before it; more than one bad page in 128 is no accident.
TRIES = 3
# What an idle Manager takes for an answer, and how many bytes it copies a second: so long its answer is looked for before the thread sleeps.
ANSWER_S, COPIED_A_S = 150e-6, 8e9
# Leases whose release found the connection busy. Each is of a call that failed; what is beyond lapses by itself.
MOST_OWED = 256


def name(key):
    """The block's name of a key of SGLang's, 64 hexadecimal digits. Salt and adapter are in the key already."""
    return client.block_name(bytes.fromhex(key))


def joined(keys):
    """name of each key, one behind the other."""
    # Digits apart from each other's by a space: if there are 64 for each key, and no more spaces than between keys, no key has more or less than 64.
    text = " ".join(keys)
    raw = bytes.fromhex(text)
    if len(raw) != 32 * len(keys) or len(text) != max(0, 65 * len(keys) - 1) or text[64::65].strip():
        raise ValueError("a key of SGLang's has 64 hexadecimal digits")
    return raw


def names(keys):
    """name of each key, for many: a tenth of the time."""
    raw = joined(keys)
    return [raw[i:i + 32] for i in range(0, len(raw), 32)]


# Questions whose names are kept for the get that may follow. Each keeps a few kilobytes of the engine's own strings alive.
MOST_ASKED = 64


class Asked:
    """The names of keys that were asked for lately. SGLang asks for a batch of pages and gets it, or the front of it, a little later by the same strings: to see that they are the same takes no look
    into them, where they are 16 KiB that have left the processor's cache by then. Threads may call at once."""

    def __init__(self, most=MOST_ASKED):
        self._most, self._lock, self._of = most, threading.Lock(), {}

    def __len__(self):
        return len(self._of)

    def joined(self, keys):
        """joined, for who asks."""
        raw = joined(keys)
        if keys:
            with self._lock:
                self._of.pop(keys[0], None)
                if len(self._of) >= self._most:
                    del self._of[next(iter(self._of))]
                self._of[keys[0]] = list(keys), raw
        return raw

    def take(self, keys):
        """joined, for who gets; what is taken is kept no longer."""
        with self._lock:
            theirs, raw = self._of.pop(keys[0], ([], b"")) if keys else ([], b"")
        return raw[:32 * len(keys)] if keys and theirs[:len(keys)] == keys else joined(keys)


class Counts:
    """Of pages, since the start."""

    FIELDS = ("asked", "found", "restored", "missing", "failed", "stored", "present", "refused", "unnamed", "late")

    def __init__(self):
        self._lock = threading.Lock()
        self._values = dict.fromkeys(self.FIELDS, 0)

    def add(self, **more):
        with self._lock:
            for k, v in more.items():
                self._values[k] += v

    def take(self):
        with self._lock:
            return dict(self._values)


class Store:
    """keeper as in keeper.py. wait_s is how long a call may wait for the connection and for the Manager's lookup; adapters gives the name of a
    LoRA adapter from SGLang's id of it. shared is a pools.Shared that covers all places, or None; where the keeper says that it was offered the Manager
    copies, and else this process does. spin_s is how long at most an answer is looked for before the thread sleeps until it comes."""

    def __init__(self, keeper, wait_s, adapters=None, log=None, shared=None, spin_s=0.0):
        self._keeper, self._wait, self._adapters, self._log, self._shared = keeper, wait_s, adapters or {}, log, shared
        self.counts = Counts()
        self._spin = spin_s
        self.stopped = ""  # why nothing is kept any more
        self._fetches = True  # the Manager asks and restores in one exchange
        self._calls = collections.deque()  # an element for each that has not returned: threads add and take them at once
        self._owed = collections.deque(maxlen=MOST_OWED)  # (session, lease)

    @property
    def busy(self):
        """Whether some question or get has not returned: a thread is in it, and the memory that a get was given may still be written to."""
        return bool(self._calls)

    def _session(self, lane):
        if self.stopped:
            raise client.Lost(self.stopped)
        return self._keeper.use(lane, self._wait)

    def _settle(self, session):
        """Lets go of what could not be let go of. A lease of another session went with it."""
        while self._owed:
            try:
                of, lease = self._owed.popleft()
            except IndexError:  # another thread's
                return
            if of is session:
                session.release(lease)

    def _say(self, what, pages, e):
        if self._log is not None and self._keeper.up and not self.stopped:  # the keeper tells of a lost Manager, once
            known = isinstance(e, (client.PerigeeError, OSError))
            self._log.warning("Perigee: %d pages are not %s: %s", pages, what, e, exc_info=None if known else e)

    # Asking.

    def there(self, wants):
        """For each (group, names) the positions of those that are there, rising. The Manager reads and holds nothing for it. names is a list, or joined."""
        sizes = [32 if isinstance(names, bytes) else 1 for _, names in wants]  # of a name
        total = sum(len(names) // size for (_, names), size in zip(wants, sizes))
        out = [[] for _ in wants]
        if total == 0:
            return out
        self._calls.append(None)
        try:
            with self._session(QUERIES) as s:
                self._settle(s)
                for i, ((group, names), size) in enumerate(zip(wants, sizes)):
                    for first in range(0, len(names) // size, MOST_NAMES):
                        a = s.query([(group, names[first * size:(first + MOST_NAMES) * size])], mode=client.DISCOVER, wait=self._wait, spin=self._looks())
                        got = a.positions[0] if a.outcome == client.CANDIDATES else []
                        out[i].extend(first + p for p in got)
        except (client.PerigeeError, OSError) as e:
            self._say("looked for", total, e)
            out = [[] for _ in wants]
        finally:
            self._calls.pop()
        self.counts.add(asked=total, found=sum(map(len, out)))
        return out

    # Restoring.

    def get(self, group, names, places, whole=False):
        """Copies pages to their places: a flag each. The flags are true up to the first page that was not to be had, and all of them are false if whole is
        asked for and any page was not. What lies in places whose flag is false is anything. names is a list, or joined."""
        n = len(places)
        self._calls.append(None)
        try:
            done = self._get(group, names, places, whole)
        finally:
            self._calls.pop()
        self.counts.add(restored=done, missing=n - done)
        return [True] * done + [False] * (n - done)

    def _get(self, group, names, places, whole):
        try:
            for _ in range(TRIES):
                try:
                    return self._restore(group, names, places, whole)
                except client.Spoiled as e:
                    self.counts.add(failed=1)
                    self._say("restored, and looked for again", len(places), e)
        except (client.PerigeeError, OSError) as e:
            self._say("restored", len(places), e)
        return 0

    def _restore(self, group, names, places, whole):
        if self._copies() and self._fetches:
            r = self._fetch(group, names, places, whole)
            if r is not None:
                return self._restored(r.good, r.found, r.outcome, len(places), whole)
        with self._session(QUERIES) as asked:
            self._settle(asked)
            a = asked.query([(group, names)], mode=client.PREFIX, wait=self._wait)
            if a.lease is None:
                return 0
            hits = a.lease.hits[0]
            if whole and hits < len(places):
                asked.release(a.lease)
                return 0
        try:
            with self._session(RESTORES) as s:
                if self._copies():
                    r = s.restore_into(a.lease, 0, self._shared.pages(places[:hits]))
                    return self._restored(r.good, r.total, r.outcome, len(places), whole)
                s.restore(a.lease, 0, lambda i, page: self._write(places, i, page))
                return hits
        except (client.Lost, client.Refused):  # nothing was done with it
            self._release(asked, a.lease)
            raise

    @staticmethod
    def _write(places, i, page):
        if len(page) != sum(places.sizes):
            raise client.Spoiled(f"page {i} has {len(page)} bytes")
        pools.write(places[i], page)

    def _fetch(self, group, names, places, whole):
        """Asks and restores in one exchange. None if nothing was done, since a question would have to wait, or since the Manager cannot."""
        pages = self._shared.lines(places) or self._shared.pages(places)
        spin = self._looks(len(places) * sum(places.sizes))
        try:
            with self._session(RESTORES) as s:
                return s.fetch(group, names, pages, whole=whole, spin=spin)
        except client.Refused as e:
            if e.name != "unknown":
                raise
            self._fetches = False  # until the engine is restarted: nothing is lost by it but speed
            return None

    def _looks(self, copied=0):
        """For how many seconds an answer is looked for before the thread sleeps, if so many bytes are copied for it. What takes longer than spin_s is not: the time to wake a
        processor is little beside it, and a second one may be wanted for copying."""
        seconds = ANSWER_S + copied / COPIED_A_S
        return seconds if seconds <= self._spin else 0.0

    def _release(self, session, lease):
        """Of a restore that was not begun, now or before the next question; if the session is gone, so is the lease."""
        self._owed.append((session, lease))
        with contextlib.suppress(client.PerigeeError, OSError), self._session(QUERIES) as s:
            self._settle(s)

    def _copies(self):
        return self._shared is not None and self._keeper.offered

    def _restored(self, good, found, outcome, n, whole):
        if good < found:
            self.counts.add(failed=1)
            self._say("restored", found - good, client.Spoiled(f"a page {outcome}"))
        return 0 if whole and good < n else good

    # Storing.

    def set(self, group, names, pages, places, whole=False):
        """Stores pages: a flag each, true if the Manager has the page when this returns. pages are lore.Page, places as in get. If whole is
        asked for the flags are all true or all false."""
        blocks = [client.Block(n, self._parent(p), p.tokens, group=group) for n, p in zip(names, pages)]
        root = self._root(pages)
        if root is None:  # nobody can be told of them
            blocks = [b._replace(tokens=()) for b in blocks]
            root = ("", "", "")
        self.counts.add(unnamed=sum(not len(b.tokens) for b in blocks))
        try:
            with self._session(PUBLISHES) as s:
                if self._copies():
                    p = s.publish_from(blocks, self._shared.pages(places), root=root)
                else:
                    p = s.publish(blocks, lambda i, slot: pools.read(places[i], slot), root=root)
        except (client.PerigeeError, OSError) as e:
            self._say("stored", len(names), e)
            self.counts.add(refused=len(names))
            return [False] * len(names)
        kept = p.sealed + p.present
        self.counts.add(stored=p.sealed, present=p.present, refused=len(names) - kept)
        if p.there and not whole and sum(p.there) == kept:
            return list(p.there)
        # How many were refused, and not which. A page that is stored and said not to be costs nothing.
        return [kept == len(names)] * len(names)

    @staticmethod
    def _parent(page):
        return name(page.parent) if page.parent else client.NO_BLOCK

    def _root(self, pages):
        """(model, adapter, salt) of the pages' prompt; None if it is not known or cannot be said."""
        spaces = {p.space for p in pages if p is not UNKNOWN}
        if len(spaces) != 1 or any(p is UNKNOWN for p in pages):
            return None
        space = spaces.pop()
        adapter = "" if space.extra is None else self._adapters.get(space.extra)
        return None if adapter is None else ("", adapter, space.salt or "")
