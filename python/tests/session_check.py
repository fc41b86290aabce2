"""The client against a Manager that lies, its parsers against anything, and what it remembers of files: python3 python/tests/session_check.py [SEED]."""

import array
import contextlib
import fcntl
import itertools
import os
import pathlib
import random
import resource
import select
import shutil
import socket
import struct
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from perigee import client  # noqa: E402
from perigee.client import fingerprint, wire  # noqa: E402

SEED = int(sys.argv.pop()) if len(sys.argv) > 1 and sys.argv[-1].isdigit() else random.randrange(1 << 30)

PARSERS = {
    "welcome": wire.welcome, "registered": wire.registered, "arenas": wire.arenas, "granted": wire.granted, "published": wire.published,
    "ready": lambda r: wire.ready(r, [3, 2]), "candidates": lambda r: wire.candidates(r, [2, 4]), "plan": wire.plan, "spoiled": wire.spoiled,
    "copied_out": lambda r: wire.copied_out(r, 4), "restored": wire.restored, "refused": wire.refused,
    "closing": wire.closing, "copied_in": lambda r: wire.copied_in(r, 3), "fetched": lambda r: wire.fetched(r, 4),
}

P = struct.pack
# A payload of each that is as it should be.
GOOD = {
    "welcome": P("<H", 1) + wire.text("p") + P("<III", 8, 8, 8192), "registered": bytes(48) + wire.u32s([0]) + P("<I", 1) + P("<IIIQ", 0, 1, 4096, 4096),
    "arenas": P("<I", 2) + P("<IIIQ", 0, 1, 4096, 4096) * 2, "granted": P("<QI", 1, 2) + P("<BIII", 0, 0, 1, 7) * 2 + P("<QQ", 5, 6),
    "published": P("<QII", 1, 2, 3), "ready": P("<QQBII", 1, 1, 0, 4, 9) + wire.u32s([3, 2]) + wire.u32s([0]),
    "candidates": P("<QQI", 1, 1, 2) + wire.u32s([1]) + wire.u32s([2, 3]), "plan": P("<IIIIII", 1, 2, 0, 0, 1, 1) + P("<IIIIQ", 0, 3, 4, 5000, 9),
    "spoiled": P("<IIII", 1, 2, 0, 5), "copied_out": P("<IIIBII", 1, 2, 0, 2, 3, 4), "restored": P("<IIB", 1, 2, 1), "refused": P("<BHI", 1, 8, 0) + wire.text("why"),
    "closing": P("<H", 12) + wire.text("late"), "copied_in": P("<I", 3) + b"\0\1\2", "fetched": P("<BBII", 0, 2, 4, 3),
}


class Parsing(unittest.TestCase):
    def test_as_they_should_be(self):
        want = {
            "welcome": (1, "p", 8, 8, 8192), "registered": (bytes(16), bytes(32)), "arenas": [(0, 1, 4096, 4096)] * 2,
            "granted": ([(0, P("<III", 0, 1, 7))] * 2, (5, 6)), "published": (1, 2, 3), "ready": ("found", 4, 9, [3, 2], [0]), "candidates": ([1], [2, 3]),
            "plan": (0, 1, [(0, 3, 4, 5000, 9)]), "spoiled": 5, "copied_out": (3, 4, "mismatch"), "restored": True, "refused": (8, "why"), "closing": (12, "late"),
            "copied_in": b"\0\1\2", "fetched": ("found", "mismatch", 4, 3),
        }
        for name, parse in PARSERS.items():
            self.assertEqual(parse(wire.Reader(GOOD[name])), want[name], name)

    def test_cut_short_or_too_long(self):
        for name, parse in PARSERS.items():
            good = GOOD[name]
            for raw in [good[:i] for i in range(len(good))] + [good + b"\0"]:
                with self.assertRaises(wire.Malformed, msg=f"{name}: {raw.hex()}"):
                    parse(wire.Reader(raw))

    def test_anything(self):
        """Whatever comes: a value or Malformed, and no more memory than some times what has come."""
        r = random.Random(SEED)
        good = malformed = 0
        for _ in range(30_000):
            name = r.choice(list(PARSERS))
            raw = bytearray(GOOD[name])
            for _ in range(r.randrange(4)):
                match r.randrange(4):
                    case 0:
                        raw[r.randrange(len(raw))] = r.choice((0, 1, 2, 0x7f, 0x80, 0xff, r.randrange(256)))
                    case 1:
                        at = r.randrange(len(raw) + 1)
                        raw[at:at] = r.randbytes(r.randrange(9))
                    case 2:
                        del raw[r.randrange(len(raw)):][:r.randrange(9)]
                    case 3:
                        at = r.randrange(len(raw))
                        raw[at:at + 4] = P("<I", r.choice((0, 1, 0xffffffff, 0x7fffffff, 1 << 20, r.randrange(1 << 32))))
                raw = raw or bytearray(1)
            try:
                PARSERS[name](wire.Reader(bytes(raw)))
                good += 1
            except wire.Malformed:
                malformed += 1
            except Exception as e:
                raise AssertionError(f"seed {SEED}: {name}: {bytes(raw).hex()}: {e!r}") from e
        self.assertGreater(min(good, malformed), 1000, f"seed {SEED}")


def frame(kind, ref, payload=b"", nfds=0):
    return wire.HEADER.pack(len(payload), kind, 0, nfds, ref, 1, 1, 0) + payload


class Manager:
    """Lets a client in and answers its first question on one of its connections with bytes of the test's choice. It serves one session."""

    SLOTS, SLOT = 4, 4096

    def __init__(self, path, query=b"", publish=b"", hang_up=False):
        self.answers, self.hang_up, self.ended = {1: query, 2: publish}, hang_up, threading.Semaphore(0)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(path)
        self.listener.listen()
        self.threads = [threading.Thread(target=self._accept)]
        self.threads[0].start()

    def _accept(self):
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            t = threading.Thread(target=self._serve, args=(conn,))
            self.threads.append(t)
            t.start()

    def _serve(self, conn):
        with conn:
            role = 1
            while (head := self._read(conn, wire.HEADER.size)) is not None:
                n, kind, _, _, ref, *_ = wire.HEADER.unpack(head)
                body = self._read(conn, n)
                if kind == wire.HELLO:
                    conn.sendall(frame(wire.WELCOME, ref, GOOD["welcome"]))
                elif kind == wire.REGISTER:
                    conn.sendall(frame(wire.REGISTERED, ref, bytes(48) + wire.u32s([]) + P("<I", 0)))
                elif kind == wire.ATTACH:
                    role, fd = body[16], os.memfd_create("arena")
                    os.truncate(fd, self.SLOTS * self.SLOT)
                    said = frame(wire.ATTACHED, ref, P("<I", 1) + P("<IIIQ", 0, self.SLOTS, self.SLOT, self.SLOTS * self.SLOT), 1)
                    conn.sendmsg([said], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
                    os.close(fd)
                elif kind in (wire.GOODBYE, wire.LEAVE):
                    conn.sendall(frame(wire.BYE, ref))
                else:
                    conn.sendall(self.answers.pop(role, b"").replace(b"REFREFRE", P("<Q", ref)))
                    if self.hang_up:
                        return
        self.ended.release()

    @staticmethod
    def _read(conn, n):
        got = b""
        while len(got) < n:
            more = conn.recv(n - len(got))
            if not more:
                return None
            got += more
        return got

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for t in self.threads:
            t.join()


REF = int.from_bytes(b"REFREFRE", "little")  # the question's, in an answer


def namespace():
    return {
        "engine": {"name": "test", "version": "1"}, "model": {"content": b"\1" + bytes(31)},
        "compute": {"dtype": "bfloat16", "device": "cpu", "isa": "avx2", "attention": "plain"}, "hash": {"algorithm": "sha256", "tokens": 16},
        "layout": {"order": "HND", "kv_dtype": "bfloat16", "format": "raw", "block_tokens": 16,
                   "groups": [{"components": 1, "rule": 1, "segments": [{"dtype": "bfloat16", "bytes": 4096}]}]},
    }


class Lying(unittest.TestCase):
    """Acknowledgements that are stuck, malformed, or another's: the engine hears Lost, at once where nothing has to be waited for, and nothing leaks."""

    @staticmethod
    def hurry(s, timeout):
        """From now on answers are late after so long. Before, a busy machine has its time."""
        s._timeout = timeout
        for link in s._links:
            link.sock.settimeout(timeout)

    @contextlib.contextmanager
    def session(self, timeout=20.0, **answers):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/s"
            fds = len(os.listdir("/proc/self/fd"))
            m = Manager(path, **answers)
            try:
                s = client.Session(path, "test", [namespace()], timeout=20.0)
                self.hurry(s, timeout)
                try:
                    yield s, m
                finally:
                    s.close()
            finally:
                m.close()
            self.assertEqual(len(os.listdir("/proc/self/fd")), fds, "descriptors leak")

    def test_publish(self):
        one = lambda slot: frame(wire.GRANTED, REF, P("<QI", 1, 1) + P("<B", 0) + slot + P("<QQ", 5, 6))
        for name, answer, hang_up in (
            ("stuck", b"", False),
            ("too few slots", frame(wire.GRANTED, REF, P("<QI", 1, 0) + P("<QQ", 5, 6)), False),
            ("more slots than it has", frame(wire.GRANTED, REF, P("<QI", 1, 0xffffffff)), False),
            ("a slot that is not there", one(P("<III", 0, 99, 1)), False),
            ("an arena that is not there", one(P("<III", 7, 0, 1)), False),
            ("another answer", frame(wire.PONG, REF), False),
            ("short", frame(wire.GRANTED, REF, b"\1\2"), False),
            ("cut off", frame(wire.GRANTED, REF, GOOD["granted"])[:wire.HEADER.size + 10], True),
            ("a frame without end", wire.HEADER.pack(wire.MAX_FRAME + 1, wire.GRANTED, 0, 0, REF, 1, 1, 0), False),
            ("the end", frame(wire.CLOSING, 0, GOOD["closing"]), False),
            ("a malformed end", frame(wire.CLOSING, 0, b"\1"), False),
            ("granted and stuck", one(P("<III", 0, 1, 1)), False),
            ("granted, and a malformed end", one(P("<III", 0, 1, 1)) + frame(wire.PUBLISHED, REF, b"\1"), False),
        ):
            with self.subTest(name), self.session(0.05 if name == "stuck" else 20.0, publish=answer, hang_up=hang_up) as (s, _):
                written = []

                def write(i, view):
                    written.append(i)
                    if name == "granted and stuck":
                        self.hurry(s, 0.05)

                with self.assertRaises(client.Lost):
                    s.publish([client.Block(bytes([1]) * 32, tokens=(1,))], write)
                self.assertEqual(written, [0] if name.startswith("granted") else [])
                if "stuck" not in name:
                    with self.assertRaises(client.Lost):  # and it stays lost
                        s.publish([client.Block(bytes([1]) * 32, tokens=(1,))], lambda i, view: self.fail("written"))

    def test_query(self):
        ready = lambda why=0, rest=wire.u32s([1]) + wire.u32s([0]): frame(wire.READY, REF, P("<QQBII", 1, 1, why, 1, 1) + rest)
        there = lambda *wants: frame(wire.CANDIDATES, REF, P("<QQI", 1, 1, len(wants)) + b"".join(map(wire.u32s, wants)))
        for name, answer in (("stuck", b""), ("a reason that is none", ready(99)), ("short", ready(0, b"")), ("another answer", frame(wire.BYE, REF)), ("too long", ready() + b""),
                             ("a malformed refusal", frame(wire.REFUSED, REF, b"\1")), ("hits of nothing", ready(0, wire.u32s([]) + wire.u32s([0]))),
                             ("more hits than blocks", ready(0, wire.u32s([2]) + wire.u32s([0]))), ("positions of nothing", there()), ("positions of another want", there([0], [0])),
                             ("a block that was not asked for", there([1])), ("a block twice", there([0, 0]))):
            with self.subTest(name), self.session(0.05 if name == "stuck" else 20.0, query=answer) as (s, _):
                if name == "too long":
                    self.assertEqual(s.query([(0, [bytes(32)])]).lease, client.Lease(1, 1, [1], [0]))
                    continue
                with self.assertRaises(client.Lost):
                    s.query([(0, [bytes(32)])])

    def test_descriptors_beyond_1024(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and hard < 2048:
            self.skipTest("there may be no such descriptor")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        ready = frame(wire.READY, REF, P("<QQBII", 1, 1, 0, 1, 1) + wire.u32s([1]) + wire.u32s([0]))
        with self.session(query=ready) as (s, _):
            link = s._query.sock
            high = fcntl.fcntl(link, fcntl.F_DUPFD_CLOEXEC, 1100)
            link.close()
            s._query.sock = socket.socket(fileno=high)
            s._query.sock.settimeout(20)
            ticket = s.ask([(0, [bytes(32)])])
            while (a := s.answer(ticket, block=False)) is None:
                pass
            self.assertEqual(a.lease, client.Lease(1, 1, [1], [0]))

    def test_restore(self):
        plan = lambda *page, first=0, total=2: frame(wire.PLAN, REF, P("<IIIIII", 1, 1, 0, first, total, 1) + P("<IIIIQ", *page))
        for name, answer in (("stuck", b""), ("a slot that is not there", plan(0, 99, 1, 4096, 0)), ("a page that is too long", plan(0, 1, 1, 1 << 30, 0)),
                             ("pages beyond the end", plan(0, 1, 1, 4096, 0, first=5)), ("short", frame(wire.PLAN, REF, b"\1")),
                             ("pages that are left out", plan(0, 1, 1, 4096, 0, first=1)), ("fewer than were leased", plan(0, 1, 1, 4096, 0, total=1) + frame(wire.RESTORED, REF, GOOD["restored"])),
                             ("none at all", frame(wire.PLAN, REF, P("<IIIIII", 1, 1, 0, 0, 0, 0)) + frame(wire.RESTORED, REF, GOOD["restored"])),
                             ("more than were leased", plan(0, 1, 1, 4096, 0, total=3))):
            with self.subTest(name), self.session(0.05 if name == "stuck" else 20.0, query=answer) as (s, _):
                with self.assertRaises(client.Lost):
                    s.restore(client.Lease(1, 1, [2], [0]), 0, lambda i, view: self.fail("a page that is not there"))

    def test_an_arena_that_is_refused(self):
        """The restore has begun, and is ended: else the session would be closed for it when the Manager's patience is over."""
        plan = frame(wire.PLAN, REF, P("<IIIIII", 1, 1, 0, 0, 1, 1) + P("<IIIIQ", 9, 1, 1, 4096, 0))
        refused = frame(wire.REFUSED, REF + 1, P("<BHI", wire.MAP_ARENAS, 8, 0) + wire.text("no such arena"))
        with self.session(query=plan) as (s, m):
            ref, m.answers[1] = s._query.ref + 1, plan
            ended = []

            def send(link, kind, body=b"", at=None, fd=None, send=s._send):
                if kind == wire.MAP_ARENAS:
                    m.answers[1] = refused.replace(P("<Q", REF + 1), P("<Q", ref + 1))
                if kind == wire.COPIED:
                    ended.append(body[12])
                    m.answers[1] = frame(wire.RESTORED, ref, P("<IIB", 1, 1, 0))
                return send(link, kind, body, at, fd)

            s._send = send
            with self.assertRaisesRegex(client.PerigeeError, "arena 9"):
                s.restore(client.Lease(1, 1, [1], [0]), 0, lambda i, view: self.fail("a page that is not there"))
            self.assertEqual(ended, [1], "it has failed, and the Manager is not told")

    def test_descriptors_that_nobody_wants(self):
        """They come with an answer that has none, which is as it should be but for that."""
        fds = len(os.listdir("/proc/self/fd"))
        here, there = socket.socketpair()
        with there, open("/dev/null") as f:
            s = client.Session.__new__(client.Session)
            s._timeout, s._answers, s._links, s._op = 20, {}, [], 0
            s._query = link = self.link(here)
            ticket = s.ask([(0, [bytes(32)])])
            there.sendmsg([frame(wire.BUSY, 1, b"", 1)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [f.fileno()]))])
            with self.assertRaises(client.Lost):
                s.answer(ticket)
            link.close()
        self.assertEqual(len(os.listdir("/proc/self/fd")), fds)

    def test_descriptors_that_no_frame_tells_of(self):
        """They are closed with the frame that they came with; of frames that come together no more are kept than two may have."""
        here, there = socket.socketpair()
        with there, open("/dev/null") as f:
            link = self.link(here)
            send = lambda raw, n: there.sendmsg([raw], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [f.fileno()] * n))])
            fds = len(os.listdir("/proc/self/fd"))
            for ref in range(1, 4):
                send(frame(wire.PONG, ref), 60)
                self.assertEqual((link.receive().ref, len(os.listdir("/proc/self/fd"))), (ref, fds))
            there.sendall(frame(wire.PONG, 4))  # is read together with the next one, whose descriptor stays
            send(frame(wire.ARENAS, 5, b"", 1), 1)
            self.assertEqual(link.receive().fds, [])
            os.close(*link.receive().fds)
            stream = b"".join(frame(wire.PONG, ref) for ref in range(6, 9))
            for i in range(3):  # each brings a bit of the next one, too
                send(stream[max(0, 32 * i + (i > 0)):32 * (i + 1) + 1], 60)
            link.receive(), link.receive()
            with self.assertRaises(wire.Malformed):
                link.receive()
            link.close()
            self.assertEqual(len(os.listdir("/proc/self/fd")), fds - 1)  # but for the socket

    @staticmethod
    def link(sock):
        link = wire.Link.__new__(wire.Link)
        link.sock, link.epoch, link.session, link.ref, link.buffer, link.fds = sock, 1, 1, 0, bytearray(), []
        return link

    def test_an_answer_that_never_comes_whole(self):
        """Something comes all the time, but not the answer: the timeout is for the answer."""
        pong, half = frame(wire.PONG, 7), frame(wire.BUSY, 1, bytes(1 << 16))
        for name, drops in (("others' answers", itertools.repeat(pong)), ("in drops", ([b] for b in half))):
            clock = [0.0]

            class Sock:
                """Each piece takes 3 s to come, of 5 s that it may. What is said goes to a file."""

                fileno = lambda self: said.fileno()

                def gettimeout(self):
                    return 5.0

                def recvmsg(self, n, more):
                    clock[0] += 3
                    return bytes(next(drops)), [], 0, None

                sendall = shutdown = lambda self, x: None

            with self.subTest(name), open(os.devnull, "wb") as said, unittest.mock.patch.object(time, "monotonic", lambda: clock[0]):
                s = client.Session.__new__(client.Session)
                s._answers, s._links, s._op = {}, [], 0
                s._query = self.link(Sock())
                with self.assertRaises(client.Lost):
                    s.answer(s.ask([(0, [bytes(32)])]))
                self.assertLess(clock[0], 10)

    def test_what_the_manager_copies_is_waited_for(self):
        """An answer that is none has not said that the pieces are ours again: only the connection's end has."""
        for name, answer in (("short", frame(wire.COPIED_OUT, REF, b"\1")), ("another", frame(wire.PONG, REF)), ("more than were leased", frame(wire.COPIED_OUT, REF, P("<IIIBII", 1, 1, 0, 0, 2, 2)))):
            with self.subTest(name), self.session(query=answer) as (s, m):
                with self.assertRaises(client.Lost):
                    s.restore_into(client.Lease(1, 1, [1], [0]), 0, client.session.Pages([1], P("<IQI", 3, 0, 4096)))
                self.assertTrue(m.ended.acquire(timeout=20), "it did not wait for the Manager's end")


    def test_a_fetch(self):
        said = lambda *v: frame(wire.FETCHED, REF, P("<BBII", *v))
        pages = client.session.Pages([1, 1], P("<IQIIQI", 3, 0, 4096, 3, 4096, 4096))
        for name, answer, want in (
            ("all", said(0, 0, 2, 2), client.Fetched(2, 2, "done", "found")), ("some", said(0, 2, 2, 1), client.Fetched(1, 2, "mismatch", "found")),
            ("nothing", said(1, 0, 0, 0), client.Fetched(0, 0, "done", "missing")), ("busy", frame(wire.BUSY, REF, P("<QQ", 0, 0)), None),
        ):
            with self.subTest(name), self.session(query=answer) as (s, _):
                self.assertEqual(s.fetch(0, [bytes(32)] * 2, pages), want)
        for name, answer in (("short", frame(wire.FETCHED, REF, b"\1")), ("more good than there are", said(0, 0, 1, 2)), ("nothing, and found", said(0, 0, 0, 0)),
                             ("failed, and all good", said(0, 1, 2, 2)), ("more than were asked for", said(0, 0, 3, 3)), ("done, and not all", said(0, 0, 2, 1)), ("another", frame(wire.PONG, REF)), ("the end", frame(wire.CLOSING, 0, GOOD["closing"]))):
            with self.subTest(name), self.session(query=answer) as (s, m):
                with self.assertRaises(client.Lost):
                    s.fetch(0, [bytes(32)] * 2, pages)
                self.assertTrue(m.ended.acquire(timeout=20), "it did not wait for the Manager's end")

    def test_the_bytes_of_a_fetch(self):
        """As internal/cache/channel/wire has them in TestFetchBytes."""
        sent = []
        s = client.Session.__new__(client.Session)
        s._query = None

        def send(link, kind, body):
            sent.append((kind, body.hex()))
            raise client.Lost("enough")

        s._send = send
        for pages, options in (
            (client.Lines(client.pack_lines([(3, 1 << 40, 512, 4096)]), P("<Q", 16)), {"whole": True, "request": "r"}), ([[(3, 1 << 40, 4096)]], {"scope": 7}),
        ):
            with self.assertRaises(client.Lost):
                s.fetch(2 if "request" in options else 0, b"\xab" * 32 if "request" in options else b"", pages, **options)
        self.assertEqual(sent, [
            (23, "00000000" "02000000" "01" "01000000" "72" "01000000" + "ab" * 32 + "00000000" "00000000" "01000000" "03000000" "0000000000010000" "00020000" "00100000" "01000000" "1000000000000000"),
            (23, "07000000" "00000000" "00" "00000000" "00000000" "01000000" "01000000" "01000000" "03000000" "0000000000010000" "00100000" "00000000" "00000000"),
        ])

    def test_the_bytes_of_a_follow(self):
        """As internal/cache/channel/wire has them in TestFollowBytes."""
        sent = []
        s = client.Session.__new__(client.Session)
        s._query = None
        s._ask = lambda link, kind, body, *answers: sent.append((kind, body.hex(), answers))
        s.follow("tcp://e", topic="kv", adapters=[("l", "0f")])
        self.assertEqual(sent, [(24, "07000000" + b"tcp://e".hex() + "00000000" "02000000" "6b76" "01000000" "01000000" "6c" "02000000" "3066", (85,))])

    def test_a_fetch_that_is_never_read_is_taken_back(self):
        """Its time is up: then the Manager finds the end of what we say before it can begin, and our pieces are ours."""
        here, there = socket.socketpair()
        with there:
            s = client.Session.__new__(client.Session)
            s._timeout, s._answers, s._links = 0.05, {}, []
            s._query = self.link(here)
            here.settimeout(0.05)
            pages = client.session.Pages([1], P("<IQI", 3, 0, 4096))
            with self.assertRaises(client.Lost):
                s.fetch(0, [bytes(32)], pages)
            p = select.poll()
            p.register(there, select.POLLRDHUP)
            self.assertTrue(p.poll(0), "the Manager would begin")
            head = there.recv(wire.HEADER.size)
            self.assertEqual((head[4], len(there.recv(4096))), (wire.FETCH, int.from_bytes(head[:4], "little")))
            here.close()

    def test_a_fetch_that_was_read_is_waited_for(self):
        """However long it takes: the timeout is not for copies."""
        here, there = socket.socketpair()
        with here, there:
            s = client.Session.__new__(client.Session)
            s._timeout, s._answers, s._links = 0.02, {}, []
            s._query = self.link(here)
            here.settimeout(0.02)
            read, send = threading.Event(), s._send
            s._send = lambda *a: (send(*a), read.wait(20))[0]  # the time begins when it was read
            waits, wait = threading.Event(), s._last
            s._last = lambda *a: waits.set() or wait(*a)  # when the time is up

            def manager():
                head = Manager._read(there, wire.HEADER.size)
                n, _, _, _, ref, *_ = wire.HEADER.unpack(head)
                Manager._read(there, n)
                read.set()
                waits.wait(20)
                there.sendall(frame(wire.FETCHED, ref, P("<BBII", 0, 0, 1, 1)))

            t = threading.Thread(target=manager)
            t.start()
            got = s.fetch(0, [bytes(32)], client.session.Pages([1], P("<IQI", 3, 0, 4096)))
            t.join()
            self.assertEqual((got, waits.is_set(), here.gettimeout()), (client.Fetched(1, 1, "done", "found"), True, 0.02))


class AtOnce(unittest.TestCase):
    """The shorter ways to write a frame and to read an answer say and find what the longer ones do."""

    def setUp(self):
        self.ours, self.other = (self.enterContext(x) for x in socket.socketpair())
        self.ours.settimeout(20)
        self.link = Lying.link(self.ours)

    def test_an_answer(self):
        want, body = (wire.FETCHED, 5), P("<BBII", 0, 0, 2, 2)
        good = frame(*want, body)
        pong = frame(wire.PONG, 4)
        for name, sent, left in (
            ("it", good, []), ("another ref", frame(wire.FETCHED, 6, body), [(wire.FETCHED, 6)]), ("another kind", frame(wire.BUSY, 5, body), [(wire.BUSY, 5)]),
            ("longer", frame(*want, body + b"x"), [want]), ("more behind it", good + pong, [want, (wire.PONG, 4)]), ("something before it", pong + good, [(wire.PONG, 4), want]),
        ):
            with self.subTest(name):
                self.other.sendall(sent)
                f = self.link.at_once(*want, len(body))
                self.assertEqual(None if f is None else (f.kind, f.ref, f.epoch, f.session, f.payload, f.fds), None if left else (*want, 1, 1, body, []))
                self.assertEqual([(f.kind, f.ref) for f in (self.link.receive() for _ in left)], left)
                self.assertEqual(self.link.buffer, b"")

    def test_an_answer_in_parts(self):
        good = frame(wire.FETCHED, 5, bytes(10))
        self.other.sendall(good[:40])
        self.assertIsNone(self.link.at_once(wire.FETCHED, 5, 10))
        self.other.sendall(good[40:])
        self.assertIsNone(self.link.at_once(wire.FETCHED, 5, 10), "what came first is overtaken")
        self.assertEqual(self.link.receive().ref, 5)
        self.other.close()
        self.assertIsNone(self.link.at_once(wire.FETCHED, 5, 10))
        with self.assertRaises(EOFError):
            self.link.receive()

    def test_descriptors_where_none_belong(self):
        head = bytearray(frame(wire.FETCHED, 5, bytes(10)))
        head[6] = 1
        before = len(os.listdir("/proc/self/fd"))
        self.other.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))])
        self.assertIsNone(self.link.at_once(wire.FETCHED, 5, 10))
        self.assertEqual((self.link.receive().fds, len(os.listdir("/proc/self/fd"))), ([], before))

    def test_a_frame_that_finds_no_room(self):
        got = []

        def read():
            while data := self.other.recv(1 << 16):
                got.append(data)

        self.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        body, t = random.randbytes(1 << 20), threading.Thread(target=read)
        self.assertEqual(self.link.send(wire.QUERY, b"first"), 1)  # which has room
        t.start()
        self.assertEqual(self.link.send(wire.QUERY, body), 2)
        self.ours.shutdown(socket.SHUT_WR)
        t.join()
        self.assertEqual(b"".join(got), frame(wire.QUERY, 1, b"first") + frame(wire.QUERY, 2, body))

    def test_a_frame_to_nobody(self):
        self.other.close()
        with self.assertRaises(OSError):
            self.link.send(wire.QUERY, b"x")


class Spinning(unittest.TestCase):
    def test_until_something_comes_or_the_time_is_over(self):
        """By a clock that each look moves on, with others let in between. What has come is left for receive."""
        for name, seconds, comes, want in (("nothing comes", 5, None, 5), ("in time", 5, 2, 2), ("too late", 5, 9, 5), ("its end", 5, 0, 0), ("no time", 0, None, 0)):
            with self.subTest(name), contextlib.ExitStack() as left:
                ours, other = (left.enter_context(s) for s in socket.socketpair(socket.AF_UNIX))
                link, let_in = object.__new__(wire.Link), []
                link.sock, link.rests = ours, 0

                def let():
                    let_in.append(1)
                    if len(let_in) == comes:
                        other.send(b"x")

                if comes == 0:
                    other.close()
                with unittest.mock.patch.object(wire.time, "monotonic", itertools.count().__next__), unittest.mock.patch.object(wire.os, "sched_yield", let):
                    come = link.spin(seconds)
                self.assertEqual((len(let_in), come), (want, comes is not None and comes <= want))
                if comes is not None and comes <= want:
                    self.assertEqual(ours.recv(9), b"x" if comes else b"")
                self.assertEqual(link.rests, 0)

    def test_it_rests_when_others_want_the_processor(self):
        ours, other = socket.socketpair(socket.AF_UNIX)
        with ours, other:
            link, looks = object.__new__(wire.Link), []
            link.sock, link.rests = ours, 0
            for began, after, want in ((0, 0.004, 1), (0.9, 0.9, 0), (1.1, 1.1005, 1), (1.2, 1.2005, 1)):
                looks.clear()
                clock = itertools.chain([began], itertools.repeat(after))
                with unittest.mock.patch.object(wire.time, "monotonic", clock.__next__), unittest.mock.patch.object(wire.os, "sched_yield", lambda: looks.append(1)):
                    link.spin(0.0005)
                self.assertEqual(len(looks), want, began)


class Loaded(unittest.TestCase):
    """Files that an engine has loaded: what was put in their place since is not taken for them."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.model = self.folder / "models" / "one"
        (self.model / "below").mkdir(parents=True)
        for name in ("config.json", "model.safetensors", "below/more.safetensors"):
            (self.model / name).write_bytes(name.encode())
        self.link, self.links = self.folder / "current", self.folder / "latest"
        self.link.symlink_to(self.model)
        self.links.symlink_to(self.link)
        self.want = fingerprint.of_path(self.model)

    def began_now(self):
        """A process that began after all that was written, by the clock of the file system: to wait for two seconds would be the same."""
        probe = self.folder / ".probe"
        probe.write_bytes(b"")
        return probe.stat().st_ctime + 0.001 + fingerprint.YOUNG_NS / 1e9  # what is written within one tick has the same time, and a float rounds

    def later(self, began):
        """What is written from now on is later than that."""
        self.enterContext(unittest.mock.patch.object(fingerprint, "YOUNG_NS", 0))
        probe = self.folder / ".probe"
        while probe.stat().st_ctime_ns <= began * 1e9:
            probe.write_bytes(b"x")

    def test_older_files(self):
        began = self.began_now()
        for path in (self.model, self.link, self.links):
            self.assertEqual(fingerprint.of_loaded(path, began), self.want)
        one = self.model / "model.safetensors"
        self.assertEqual(fingerprint.of_loaded(one, began), fingerprint.of_path(one))

    def test_younger_ones(self):
        def put(name):
            (self.model / name).write_bytes(b"new")

        def replace():  # by a directory that is as old as the other
            self.model.rename(self.folder / "models" / "gone")
            (self.folder / "models" / "two").rename(self.model)

        def turn(link, to):
            link.unlink()
            link.symlink_to(to)

        for name, change, path in (
            ("a file", lambda: put("model.safetensors"), "model"), ("one below", lambda: put("below/more.safetensors"), "model"), ("another one", lambda: put("other.safetensors"), "model"),
            ("a directory", replace, "model"), ("a link", lambda: turn(self.link, self.folder / "models" / "two"), "link"), ("a link behind a link", lambda: turn(self.link, self.folder / "models" / "two"), "links"),
            ("a single file", lambda: put("model.safetensors"), "single"),
        ):
            with self.subTest(name):
                self.doCleanups()
                self.setUp()
                shutil.copytree(self.model, self.folder / "models" / "two")
                began = self.began_now() - fingerprint.YOUNG_NS / 1e9
                self.later(began)
                of = self.model / "model.safetensors" if path == "single" else getattr(self, path)
                fingerprint.of_loaded(of, began)
                change()
                with self.assertRaisesRegex(fingerprint.Changed, "younger"):
                    fingerprint.of_loaded(of, began)

    def test_what_changes_while_it_is_read(self):
        began, original = self.began_now() + 60, fingerprint._read

        def read(file, *more):
            digest = original(file, *more)
            (self.model / "model.safetensors").write_bytes(b"new")
            return digest

        with unittest.mock.patch.object(fingerprint, "_read", read), self.assertRaises(fingerprint.Changed):
            fingerprint.of_loaded(self.model, began)

    def test_when_this_process_began(self):
        # It reads two clocks, one after the other: a process that has to stand still in between says that it began earlier.
        *_, other, began = sorted(fingerprint.began() for _ in range(9))
        self.assertTrue(time.time() - 3600 < began < time.time(), began)
        self.assertLess(began - other, 0.1)


class Fingerprints(unittest.TestCase):
    """Files that were read before are not read again, and nothing else is believed."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.model, self.file = self.folder / "model", self.folder / "kept" / "fingerprints.json"
        self.model.mkdir()
        for i in range(3):
            (self.model / f"{i}.safetensors").write_bytes(bytes([i]) * 100)
        self.read = []
        original = fingerprint._read
        self.enterContext(unittest.mock.patch.object(fingerprint, "_read", lambda file, *a: self.read.append(file.name) or original(file, *a)))
        self.want = fingerprint.of_path(self.model)

    def reads(self, later_s=10, want=None):
        """How many files are read, where the clock is that much after they were written."""
        self.read.clear()
        known = fingerprint.Known(str(self.file), lambda: time.time_ns() + later_s * 10**9)
        self.assertEqual(fingerprint.of_path(self.model, known), want or self.want)
        return len(self.read)

    def test_once(self):
        self.assertEqual((self.reads(), self.reads()), (3, 0))
        self.assertEqual(self.file.stat().st_mode & 0o777, 0o600)

    def test_what_is_no_file(self):
        """A pipe would be waited for, and nothing read from it has an end."""
        os.mkfifo(self.model / "pipe.json")
        with self.assertRaisesRegex(ValueError, "pipe.json is no regular file"):
            fingerprint.of_path(self.model)

    def test_a_file_that_has_changed(self):
        self.reads()
        (self.model / "1.safetensors").write_bytes(b"\7" * 100)
        other = fingerprint.of_path(self.model)
        self.assertNotEqual(other, self.want)
        self.assertEqual((self.reads(want=other), self.reads(want=other)), (1, 0))

    def test_files_that_are_too_young_are_read_again(self):
        self.assertEqual((self.reads(0), self.reads(0), self.reads()), (3, 3, 3))
        self.assertEqual(self.reads(), 0)

    def test_what_is_not_believed(self):
        self.reads()
        good = self.file.read_bytes()
        for name, change in (
            ("others may write it", lambda: self.file.chmod(0o620)), ("garbage", lambda: self.file.write_bytes(os.urandom(100))), ("nothing", lambda: self.file.write_bytes(b"")),
            ("another version", lambda: self.file.write_bytes(good.replace(b'"version": 1', b'"version": 2'))), ("short digests", lambda: self.file.write_bytes(good.replace(b'"]', b'00"]'))),
            ("too deep", lambda: self.file.write_bytes(b"[" * 100_000)), ("too long", lambda: self.file.write_bytes(good + b" " * (8 << 20))), ("a list", lambda: self.file.write_bytes(b"[1]")),
        ):
            with self.subTest(name):
                self.file.write_bytes(good)
                self.file.chmod(0o600)
                change()
                self.assertEqual((self.reads(), self.reads()), (3, 0))

    def test_where_it_cannot_be_kept(self):
        self.file = pathlib.Path("/proc/nothing/fingerprints.json")
        self.assertEqual((self.reads(), self.reads()), (3, 3))

    def test_no_more_than_a_bound(self):
        with unittest.mock.patch.object(fingerprint.Known, "MOST", 2):
            self.reads()
            self.assertEqual(self.reads(), 1)


if __name__ == "__main__":
    print("seed", SEED)
    unittest.main()
