"""The channel's frames: docs/cache-channel.md, little endian."""

import array
import itertools
import os
import select
import socket
import struct
import time

HEADER = struct.Struct("<IBBHQQII")
MAX_FRAME = 16 << 20
MAX_DESCRIPTORS = 64  # of a frame
MAX_ADAPTERS = 1024  # of a FOLLOW

HELLO, REGISTER, ATTACH, PUBLISH, SEAL, ABANDON, QUERY, POLL, CANCEL, START, COPIED, RELEASE, GOODBYE, MAP_ARENAS = range(1, 15)
OFFER_POOL, PUBLISH_PIECES, RESTORE_PIECES, LEAVE, FETCH, FOLLOW = 15, 19, 20, 22, 23, 24
(WELCOME, REGISTERED, ATTACHED, GRANTED, PUBLISHED, BUSY, LOADING, READY, CANDIDATES, PLAN, SPOILED, RESTORED, REFUSED, ARENAS,
 BYE, PONG, CLOSING, OFFERED, COPIED_IN, COPIED_OUT, FETCHED, FOLLOWING) = range(64, 86)

CLASSES = {
    1: "stale_session", 2: "stale_slot", 3: "stale_lease", 4: "stale_ticket", 5: "retired", 7: "repeated", 8: "invalid", 9: "instance_busy",
    10: "arena_busy", 11: "too_many", 12: "overdue", 13: "overlap", 32: "malformed", 33: "bad_version", 34: "not_allowed", 35: "wrong_role", 36: "unknown",
    37: "no_pool", 38: "pool_too_small", 39: "not_built", 40: "unfenceable", 41: "bad_identity", 42: "bad_demand", 43: "slow", 44: "stopping",
    45: "bad_pool",
}


def text(value):
    raw = value.encode("utf-8")
    return struct.pack("<I", len(raw)) + raw


def u32s(values):
    a = array.array("I", values)
    return struct.pack("<I", len(a)) + a.tobytes()


class Malformed(Exception):
    """The Manager has said what it may not: whatever it says next on this connection cannot be believed."""


class Reader:
    """Takes fields from a payload; Malformed if they are not there."""

    def __init__(self, payload):
        self.payload, self.at = payload, 0

    def take(self, layout):
        s = struct.Struct("<" + layout)
        raw = self._bytes(s.size)
        v = s.unpack(raw)
        return v if len(v) > 1 else v[0]

    def _bytes(self, n):
        raw = self.payload[self.at:self.at + n]
        if len(raw) < n:
            raise Malformed(f"{n} bytes are wanted where {len(raw)} are left")
        self.at += n
        return raw

    def text(self):
        return bytes(self._bytes(self.take("I"))).decode("utf-8", "replace")

    def u32s(self):
        a = array.array("I", bytes(self._bytes(4 * self.take("I"))))
        return a.tolist()

    def many(self, layout):
        """A count, and as many records."""
        s, n = struct.Struct("<" + layout), self.take("I")
        return list(s.iter_unpack(self._bytes(n * s.size)))

    def of(self, words):
        """A byte that chooses among words."""
        i = self.take("B")
        if i >= len(words):
            raise Malformed(f"{i} where there are {len(words)}")
        return words[i]

    def end(self, value=None):
        """Nothing may be left. It returns what it is given."""
        if self.at != len(self.payload):
            raise Malformed(f"{len(self.payload) - self.at} bytes too many")
        return value


# What the Manager says, each from a frame's payload.

WHY = ("found", "missing", "too_large", "timed_out", "unreadable")
OUTCOMES = ("done", "failed", "mismatch")


def welcome(r):
    v = r.take("H"), r.text(), *r.take("III")
    return r.end(v)


def registered(r):
    """(token, instance id)."""
    v = r.take("16s32s")
    r.u32s()
    r.many("IIIQ")
    return r.end(v)


def arenas(r):
    """(id, slots, bytes of a slot, bytes to map) of each: Attached and Arenas."""
    return r.end(r.many("IIIQ"))


def granted(r):
    """([(disposition, slot)], chain)."""
    r.take("Q")
    slots = r.many("B12s")
    return r.end((slots, r.take("QQ")))


def published(r):
    """(op, sealed, dropped)."""
    return r.end(r.take("QII"))


def copied_in(r, pages):
    """What became of each of so many pages, a byte each."""
    n = r.take("I")
    if n != pages:
        raise Malformed(f"{n} pages where {pages} were to be copied")
    return r.end(r._bytes(n))


def ready(r, asked):
    """(why, index, generation, hits, arenas), where asked has how many blocks each want had."""
    r.take("QQ")
    v = why, index, generation, hits, arenas = r.of(WHY), *r.take("II"), r.u32s(), r.u32s()
    if (index, generation) != (0, 0) and (len(hits) != len(asked) or any(n > most for n, most in zip(hits, asked))):
        raise Malformed(f"{hits} hits where {asked} blocks were asked for")
    return r.end(v)


def candidates(r, asked):
    """Of each want which of its blocks are there, rising."""
    r.take("QQ")
    n = r.take("I")
    if n != len(asked):
        raise Malformed(f"{n} answers to {len(asked)} wants")
    v = tuple(r.u32s() for _ in asked)
    for positions, most in zip(v, asked):
        if positions and (positions[-1] >= most or any(a >= b for a, b in itertools.pairwise(positions))):
            raise Malformed(f"positions that do not rise, or beyond the {most} blocks that were asked for")
    return r.end(v)


def ticket(r):
    """(op, revision) of a query."""
    return r.end(r.take("QQ"))


def plan(r):
    """(index of the first page, pages of the whole plan, [(arena, slot, generation, bytes, sum)])."""
    first, total = r.take("IIIII")[3:]
    pages = r.many("IIIIQ")
    if first + len(pages) > total or not pages and first != total:
        raise Malformed(f"{len(pages)} pages from {first} of {total}")
    return r.end((first, total, pages))


def spoiled(r):
    """The page."""
    return r.end(r.take("IIII")[3])


def copied_out(r, pages):
    """(good, total, outcome), where so many pages were to be copied."""
    r.take("III")
    outcome = r.of(OUTCOMES)
    good, total = r.take("II")
    if good > total or total != pages:
        raise Malformed(f"{good} pages of {total} where {pages} were to be copied")
    return r.end((good, total, outcome))


_FETCHED = struct.Struct("<BBII")
FETCHED_BYTES = _FETCHED.size


def fetched(r, asked):
    """(why, outcome, found, good), where so many pages were asked for."""
    if len(r.payload) != _FETCHED.size:
        raise Malformed(f"{len(r.payload)} bytes where {_FETCHED.size} are wanted")
    why, outcome, found, good = _FETCHED.unpack(r.payload)
    if why >= len(WHY) or outcome >= len(OUTCOMES) or good > found or found > asked or (why != 0) != (found == 0) or (outcome == 0) != (good == found):
        raise Malformed(f"{good} pages of {found}, why {why}, outcome {outcome}")
    return WHY[why], OUTCOMES[outcome], found, good


def restored(r):
    """Whether all consumers have all."""
    return r.end(r.take("IIB")[2] != 0)


def refused(r):
    """(class, text)."""
    cls = r.take("BHI")[1]
    return r.end((cls, r.text()))


def closing(r):
    cls = r.take("H")
    return r.end((cls, r.text()))


def nothing(r):
    return r.end()


class Frame:
    """One frame from the Manager. Whoever gets it closes its descriptors."""

    __slots__ = ("kind", "ref", "epoch", "session", "payload", "fds")

    def __init__(self, kind, ref, epoch, session, payload, fds):
        self.kind, self.ref, self.epoch, self.session, self.payload, self.fds = kind, ref, epoch, session, payload, fds

    def read(self, parse):
        return parse(Reader(self.payload))


# spin that ends so much too late had to wait for others, and rests for so long. Python's threads hand the interpreter on after five milliseconds.
_LATE_S, _REST_S = 1e-3, 1.0


class Link:
    """One connection. send and receive raise OSError or EOFError when it has ended."""

    _something = None

    def __init__(self, path, timeout):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(timeout)
        self.epoch = self.session = self.ref = 0
        self.buffer = bytearray()
        self.rests = 0.0  # until then it does not spin
        self.fds = []
        try:
            self.sock.connect(path)
        except OSError:
            self.sock.close()
            raise

    def send(self, kind, payload=b"", ref=None, fd=None):
        """Sends a frame, with a descriptor if one is given, and returns its ref."""
        if ref is None:
            self.ref += 1
            ref = self.ref
        frame = HEADER.pack(len(payload), kind, 0, int(fd is not None), ref, self.epoch, self.session, 0) + payload
        if fd is not None:
            sent = self.sock.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
        else:  # the socket's own way asks first whether there is room, which is as long as writing
            try:
                sent = os.write(self.sock.fileno(), frame)
            except BlockingIOError:
                sent = 0
        if sent < len(frame):
            self.sock.sendall(frame[sent:])
        return ref

    def spin(self, seconds):
        """Looks again and again whether something has come, for so many seconds at most, and says whether it has. Whoever else wants the interpreter or the processor has it in between; and if
        somebody does, it is not done for a while, since to get the interpreter back takes longer than was to be gained, each time."""
        now = time.monotonic()
        if seconds <= 0 or now < self.rests:
            return False
        end = now + seconds
        if self._something is None:
            self._something = self.something()
        while not (come := self._something(0)) and now < end:
            os.sched_yield()
            now = time.monotonic()
        if now > end + _LATE_S:
            self.rests = now + _REST_S
        return bool(come)

    def something(self):
        """A function of milliseconds: waits for so many that something comes, or the connection's end, and says whether it has."""
        p = select.poll()  # and not select, whose descriptors are below 1024
        p.register(self.sock, select.POLLIN)
        return p.poll

    def at_once(self, kind, ref, size):
        """Of what has come, the frame of this kind that answers ref with so many bytes; None if it is not the next one, or there is more than it, which is left for receive. It is
        receive for whom every microsecond counts. Descriptors that may have come are closed: whoever waits for a frame with some says receive."""
        if self.buffer:
            return None
        try:
            data = os.read(self.sock.fileno(), 4096)
        except OSError:  # receive will have it
            return None
        if len(data) == HEADER.size + size:
            length, k, _, nfds, r, epoch, session, _ = HEADER.unpack_from(data)
            if (length, k, nfds, r) == (size, kind, 0, ref):
                return Frame(kind, ref, epoch, session, data[HEADER.size:], [])
        self.buffer += data
        return None

    def _more(self, n, until):
        """Reads until there are n bytes."""
        while len(self.buffer) < n:
            if until is not None and time.monotonic() >= until:
                raise TimeoutError("no whole answer in time")
            data, ancillary, _, _ = self.sock.recvmsg(max(65536, n - len(self.buffer)), 512)
            for level, kind, raw in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    a = array.array("i")
                    a.frombytes(raw[:len(raw) - len(raw) % a.itemsize])
                    self.fds.extend(a)
            if len(self.fds) > 2 * MAX_DESCRIPTORS:  # of two frames that have been read together
                raise Malformed(f"{len(self.fds)} descriptors that no frame tells of")
            if not data:
                raise EOFError("the Manager has hung up")
            self.buffer += data

    def deadline(self):
        """When an answer that is waited for from now on is late, for receive; None: never."""
        patience = self.sock.gettimeout()
        return None if patience is None else time.monotonic() + patience

    def receive(self, until=None):
        """Waits for the next frame. The socket's timeout is for the next bytes; after until nothing more is waited for."""
        self._more(HEADER.size, until)
        length, kind, _, nfds, ref, epoch, session, _ = HEADER.unpack_from(self.buffer)
        if length > MAX_FRAME:
            raise EOFError("a frame that is too long")
        self._more(HEADER.size + length, until)
        payload = bytes(memoryview(self.buffer)[HEADER.size:HEADER.size + length])
        del self.buffer[:HEADER.size + length]
        fds, self.fds = self.fds[:nfds], self.fds[nfds:]
        if not self.buffer:  # descriptors come with their frame's first byte: what is left is of this one, which does not tell of it
            self._close_fds()
        return Frame(kind, ref, epoch, session, payload, fds)

    def _close_fds(self):
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def close(self):
        self._close_fds()
        self.sock.close()
