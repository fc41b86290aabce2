"""Sessions: register, publish, ask, restore."""

import fcntl
import functools
import itertools
import mmap
import os
import socket
import struct
from typing import NamedTuple, Optional

from . import wire
from .identity import encode_namespace, page_bytes

NO_BLOCK = bytes(32)
PREFIX, EXACT, DISCOVER, WARM = range(4)
READY, LOADING, BUSY, CANDIDATES = "ready", "loading", "busy", "candidates"
_WRITE, _PRESENT = 0, 1
_DONE, _FAILED, _MISMATCH = 0, 1, 2
_FILLED = 0
_PIECE = struct.Struct("<IQI")
_SEAL_EVERY = 1 << 20  # bytes: as the Go client
_FETCH = struct.Struct("<IIBI")
_LINE = struct.Struct("<IQII")
_SIOCOUTQ = 0x5411
_MADV_DONTFORK = getattr(mmap, "MADV_DONTFORK", None)


class PerigeeError(Exception):
    """What goes wrong with a Manager."""


class Lost(PerigeeError):
    """The session has ended: compute, and make another one."""


class Refused(PerigeeError):
    """The Manager has done nothing. name is the class's word."""

    def __init__(self, cls, text=""):
        self.cls, self.name = cls, wire.CLASSES.get(cls, str(cls))
        super().__init__(f"refused: {self.name}" + (f": {text}" if text else ""))


class Unfinished(Lost):
    """A session was joined, but not to the end, and so has ended for all its parts. part is what is left of it here, without anything mapped: its close tells the Manager, which
    else waits for the end of this process before it gives the session's memory to anybody."""

    def __init__(self, text, part):
        super().__init__(text)
        self.part = part


def _speaks(method):
    """A Manager that says what it may not has ended the session: nothing that it says later is believed, and all of the session's calls are Lost."""
    @functools.wraps(method)
    def checked(self, *args, **named):
        try:
            return method(self, *args, **named)
        except wire.Malformed as e:
            self._hang_up()
            raise Lost(f"the Manager says what it may not: {e}") from e
    return checked


class Spoiled(PerigeeError):
    """A page is not what was sealed, or another consumer has failed: none of the restore's pages may be used."""


class Block(NamedTuple):
    name: bytes
    parent: bytes = NO_BLOCK
    tokens: tuple = ()
    extra: bytes = b""
    group: int = 0


class Lease(NamedTuple):
    """hits is how many blocks of each want it has. Of consumers each copies its part of every block; who is alone copies all parts."""

    index: int
    generation: int
    hits: list
    arenas: list
    consumers: int = 1


class Answer(NamedTuple):
    outcome: str
    why: str = ""
    lease: Optional[Lease] = None
    positions: tuple = ()


class Published(NamedTuple):
    sealed: int
    present: int
    dropped: int
    chain: tuple
    # Of publish_from: for each block whether it can be restored as far as this part is concerned (filled now, or there before).
    there: tuple = ()


class RestoredInto(NamedTuple):
    """What became of a restore_into: the first good of total pages are what was published, and the others nothing. outcome is "done",
    "failed" or "mismatch". whole is None if it was not waited for, else whether all consumers have all."""

    good: int
    total: int
    outcome: str
    whole: Optional[bool] = None


class Pages(NamedTuple):
    """Where pages lie in offered pools: how many pieces each has, and all pieces one behind the other, each u32 pool, u64 offset, u32 length,
    little endian, without padding. For callers who have them that way; others give lists of (pool, offset, length)."""

    counts: list
    pieces: bytes


class Lines(NamedTuple):
    """Where pages lie at equal distances in offered pools: each has a piece of each line, line by line. lines are (pool, offset, distance, length), packed
    by pack_lines; the piece of the page at place n lies at offset + n * distance. places are u64, little endian, one behind the other."""

    lines: bytes
    places: bytes


def pack_lines(lines):
    """lines, each (pool, offset, distance, length), for Lines."""
    return struct.pack("<I", len(lines)) + b"".join(_LINE.pack(*line) for line in lines)


class Fetched(NamedTuple):
    """What became of a fetch: the first good pages are what was published. The places of those up to found may hold anything, and those behind
    were not touched. outcome is "done", "failed" or "mismatch"; why says why nothing was found."""

    good: int
    found: int
    outcome: str
    why: str


def _pages(pages):
    if isinstance(pages, Pages):
        return pages
    return Pages([len(page) for page in pages], b"".join(_PIECE.pack(*piece) for page in pages for piece in page))


def _packed(pages, some=None):
    """The bytes of pages in a message, of all or of some."""
    counts, pieces = pages
    if some is not None and len(some) < len(counts):
        first = [0, *itertools.accumulate(n * _PIECE.size for n in counts)]
        counts, pieces = [counts[i] for i in some], b"".join(pieces[first[i]:first[i + 1]] for i in some)
    return wire.u32s(counts) + struct.pack("<I", len(pieces) // _PIECE.size) + pieces


class Credentials(NamedTuple):
    """Lets other processes of the instance join the session."""

    epoch: int
    session: int
    token: bytes


class _Arena:
    def __init__(self, fd, slots, slot_bytes, map_bytes, write):
        self.slots, self.slot_bytes = slots, slot_bytes
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if write else 0)
        if slots * slot_bytes > map_bytes:
            raise wire.Malformed(f"{slots} slots of {slot_bytes} bytes in {map_bytes}")
        try:
            self.map = mmap.mmap(fd, map_bytes, mmap.MAP_SHARED, prot)
        except (ValueError, OverflowError, OSError) as e:
            raise wire.Malformed(f"memory that cannot be mapped: {e}") from e
        if _MADV_DONTFORK is not None:  # children would outlive the process that the Manager waits for
            self.map.madvise(_MADV_DONTFORK)
        self.view = memoryview(self.map)

    def slot(self, index, n):
        at = index * self.slot_bytes
        if index >= self.slots or n > self.slot_bytes:
            raise wire.Malformed("a slot that is not there")
        return self.view[at:at + n]

    def close(self):
        self.view.release()
        self.map.close()


class Session:
    """A registered instance. ranks are its namespaces (dicts, see identity), timeout is seconds for one answer that the Manager gives at once.

    join makes it a part of the session that another process has registered. With publishes=False it has no connection to publish with, and maps
    nothing that can be written. One thread may publish while another does all the rest; close it when both are done.
    """

    @_speaks
    def __init__(self, path, instance, ranks, *, model="", url="", data_rank=None, scope=0, query_bytes=0, pool_bytes=0,
                 program="perigee-python", timeout=30.0, join=None, publishes=True):
        self._parts = [[page_bytes(r, g) for r in ranks] for g in range(len(ranks[0]["layout"]["groups"]))]
        self._timeout, self._program, self._path = timeout, program, path
        self._own, self._others = {}, {}
        self._op = self._publish_op = 0
        self._answers = {}  # ref to frames that came while another answer was waited for
        self._links = []
        self._untold = entered = False  # the former: it has ended before it was there, and the Manager is to be told
        try:
            self._query = self._connect()
            if join is None:
                self._register(instance, ranks, model, url, data_rank, scope, query_bytes, pool_bytes)
            else:
                self.credentials = join
                self._attach(self._query, 1)
            entered = True
            if publishes:
                self._publish = self._connect()
                self._map(self._own, self._attach(self._publish, 2), True)
        except BaseException as e:
            self._drop()
            self._untold = entered and not isinstance(e.__cause__, TimeoutError)  # as in close
            if entered and join is not None:  # whose other parts in this process may have something mapped
                raise Unfinished(f"joined by half: {e}", self) from e
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _connect(self):
        try:
            link = wire.Link(self._path, self._timeout)
        except OSError as e:
            raise Lost(f"{self._path}: {e}") from e
        self._links.append(link)
        frame = self._ask(link, wire.HELLO, struct.pack("<HH", 1, 1) + wire.text(self._program), wire.WELCOME)
        if frame.read(wire.welcome)[0] != 1:
            raise wire.Malformed("a version that was not offered")
        link.epoch = frame.epoch
        return link

    def _register(self, instance, ranks, model, url, data_rank, scope, query_bytes, pool_bytes):
        body = wire.text(instance) + wire.text(model) + wire.text(url)
        body += struct.pack("<IIQQI", 0 if data_rank is None else data_rank + 1, scope, query_bytes, pool_bytes, len(ranks))
        for r in ranks:
            raw = encode_namespace(r)
            body += struct.pack("<I", len(raw)) + raw
        frame = self._ask(self._query, wire.REGISTER, body, wire.REGISTERED)
        for fd in frame.fds:  # the publishing connection gets them, too
            os.close(fd)
        token, self.namespace = frame.read(wire.registered)
        self._query.session = frame.session
        self.credentials = Credentials(frame.epoch, frame.session, token)

    def _attach(self, link, role):
        link.epoch, link.session = self.credentials.epoch, self.credentials.session
        return self._ask(link, wire.ATTACH, self.credentials.token + bytes([role]), wire.ATTACHED)

    def _map(self, to, frame, write):
        try:
            arenas = frame.read(wire.arenas)
            if len(arenas) != len(frame.fds):
                raise wire.Malformed(f"{len(frame.fds)} descriptors for {len(arenas)} arenas")
            for fd, (ident, slots, slot_bytes, map_bytes) in zip(frame.fds, arenas):
                to[ident] = _Arena(fd, slots, slot_bytes, map_bytes, write)
        finally:
            for fd in frame.fds:
                os.close(fd)

    # Frames.

    def _send(self, link, kind, body=b"", ref=None, fd=None):
        try:
            return link.send(kind, body, ref, fd)
        except OSError as e:
            raise Lost(str(e)) from e

    def _next(self, link, ref, *kinds):
        """The next frame that answers ref, one of these kinds; what answers something else is kept for it."""
        kept = self._answers.get((id(link), ref))
        if kept:
            return self._judge(kept.pop(0), kinds)
        until = link.deadline()  # what answers something else, or comes in drops, does not put it off
        while True:
            frame = self._receive(link, until)
            if frame.ref == ref:
                return self._judge(frame, kinds)
            self._keep(link, frame)

    def _receive(self, link, until=None):
        try:
            frame = link.receive(until)
        except (OSError, EOFError) as e:
            raise Lost(str(e)) from e
        if frame.fds and frame.kind not in (wire.REGISTERED, wire.ATTACHED, wire.ARENAS):
            for fd in frame.fds:
                os.close(fd)
            raise wire.Malformed(f"descriptors with a frame of kind {frame.kind}")
        if frame.kind == wire.CLOSING:
            cls, text = frame.read(wire.closing)
            self._hang_up()
            raise Lost(f"the Manager ends the connection: {wire.CLASSES.get(cls, cls)} {text}")
        return frame

    def _hang_up(self):
        """Nothing more is said. What the Manager copies it ends, and hangs up; whoever waits for an answer has it then, or its time runs out."""
        for link in self._links:
            try:
                link.sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass

    def _last(self, link, ref, *kinds):
        """As _next, for as long as the connection lasts: while the Manager copies, nothing but its answer or its end of the connection says
        that the pieces are ours again. It says Closing before, and that is not enough."""
        link.sock.settimeout(None)
        try:
            return self._next(link, ref, *kinds)
        except Lost:
            self._end(link)
            raise
        except wire.Malformed:
            self._hang_up()
            self._end(link)
            raise
        finally:
            link.sock.settimeout(self._timeout)

    def _parse(self, link, frame, parse):
        """Of an answer to _last: if it is malformed, it has not said that the pieces are ours."""
        try:
            return frame.read(parse)
        except wire.Malformed:
            self._hang_up()
            link.sock.settimeout(None)
            self._end(link)
            raise

    def _first(self, link, ref, *kinds):
        """As _last, of a message that the Manager does not begin with once we have hung up: if it has not even read it in time, it never will."""
        try:
            return self._next(link, ref, *kinds)
        except Lost as e:
            if not isinstance(e.__cause__, TimeoutError):
                link.sock.settimeout(None)
                self._end(link)
                raise
            if self._taken_back(link):
                raise
        except wire.Malformed:
            self._hang_up()
            link.sock.settimeout(None)
            self._end(link)
            raise
        return self._last(link, ref, *kinds)

    @staticmethod
    def _taken_back(link):
        """Whether the Manager will find that we have hung up when it reads what was sent last."""
        def unread():
            try:
                return struct.unpack("i", fcntl.ioctl(link.sock, _SIOCOUTQ, bytes(4)))[0] > 0
            except OSError:
                return False
        if not unread():
            return False
        try:
            link.sock.shutdown(socket.SHUT_WR)
        except OSError:
            return False
        return unread()  # in this order: whoever reads it now sees the end behind it

    @staticmethod
    def _end(link):
        """Waits for the connection's end."""
        try:
            while True:
                for fd in link.receive().fds:
                    os.close(fd)
        except (OSError, EOFError, wire.Malformed):
            pass

    def _keep(self, link, frame):
        """Puts a frame where answer looks for it, if somebody will."""
        waiting = self._answers.get((id(link), frame.ref))
        if waiting is not None:
            waiting.append(frame)
        else:
            for fd in frame.fds:
                os.close(fd)

    def fileno(self):
        """Of the connection for queries, to wait until poll has something to do."""
        return self._query.sock.fileno()

    @_speaks
    def poll(self):
        """Takes in the answers to queries that are there, for answer(ticket, block=False), without waiting."""
        link = self._query
        while self._ready():
            self._keep(link, self._receive(link))

    @staticmethod
    def _judge(frame, kinds):
        if frame.kind == wire.REFUSED:
            raise Refused(*frame.read(wire.refused))
        if frame.kind not in kinds:
            for fd in frame.fds:
                os.close(fd)
            raise wire.Malformed(f"kind {frame.kind} where {kinds} answer")
        return frame

    def _ask(self, link, kind, body, *kinds):
        return self._next(link, self._send(link, kind, body), *kinds)

    # Publishing.

    @_speaks
    def publish(self, blocks, write, *, part=0, scope=0, root=("", "", ""), parent_chain=(0, 0), copied=None):
        """Publishes one part of blocks. write(i, slot) fills a writable view of the part's bytes for blocks[i]; the view is good during the
        call only. Returns when the Manager has everything; write is not called any more when copied() is, before that. If write raises, what is
        not yet written is given up."""
        link, ref, granted, chain = self._grants(blocks, part, scope, root, parent_chain)
        try:
            self._fill(link, ref, blocks, part, granted, write)
            if copied is not None:
                copied()
        except wire.Malformed:  # and nothing that it says is waited for
            raise
        except BaseException:
            self._published(link, ref)
            raise
        _, sealed, dropped = self._published(link, ref)
        return Published(sealed, sum(d == _PRESENT for d, _ in granted), dropped, chain)

    @_speaks
    def publish_from(self, blocks, pages, *, part=0, scope=0, root=("", "", ""), parent_chain=(0, 0)):
        """Publishes one part of blocks out of offered pools: the Manager copies. pages says where each block's part lies, as a list of pieces
        (pool, offset, length) in the order of its bytes, or is Pages. Returns when nothing is copied any more, and the pieces may be written
        again; timeout does not apply. A page that could not be copied is dropped; Published.there says which."""
        pages = _pages(pages)
        if len(pages.counts) != len(blocks):
            raise ValueError("as many pages as blocks are wanted")
        link, ref, granted, chain = self._grants(blocks, part, scope, root, parent_chain)
        write = [i for i, (d, _) in enumerate(granted) if d == _WRITE]
        there = [d == _PRESENT for d, _ in granted]
        present = sum(there)
        copied, published = not write, None
        if write:
            slots = struct.pack("<I", len(write)) + b"".join(granted[i][1] for i in write)
            self._send(link, wire.PUBLISH_PIECES, slots + _packed(pages, write), ref)
        while not (copied and published):
            try:
                frame = self._last(link, ref, wire.COPIED_IN, wire.PUBLISHED)
            except Refused:  # nothing was copied, and the grants are still open
                self._send(link, wire.ABANDON, slots, ref)
                self._published(link, ref)
                raise
            if frame.kind == wire.PUBLISHED:
                published = self._parse(link, frame, wire.published)
                continue
            copied = True
            for i, fate in zip(write, self._parse(link, frame, lambda r: wire.copied_in(r, len(write)))):
                there[i] = fate == _FILLED
        _, sealed, dropped = published
        return Published(sealed, present, dropped, chain, tuple(there))

    def _grants(self, blocks, part, scope, root, parent_chain):
        self._publish_op += 1
        body = [struct.pack("<QII", self._publish_op, part, scope), *(wire.text(t) for t in root), struct.pack("<QQI", *parent_chain, len(blocks))]
        for b in blocks:
            body += [struct.pack("<I32s32s", b.group, b.name, b.parent), wire.u32s(b.tokens), struct.pack("<I", len(b.extra)), b.extra]
        link = self._publish
        ref = self._send(link, wire.PUBLISH, b"".join(body))
        granted, chain = self._next(link, ref, wire.GRANTED).read(wire.granted)
        if len(granted) != len(blocks):
            raise wire.Malformed(f"{len(granted)} slots for {len(blocks)} blocks")
        return link, ref, granted, chain

    def _published(self, link, ref):
        while True:
            try:
                return self._next(link, ref, wire.PUBLISHED).read(wire.published)
            except Refused as e:
                if e.name != "stale_slot":
                    raise
                # A block was given up meanwhile, by a flush say: it counts as dropped.

    def _fill(self, link, ref, blocks, part, granted, write):
        done, size = [], 0

        def seal():
            nonlocal done, size
            if done:
                self._send(link, wire.SEAL, struct.pack("<BI", 0, len(done)) + b"".join(s + bytes(8) for s in done), ref)
            done, size = [], 0

        for i, (disposition, slot) in enumerate(granted):
            if disposition != _WRITE:
                continue
            arena, index, _ = struct.unpack("<III", slot)
            n = self._parts[blocks[i].group][part]
            try:
                if arena not in self._own:
                    raise wire.Malformed("a slot of an arena that is not there")
                view = self._own[arena].slot(index, n)
                try:
                    write(i, view)
                finally:
                    view.release()
            except wire.Malformed:
                raise
            except BaseException:
                seal()
                rest = [s for d, s in granted[i:] if d == _WRITE]
                self._send(link, wire.ABANDON, struct.pack("<I", len(rest)) + b"".join(rest), ref)
                raise
            done.append(slot)
            size += n
            if size >= _SEAL_EVERY:
                seal()
        seal()

    # Asking.

    def ask(self, wants, *, mode=PREFIX, consumers=1, priority=0, wait=0.0, first_use=0.0, confidence=1.0, request="", scope=0, demand=None):
        """Asks and does not wait: returns a ticket for answer and cancel. wants is (group, names) pairs, names being 32 bytes each, as a list or
        joined. demand is (page tokens, (start, end), [(group, start, end)...])."""
        self._op += 1
        page, span, ranges = demand or (0, (0, 0), ())
        body = [struct.pack("<QQBIIiQQI", self._op, 1, mode, scope, consumers, priority, int(wait * 1e6), int(first_use * 1e6), int(confidence * 1e6)),
                wire.text(request), struct.pack("<QQQI", page, *span, len(ranges))]
        body += [struct.pack("<IQQ", *r) for r in ranges]
        body.append(struct.pack("<I", len(wants)))
        for group, names in wants:
            raw = names if isinstance(names, (bytes, bytearray)) else b"".join(names)
            body += [struct.pack("<II", group, len(raw) // 32), raw]
        ref = self._send(self._query, wire.QUERY, b"".join(body))
        self._answers[(id(self._query), ref)] = []
        return self._op, ref, [len(names) // 32 if isinstance(names, (bytes, bytearray)) else len(names) for _, names in wants], consumers

    @_speaks
    def answer(self, ticket, block=True):
        """The ticket's next answer: Loading at most once, then the last one. With block=False it is None if none has come yet."""
        _, ref, asked, consumers = ticket
        key = (id(self._query), ref)
        if not block:
            self.poll()  # and not _next, which would wait if what is there answers another ticket
            if not self._answers.get(key):
                return None
        try:
            frame = self._next(self._query, ref, wire.LOADING, wire.BUSY, wire.CANDIDATES, wire.READY)
        except (PerigeeError, wire.Malformed):
            self._answers.pop(key, None)
            raise
        if frame.kind == wire.LOADING:
            return Answer(LOADING)
        self._answers.pop(key, None)
        if frame.kind == wire.BUSY:
            return Answer(BUSY)
        if frame.kind == wire.CANDIDATES:
            return Answer(CANDIDATES, positions=frame.read(lambda r: wire.candidates(r, asked)))
        why, index, generation, hits, arenas = frame.read(lambda r: wire.ready(r, asked))
        lease = Lease(index, generation, hits, arenas, consumers) if (index, generation) != (0, 0) else None
        return Answer(READY, why, lease)

    def _ready(self):
        """Says that a whole frame, or the connection's end, is there to be read: without waiting."""
        link = self._query
        return len(link.buffer) >= wire.HEADER.size or bool(link.something()(0))

    def query(self, wants, *, spin=0.0, **options):
        """Asks and waits for the last answer. spin is as in fetch."""
        ticket = self.ask(wants, **options)
        self._query.spin(spin)
        while True:
            a = self.answer(ticket)
            if a.outcome != LOADING:
                return a

    def cancel(self, ticket):
        """Ends the interest in a query, with its lease unless somebody has started on it."""
        op, ref, *_ = ticket
        self._answers.pop((id(self._query), ref), None)
        self._send(self._query, wire.CANCEL, struct.pack("<QQ", op, 1), 0)

    # Restoring.

    @_speaks
    def restore(self, lease, consumer, take):
        """Copies a consumer's pages: take(i, page) for each, in the order of the query's blocks, all parts of a block together if there is one consumer; page is a view that is good during the call and
        not to be written. Returns if all consumers have all their pages; after any exception none of them may be used."""
        link = self._query
        ref = self._send(link, wire.START, struct.pack("<III", lease.index, lease.generation, consumer))
        self._answers[(id(link), ref)] = []  # the plan's next parts come while an arena of its first is asked for
        try:
            self._restore(link, ref, lease, consumer, take)
        finally:
            self._answers.pop((id(link), ref), None)

    def _restore(self, link, ref, lease, consumer, take):
        outcome, bad, fault = _DONE, 0, None
        try:
            bad = self._take(link, ref, sum(lease.hits) * (len(self._parts[0]) if lease.consumers == 1 else 1), take)
            if bad is not None:
                outcome, fault = _MISMATCH, Spoiled(f"page {bad} is not what was sealed")
        except (Refused, Lost, wire.Malformed):
            raise
        except BaseException as e:
            outcome, fault = _FAILED, e
        self._send(link, wire.COPIED, struct.pack("<IIIBI", lease.index, lease.generation, consumer, outcome, bad or 0), ref)
        while True:  # pages may still be on their way
            frame = self._next(link, ref, wire.PLAN, wire.SPOILED, wire.RESTORED)
            if frame.kind == wire.RESTORED:
                break
        if fault is not None:
            raise fault
        if not frame.read(wire.restored):
            raise Spoiled("another consumer has failed")

    @_speaks
    def restore_into(self, lease, consumer, pages, *, wait_all=False):
        """Has the Manager copy a consumer's pages into offered pools, in the order of the query's blocks: pages is a list of pieces
        (pool, offset, length) for each. Returns a RestoredInto when nothing is copied any more, whatever timeout is: its first good pages are what was published; the
        pieces of the others may hold anything. Ranks that share a lease use what all of them have: with wait_all it
        waits for the others, and says whether they have everything."""
        link = self._query
        pages = _pages(pages)
        body = struct.pack("<III", lease.index, lease.generation, consumer) + _packed(pages)
        ref = self._send(link, wire.RESTORE_PIECES, body)
        good, total, outcome = self._parse(link, self._last(link, ref, wire.COPIED_OUT), lambda r: wire.copied_out(r, len(pages.counts)))
        whole = None
        if wait_all:
            whole = self._last(link, ref, wire.RESTORED).read(wire.restored)
        return RestoredInto(good, total, outcome, whole)

    @_speaks
    def fetch(self, group, names, pages, *, whole=False, scope=0, request="", spin=0.0):
        """Has the Manager copy those of the pages that it has in memory, from the first on, into offered pools: query and restore_into in one exchange.
        names are 32 bytes each, as a list or joined; pages is as in restore_into, or Lines. With whole nothing is copied unless all are there. Returns a Fetched
        when nothing is copied any more, or None if the Manager has done nothing, since a query would have to wait. timeout applies until the
        Manager has read the message, and then nothing but its answer or its end does. A Manager that does not know it refuses it as "unknown". Before it sleeps until
        the answer comes it looks for it again and again for spin seconds, if they are given: it does without the time to wake a processor, and has this one meanwhile, unless others want it."""
        link = self._query
        raw = names if isinstance(names, (bytes, bytearray)) else b"".join(names)
        text = request.encode()
        head = _FETCH.pack(scope, group, whole, len(text)) + text + struct.pack("<I", len(raw) // 32)
        if isinstance(pages, Lines):
            asked = len(pages.places) // 8
            body = (head, raw, bytes(8), pages.lines, struct.pack("<I", asked), pages.places)
        else:
            pages = _pages(pages)
            asked = len(pages.counts)
            body = (head, raw, _packed(pages), bytes(8))
        ref = self._send(link, wire.FETCH, b"".join(body))
        frame = link.at_once(wire.FETCHED, ref, wire.FETCHED_BYTES) if link.spin(spin) else None
        if frame is None:
            frame = self._first(link, ref, wire.FETCHED, wire.BUSY)
        if frame.kind == wire.BUSY:
            return None
        why, outcome, found, good = self._parse(link, frame, lambda r: wire.fetched(r, asked))
        return Fetched(good, found, outcome, why)

    @_speaks
    def offer_pool(self, fd, size=None, pool=0):
        """Hands over memory of this process, a memfd with all its pages there, for publish_from and restore_into. size is how much of it, all if it
        is not given; pool is a number that no other pool of the session has. It stays the session's until its end. fd is not needed any more."""
        if size is None:
            size = os.fstat(fd).st_size
        ref = self._send(self._query, wire.OFFER_POOL, struct.pack("<IQ", pool, size), None, fd)
        self._next(self._query, ref, wire.OFFERED)
        return pool

    @_speaks
    def follow(self, events, replay="", topic="", adapters=()):
        """Tells the Manager where the engine publishes its KV events for routers, so that it learns which tokens are in blocks that are published without. Once a session. replay is
        "" without a socket for what was missed; adapters are (name, what the engine's hashes have for it), MAX_ADAPTERS at most. Refused is not_built where nobody would be told or nothing can be proved,
        and unknown of an older Manager."""
        body = wire.text(events) + wire.text(replay) + wire.text(topic) + struct.pack("<I", len(adapters))
        for name, extra in adapters:
            body += wire.text(name) + wire.text(extra)
        self._ask(self._query, wire.FOLLOW, body, wire.FOLLOWING)

    def _take(self, link, ref, wanted, take):
        done = 0
        while True:
            frame = self._next(link, ref, wire.PLAN, wire.SPOILED)
            if frame.kind == wire.SPOILED:
                return frame.read(wire.spoiled)
            first, total, pages = frame.read(wire.plan)
            if first != done or total != wanted:
                raise wire.Malformed(f"pages from {first} of {total} where those from {done} of {wanted} are to come")
            for i, (arena, index, _, n, _) in enumerate(pages):
                view = self._reading(arena).slot(index, n)
                try:
                    take(first + i, view)
                finally:
                    view.release()
            done += len(pages)
            if done == total:
                return None

    def _reading(self, ident):
        arena = self._own.get(ident) or self._others.get(ident)
        if arena is None:
            try:
                frame = self._ask(self._query, wire.MAP_ARENAS, wire.u32s([ident]), wire.ARENAS)
            except Refused as e:  # not of the restore, which has begun
                raise PerigeeError(f"arena {ident} of a plan: {e}") from e
            self._map(self._others, frame, False)
            arena = self._others.get(ident)
            if arena is None:
                raise wire.Malformed("another arena than was asked for")
        return arena

    def release(self, lease):
        """Gives up a lease that was not started on."""
        self._send(self._query, wire.RELEASE, struct.pack("<II", lease.index, lease.generation), 0)

    # The end.

    def close(self):
        """Unmaps everything and says goodbye, for a session that was lost, over another connection. Calling it again does nothing."""
        if not self._links:
            if self._untold:
                self._untold = False
                self._leave()
                self._drop()
            return
        self._unmap()
        try:
            self._ask(self._query, wire.GOODBYE, b"", wire.BYE)
        except (PerigeeError, wire.Malformed) as e:
            if not isinstance(e.__cause__, TimeoutError):  # a Manager that hangs would not hear the other word either
                self._leave()
        self._drop()

    def _leave(self):
        """Gives back what a lost session had, which else waits for the end of this process. A Manager that is another one, or none, has nothing of it."""
        try:
            link = self._connect()
            if link.epoch == self.credentials.epoch:
                self._ask(link, wire.LEAVE, self.credentials.token, wire.BYE)
        except (PerigeeError, wire.Malformed):
            pass

    def unmap(self):
        """Unmaps everything: for a session of a process that has others of the same, before one of them says goodbye for all. What is left is close or drop."""
        self._unmap()

    def interrupt(self):
        """Ends the connections, by any thread: who waits for the Manager raises Lost. It says nothing of memory, and is not for a session that has offered pools, whose
        copies end with the Manager's word alone."""
        for link in self._links:
            try:
                link.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def drop(self):
        """Ends without a goodbye. Calling it again does nothing."""
        self._drop()

    def _unmap(self):
        for arenas in (self._own, self._others):
            for a in arenas.values():
                a.close()
            arenas.clear()

    def _drop(self):
        self._unmap()
        for link in self._links:
            link.close()
        self._links = []
