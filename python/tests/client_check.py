"""Drives the Python client against a real Manager: client_check.py SOCKET VECTORS. Prints ok, or raises. Run by the Go tests."""

import json
import mmap
import os
import random
import select
import signal
import socket
import struct
import sys
import threading
import time

from perigee import client
from perigee.client import identity
from perigee.vllm import keeper

PAGE, TOKENS = 5000, 16


def namespace(page=PAGE, groups=1, shard=None):
    segment = lambda n: [{"dtype": "bfloat16", "bytes": n}]
    layout = [{"components": 1, "rule": 1, "segments": segment(page)}]
    if groups > 1:
        layout.append({"components": 8, "rule": 2, "window": 20, "segments": segment(page + 1)})
    return {
        "engine": {"name": "test", "version": "1"}, "model": {"content": b"\1" + bytes(31)},
        "compute": {"dtype": "bfloat16", "device": "cpu", "isa": "avx2", "attention": "plain"},
        "hash": {"algorithm": "sha256", "tokens": TOKENS},
        "layout": {"order": "HND", "kv_dtype": "bfloat16", "format": "raw", "block_tokens": TOKENS, "groups": layout},
    } | ({"shard": {"tensor": shard}} if shard else {})


def name(prompt, i):
    return (prompt + 1).to_bytes(8, "little") + (i + 1).to_bytes(8, "little") + bytes(16)


def page(prompt, i, group=0):
    return random.Random(f"{prompt}.{i}.{group}").randbytes(PAGE + group)


def blocks(prompt, n, first=0):
    return [client.Block(name(prompt, i), name(prompt, i - 1) if i else client.NO_BLOCK, tuple(range(TOKENS))) for i in range(first, n)]


def names(prompt, n):
    return [name(prompt, i) for i in range(n)]


def check_identity(vectors):
    v = json.load(open(vectors))
    raw = bytes.fromhex(v["Namespace"])
    assert identity.namespace_id(raw).hex() == v["NamespaceID"]
    salted = bytes.fromhex(v["Salted"])
    assert client.block_name(bytes.fromhex(v["EngineHash"]), salted).hex() == v["SaltedBlock"]
    assert client.request_id() == bytes(16)


def check_restore(path):
    with client.Session(path, "python", [namespace()], model="m") as s:
        assert s.namespace == client.instance_id([client.encode_namespace(namespace())])
        got = s.publish(blocks(1, 10), lambda i, slot: slot.__setitem__(slice(None), page(1, i)))
        assert (got.sealed, got.present, got.dropped) == (10, 0, 0) and any(got.chain), got
        again = s.publish(blocks(1, 12, 8), lambda i, slot: slot.__setitem__(slice(None), page(1, 8 + i)))
        assert (again.sealed, again.present) == (2, 2), again

        a = s.query([(0, names(1, 14))], demand=(TOKENS, (0, 14 * TOKENS), [(0, 0, 14 * TOKENS)]), request="r", wait=1.0)
        assert a.outcome == client.READY and a.lease.hits == [12], a
        seen = {}
        s.restore(a.lease, 0, lambda i, view: seen.__setitem__(i, bytes(view)))
        assert seen == {i: page(1, i) for i in range(12)}
        try:
            s.restore(a.lease, 0, lambda i, view: None)
            raise AssertionError("a lease was restored twice")
        except client.Refused as e:
            assert e.name == "stale_lease", e

        assert s.query([(0, names(2, 3))]) == client.Answer(client.READY, "missing")
        d = s.query([(0, names(2, 1) + names(1, 2))], mode=client.DISCOVER)
        assert d.outcome == client.CANDIDATES and d.positions == ([1, 2],), d

        # What raises in the middle gives up the rest, and the session goes on.
        def broken(i, slot):
            if i == 2:
                raise KeyError("on purpose")
            slot[:] = page(3, i)

        try:
            s.publish(blocks(3, 4), broken)
            raise AssertionError("an exception was lost")
        except KeyError:
            pass
        a = s.query([(0, names(3, 4))])
        assert a.lease.hits == [2], a
        s.release(a.lease)
        t = s.ask([(0, names(1, 4))])
        a = None
        while a is None:  # the asynchronous way
            a = s.answer(t, block=False)
            time.sleep(0.001)
        assert a.lease, a
        s.cancel(t)

        # Several questions at once: an answer to one is not waited for by another.
        tickets = [s.ask([(0, names(k, 4))]) for k in (1, 9, 1)]
        got = [None] * 3
        while None in got:
            select.select([s], [], [], 1)
            got = [g or s.answer(t, block=False) for g, t in zip(got, tickets)]
        assert [g.why for g in got] == ["found", "missing", "found"], got
        for g in got:
            if g.lease:
                s.release(g.lease)

        reader = client.Session(path, "python", [namespace()], join=s.credentials, publishes=False)
        assert not reader._own
        worker = client.Session(path, "python", [namespace()], join=s.credentials)
        a = s.query([(0, names(1, 4))])
        count = []
        worker.restore(a.lease, 0, lambda i, view: count.append(bytes(view) == page(1, i)))
        assert count == [True] * 4
        reader._drop()
        worker._drop()


def check_hybrid(path):
    with client.Session(path, "hybrid", [namespace(groups=2)]) as s:
        n = 4
        both = blocks(5, n) + [b._replace(group=1) for b in blocks(5, n, n - 2)]
        where = [(i, 0) for i in range(n)] + [(i, 1) for i in range(n - 2, n)]
        s.publish(both, lambda i, slot: slot.__setitem__(slice(None), page(5, *where[i])))
        end = n * TOKENS
        demand = (TOKENS, (0, end), [(0, 0, end), (1, end - 2 * TOKENS, end)])
        a = s.query([(0, names(5, n)), (1, names(5, n)[-2:])], mode=client.EXACT, demand=demand)
        assert a.lease.hits == [4, 2], a
        got = []
        s.restore(a.lease, 0, lambda i, view: got.append(bytes(view)))
        assert got == [page(5, *w) for w in where]
        try:
            s.query([(0, names(5, n)), (1, names(5, n)[-1:])], mode=client.EXACT, demand=demand)
            raise AssertionError("a wrong demand")
        except client.Refused as e:
            assert e.name == "bad_demand", e


class Memory:
    """An engine's host pool as SGLang makes it: a memfd that cannot be sealed, keys in its first half and values in its second."""

    def __init__(self, pages):
        self.half = PAGE // 2
        self.middle = pages * self.half
        size = self.middle + pages * (PAGE - self.half)
        self.fd = os.memfd_create("pool", os.MFD_CLOEXEC)
        os.posix_fallocate(self.fd, 0, size)
        self.map = mmap.mmap(self.fd, size)

    def at(self, i, pool=3):
        rest = PAGE - self.half
        return [(pool, i * self.half, self.half), (pool, self.middle + i * rest, rest)]

    def get(self, i):
        return b"".join(self.map[o:o + n] for _, o, n in self.at(i))

    def set(self, i, raw):
        for _, o, n in self.at(i):
            self.map[o:o + n], raw = raw[:n], raw[n:]

    def close(self):
        self.map.close()
        os.close(self.fd)


def check_pool(path):
    """The Manager copies, out of the engine's own memory and into it."""
    memory = Memory(16)
    with client.Session(path, "pool", [namespace()], model="m") as s:
        assert s.offer_pool(memory.fd, pool=3) == 3
        for again in ({"pool": 3}, {"pool": 4}):
            try:
                s.offer_pool(memory.fd, **again)
                raise AssertionError("a pool was taken twice")
            except client.Refused as e:
                assert e.name == "repeated", e
        r, w = os.pipe()
        try:
            s.offer_pool(w, 4096, 5)
            raise AssertionError("a pipe was taken for memory")
        except client.Refused as e:
            assert e.name == "bad_pool", e
        finally:
            os.close(r)
            os.close(w)

        for i in range(8):
            memory.set(i, page(11, i))
        got = s.publish_from(blocks(11, 6), [memory.at(i) for i in range(6)])
        assert got[:3] == (6, 0, 0) and got.there == (True,) * 6 and any(got.chain), got
        got = s.publish_from(blocks(11, 8, 4), [memory.at(i) for i in range(4, 8)], parent_chain=got.chain)
        assert got[:3] == (2, 2, 0) and got.there == (True,) * 4, got
        raw = b"".join(b"".join(struct.pack("<IQI", *p) for p in memory.at(i)) for i in range(4, 8))
        got = s.publish_from(blocks(11, 8, 4), client.Pages([2] * 4, raw))
        assert got[:3] == (0, 4, 0), got

        a = s.query([(0, names(11, 9))])
        assert a.lease.hits == [8], a
        got = s.restore_into(a.lease, 0, [memory.at(8 + i) for i in range(8)], wait_all=True)
        assert got == (8, 8, "done", True), got
        assert [memory.get(8 + i) for i in range(8)] == [page(11, i) for i in range(8)]
        a = s.query([(0, names(11, 2))])
        seen = []
        s.restore(a.lease, 0, lambda i, view: seen.append(bytes(view)))  # and by the other route
        assert seen == [page(11, i) for i in range(2)]

        # Asking and restoring in one.
        for i in range(16):
            memory.set(i, bytes(PAGE))
        got = s.fetch(0, names(11, 9), [memory.at(5 + i) for i in range(9)])
        assert got == (8, 8, "done", "found"), got
        assert [memory.get(5 + i) for i in range(9)] == [page(11, i) for i in range(8)] + [bytes(PAGE)]
        lines = client.pack_lines([(3, 0, memory.half // 5, memory.half), (3, memory.middle, (PAGE - memory.half) // 5, PAGE - memory.half)])
        got = s.fetch(0, b"".join(names(11, 3)), client.Lines(lines, struct.pack("<3Q", 5 * 15, 5 * 2, 0)), request="r")
        assert got == (3, 3, "done", "found") and [memory.get(i) for i in (15, 2, 0)] == [page(11, i) for i in range(3)], got
        before = memory.map[:]
        for wanted, options in ((names(12, 2), {}), (names(11, 9), {"whole": True})):
            got = s.fetch(0, wanted, [memory.at(i) for i in range(len(wanted))], **options)
            assert got == (0, 0, "done", "missing") and memory.map[:] == before, got
        for wrong, why in (([memory.at(0)], "invalid"), ([memory.at(0)] * 2, "overlap"), ([memory.at(0), memory.at(99)], "invalid"),
                           (client.Lines(lines, struct.pack("<2Q", 5, 1 << 63)), "invalid"), (client.Lines(lines, struct.pack("<2Q", 5, 5)), "overlap")):
            try:
                s.fetch(0, names(11, 2), wrong)
                raise AssertionError(wrong)
            except client.Refused as e:
                assert e.name == why, (e, wrong)
        for i in range(8):
            memory.set(i, page(11, i))

        # Mistakes are refused, and the session goes on.
        for wrong, why in (([memory.at(0)], "invalid"), ([memory.at(0)] * 2, "overlap"), ([memory.at(0), memory.at(99)], "invalid"), ([memory.at(0), memory.at(1, 9)], "invalid")):
            a = s.query([(0, names(11, 2))])
            try:
                s.restore_into(a.lease, 0, wrong)
                raise AssertionError(wrong)
            except client.Refused as e:
                assert e.name == why, (e, wrong)
            s.release(a.lease)
        try:
            s.publish_from(blocks(12, 2), [memory.at(0), memory.at(1)[:1]])
            raise AssertionError("half a page")
        except client.Refused as e:
            assert e.name == "invalid", e
        got = s.publish_from(blocks(12, 2), [memory.at(0), memory.at(1)])
        assert got.sealed == 2, got

        # Memory that goes away under it costs its pages, and nothing else.
        os.ftruncate(memory.fd, memory.middle)
        got = s.publish_from(blocks(13, 2), [memory.at(0), memory.at(1)])
        assert (got.sealed, got.dropped, got.there) == (0, 2, (False, False)), got
        a = s.query([(0, names(11, 2))])
        got = s.restore_into(a.lease, 0, [memory.at(0), memory.at(1)])
        assert got == (0, 2, "failed", None), got
    memory.close()


def check_ranks(path):
    """An instance of two ranks: who restores alone has both parts of each block, and two who share a lease have theirs."""
    ranks, n = [namespace(shard={"index": i, "size": 2}) for i in range(2)], 3
    memory = Memory(2 * n)
    with client.Session(path, "ranks", ranks) as s, client.Session(path, "", ranks, join=s.credentials, publishes=False) as other:
        for part in range(2):
            s.publish(blocks(6, n), lambda i, slot: slot.__setitem__(slice(None), page(6 + part, i)), part=part)
        all_parts, got = [page(6 + part, i) for i in range(n) for part in range(2)], [[], [], []]
        a = s.query([(0, names(6, n + 1))])
        assert a.lease.hits == [n], a
        s.restore(a.lease, 0, lambda i, view: got[2].append(bytes(view)))
        a = s.query([(0, names(6, n + 1))], consumers=2)
        second = threading.Thread(target=other.restore, args=(a.lease, 1, lambda i, view: got[1].append(bytes(view))))
        second.start()
        s.restore(a.lease, 0, lambda i, view: got[0].append(bytes(view)))
        second.join()
        assert got == [all_parts[0::2], all_parts[1::2], all_parts]

        s.offer_pool(memory.fd, pool=3)
        done = (2 * n, 2 * n, "done")
        a = s.query([(0, names(6, n))])
        assert s.restore_into(a.lease, 0, [memory.at(i) for i in range(2 * n)])[:3] == done and [memory.get(i) for i in range(2 * n)] == all_parts
        assert s.fetch(0, names(6, n), [memory.at(2 * n - 1 - i) for i in range(2 * n)])[:3] == done and [memory.get(i) for i in range(2 * n)] == all_parts[::-1]
        rest = PAGE - memory.half
        lines = client.Lines(client.pack_lines([(3, 0, memory.half, memory.half), (3, memory.middle, rest, rest)]), struct.pack(f"<{2 * n}Q", *range(2 * n)))
        assert s.fetch(0, names(6, n), lines)[:3] == done and [memory.get(i) for i in range(2 * n)] == all_parts
        other.unmap()
    memory.close()


def check_lost(path):
    """The session ends while the Manager copies, which the test holds: the call ends when it copies no more."""
    memory = Memory(8)
    s = client.Session(path, "lost", [namespace()])
    s.offer_pool(memory.fd, pool=3)
    grants = s._grants

    def short(*args):
        """From here on there is but the copy, and no timeout is for that."""
        link, *rest = grants(*args)
        s._timeout = 0.05
        link.sock.settimeout(0.05)
        return link, *rest

    s._grants = short
    try:
        s.publish_from(blocks(21, 4), [memory.at(i) for i in range(4)])
        raise AssertionError("a lost session has published")
    except client.Lost:
        print("ok")


def check_left(path):
    """A process that has lost its session, and lives on, gives back what it had."""
    s = client.Session(path, "left", [namespace()])
    s.publish(blocks(22, 4), lambda i, slot: None)
    for link in s._links:
        link.sock.shutdown(socket.SHUT_RDWR)
    s.close()
    print("left", flush=True)
    sys.stdin.readline()
    print("ok")


def check_half(path, epoch, session, token):
    """What joins a session by half, or registers so, as with a Manager that takes no more connections, gives back what it had, though its process lives on."""
    connect = client.Session._connect

    def one(self):
        if self._links:
            raise client.Lost("another connection")
        return connect(self)

    client.Session._connect = one
    credentials = client.Credentials(int(epoch), int(session), bytes.fromhex(token))
    for what, begin in (
            ("joined", lambda: keeper.Keeper().join(credentials, lambda c: client.Session(path, "", [namespace()], join=c))),
            ("registered", lambda: client.Session(path, "half", [namespace()]))):
        try:
            begin()
            raise AssertionError("it is there")
        except client.Lost:
            print(what, flush=True)
        sys.stdin.readline()


class Halves:
    """The connector's halves in one process: the rank's thread stands in the midst of a page as the scheduler's half has its session ended."""

    SLOTS = 16  # the Manager's whole pool

    def __init__(self, path, instance, prompt, keepers):
        self.path, self.inside, self.go, self.outcome = path, threading.Event(), threading.Event(), None
        self.scheduler = keepers[0].hold(client.Session(path, instance, [namespace()], publishes=False))
        self.rank = keepers[1].join(self.scheduler.session.credentials, lambda c: client.Session(path, "", [namespace()], join=c))
        self.thread = threading.Thread(target=self._publish, args=(prompt,), daemon=True)
        self.thread.start()
        self.inside.wait()
        self.scheduler.end()
        self.scheduler.let_go()

    def _publish(self, prompt):
        def write(i, slot):
            if i == 2:
                self.inside.set()
                self.go.wait()
            slot[:] = page(prompt, i)

        try:
            self.rank.session.publish(blocks(prompt, self.SLOTS), write)
        except client.Lost:
            self.outcome = "lost"
        self.rank.end()
        self.rank.let_go()

    def finish(self):
        self.go.set()
        self.thread.join()
        assert self.outcome == "lost", self.outcome


def served(path, instance, prompt, before_the_seal=lambda: None):
    """Places of pages that another engine gets otherwise than it has published them."""
    with client.Session(path, instance, [namespace()]) as s:
        def write(i, slot):
            slot[:] = page(prompt, i)
            if i == Halves.SLOTS - 1:
                before_the_seal()

        got = s.publish(blocks(prompt, Halves.SLOTS), write)
        assert got.sealed == Halves.SLOTS, got
        a, wrong = s.query([(0, names(prompt, Halves.SLOTS))]), []
        s.restore(a.lease, 0, lambda i, view: wrong.append(i) if bytes(view) != page(prompt, i) else None)
        return wrong


def check_halves(path):
    shared = keeper.Keeper()
    h = Halves(path, "one", 31, [shared, shared])
    try:
        served(path, "other", 32)
        raise AssertionError("memory that is written to was another's")
    except client.Refused as e:
        assert e.name in ("arena_busy", "no_pool"), e
    h.finish()
    assert served(path, "other", 32) == []
    # What is checked here: with a goodbye of each half the other engine gets the memory, and is served wrong pages.
    h = Halves(path, "one", 33, [keeper.Keeper(), keeper.Keeper()])
    assert served(path, "other", 34, h.finish) != []
    # And a process that ends while it copies gives all back.
    Halves(path, "one", 35, [shared, shared])
    print("ok", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def bench(path):
    """What a query of 512 blocks that are all there takes, from asking to the lease: TestPythonBench prints it."""
    with client.Session(path, "bench", [namespace()]) as s:
        s.publish(blocks(7, 512), lambda i, slot: None)
        raw = b"".join(names(7, 512))
        took = []
        for _ in range(2000):
            t = time.perf_counter()
            a = s.query([(0, raw)])
            took.append(time.perf_counter() - t)
            assert a.lease.hits == [512], a
            s.release(a.lease)
        took.sort()
        print(f"a query of 512 blocks from Python: p50 {took[1000] * 1e6:.0f} us, p99 {took[1980] * 1e6:.0f} us")


if __name__ == "__main__":
    path, vectors = sys.argv[1:3]
    if vectors == "bench":
        bench(path)
        sys.exit()
    if vectors == "lost":
        check_lost(path)
        sys.exit()
    if vectors == "halves":
        check_halves(path)
    if vectors == "half":
        check_half(path, *sys.argv[3:])
        sys.exit()
    if vectors == "left":
        check_left(path)
        sys.exit()
    check_identity(vectors)
    before = len(os.listdir("/proc/self/fd"))
    check_restore(path)
    check_hybrid(path)
    check_pool(path)
    check_ranks(path)
    assert len(os.listdir("/proc/self/fd")) == before, "descriptors leak"
    print("ok")
