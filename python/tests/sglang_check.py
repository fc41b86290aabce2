"""The SGLang backend's decisions and threads, without SGLang and without a Manager: python3 python/tests/sglang_check.py."""

import array
import contextlib
import ctypes
import hashlib
import os
import pathlib
import random
import socket
import struct
import sys
import threading
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from perigee import client  # noqa: E402
from perigee.client import Credentials, Lease, fingerprint, wire  # noqa: E402
from perigee.sglang import keeper as keeping  # noqa: E402
from perigee.sglang import admission, lore, pools, restorable, staging, store  # noqa: E402

P = 4  # tokens of a page
SOON_S = 60  # for what another thread does; never reached unless something is wrong


def tokens(seed, pages):
    r = random.Random(seed)
    return array.array("q", [r.randrange(150000) for _ in range(P * pages)])


def keys_of(ids, before=b""):
    out = []
    for i in range(0, len(ids), P):
        out.append(lore.page_key(before, array.array("I", ids[i:i + P])))
        before = bytes.fromhex(out[-1])
    return out


class Lore(unittest.TestCase):
    def test_keys_are_sglangs(self):
        """Vectors of the engine: pages of 16 tokens, 1 to 48, as the events name them (the first 8 bytes, signed), and a seed."""
        before, got = b"", []
        for first in (1, 17, 33):
            before = bytes.fromhex(lore.page_key(before, array.array("I", range(first, first + 16))))
            got.append(int.from_bytes(before[:8], "big", signed=True))
        self.assertEqual(got, [8635429971592222890, 1256577331724852459, 5689809685380680247])
        h = hashlib.sha256(b"sglang-cache-namespace-v1" + b"\0" + b"\1" + (2).to_bytes(8, "little") + b"ab").digest()
        self.assertEqual(lore.seed(lore.Space(None, "ab")), h)
        self.assertEqual(lore.seed(lore.Space()), b"")
        self.assertNotEqual(lore.seed(lore.Space("", None)), lore.seed(lore.Space(None, None)))

    def test_where_events_are_read(self):
        """By SGLang's own rule, who binds can be dialled; by the Manager on a loopback address alone."""
        for config, want in (
                ({"endpoint": "tcp://*:5557"}, ("tcp://127.0.0.1:5557", "", "")),
                ({"endpoint": "tcp://0.0.0.0:5557", "replay_endpoint": "tcp://127.0.0.2:5558", "topic": "kv"}, ("tcp://127.0.0.1:5557", "tcp://127.0.0.2:5558", "kv")),
                ({"endpoint": "tcp://[::]:5557", "replay_endpoint": "tcp://*:5558"}, ("tcp://[::1]:5557", "tcp://127.0.0.1:5558", "")),
                ({"endpoint": "tcp://127.0.0.1:5557", "bind": True, "replay_endpoint": "tcp://10.0.0.1:5558"}, ("tcp://127.0.0.1:5557", "", "")),
                ({"endpoint": "tcp://127.0.0.1:5557"}, None),  # it connects
                ({"endpoint": "tcp://*:5557", "bind": False}, None), ({"endpoint": "tcp://10.0.0.1:5557", "bind": True}, None),
                ({"endpoint": "ipc:///tmp/kv"}, None), ({"endpoint": "tcp://*:0"}, None), ({"endpoint": "tcp://*"}, None), ({"endpoint": ""}, None),
                ({"endpoint": "tcp://*:5557", "publisher": "null"}, None), ({}, None)):
            self.assertEqual(lore.published({"publisher": "zmq"} | config), want, config)

    def test_a_chain_in_parts(self):
        ids = tokens(1, 6)
        keys = keys_of(ids)
        s = lore.Lore(P)
        s.note(keys[:4], ids[:4 * P], [], lore.Space())
        s.note(keys[4:], ids[4 * P:], keys[:4], lore.Space())
        got = s.take(keys)
        self.assertEqual([g.parent for g in got], ["", *keys[:5]])
        self.assertEqual([list(g.tokens) for g in got], [list(ids[i * P:(i + 1) * P]) for i in range(6)])
        self.assertEqual((len(s), s.take(keys)), (0, [lore.UNKNOWN] * 6), "taken once")

    def test_what_is_not_the_keys_own_is_not_believed(self):
        ids, others = tokens(1, 3), tokens(2, 3)
        keys = keys_of(ids)
        for name, said, prefix, space in (
                ("tokens", others, [], lore.Space()), ("a prefix", ids, ["ab" * 32], lore.Space()), ("a salt", ids, [], lore.Space(None, "s")),
                ("one token", ids[:P - 1] + array.array("q", [ids[P - 1] + 1]) + ids[P:], [], lore.Space())):
            s = lore.Lore(P)
            s.note(keys, said, prefix, space)
            self.assertIs(s.take(keys)[0], lore.UNKNOWN, name)

    def test_salts_and_adapters_begin_other_chains(self):
        ids = tokens(1, 2)
        for space in (lore.Space(None, "tenant"), lore.Space("adapter", None), lore.Space("adapter", "tenant"), lore.Space("", "")):
            keys = keys_of(ids, lore.seed(space))
            s = lore.Lore(P)
            s.note(keys, ids, [], space)
            self.assertEqual([g.space for g in s.take(keys)], [space] * 2)

    def test_without_prefix_keys_the_beginning_is_still_known(self):
        ids = tokens(1, 4)
        keys = keys_of(ids)
        s = lore.Lore(P)
        s.note(keys[:2], ids[:2 * P], None, lore.Space())
        s.note(keys[2:], ids[2 * P:], None, lore.Space())
        got = s.take(keys)
        self.assertEqual([g.parent for g in got], ["", keys[0], None, keys[2]])

    def test_odd_notes(self):
        s = lore.Lore(P)
        keys = keys_of(tokens(1, 2))
        s.note(keys, array.array("q", [1 << 32] * 8), [], lore.Space())
        s.note(keys, [(1, 2)] * 8, [], lore.Space())  # pairs
        s.note(keys, tokens(1, 1), [], lore.Space())  # too few
        self.assertEqual(len(s), 0)

    def test_bounded(self):
        s = lore.Lore(P, most=10)
        chains = [(keys_of(ids), ids) for ids in (tokens(i, 3) for i in range(6))]
        for keys, ids in chains:
            s.note(keys, ids, [], lore.Space())
        self.assertEqual(len(s), 10)
        self.assertIs(s.take(chains[0][0])[0], lore.UNKNOWN)
        self.assertIsNot(s.take(chains[5][0])[0], lore.UNKNOWN)


def naive_prefixes(kv, pool_sets):
    """What restorable.prefixes says, by trying each length."""
    lengths, hits = [], {}
    alone = {}
    for name, (rule, trailing, there) in pool_sets.items():
        ok = []
        for n in range(1, kv + 1):
            need = range(n) if rule == restorable.ALL_PAGES else range(max(0, n - max(1, trailing)), n)
            if all(i in there for i in need):
                ok.append(n)
        alone[name] = ok
        if ok:
            hits[name] = ok[-1]
    for n in range(1, kv + 1):
        if all(n in ok for ok in alone.values()):
            lengths.append(n)
    return lengths, hits


class Restorable(unittest.TestCase):
    def test_leading(self):
        self.assertEqual(restorable.leading([], 4), 0)
        self.assertEqual(restorable.leading([1, 2], 4), 0)
        self.assertEqual(restorable.leading([0, 1, 3], 4), 2)
        self.assertEqual(restorable.leading([0, 1, 2, 3], 3), 3)

    def test_a_state_is_where_it_was_taken(self):
        lengths, hits = restorable.prefixes(6, {"mamba": (restorable.TRAILING_PAGES, 1, [1, 4])})
        self.assertEqual((lengths, hits), ([2, 5], {"mamba": 5}))

    def test_a_window_is_whole(self):
        lengths, _ = restorable.prefixes(6, {"swa": (restorable.TRAILING_PAGES, 2, [0, 2, 3, 5])})
        self.assertEqual(lengths, [1, 4])  # a prefix of one page needs that page alone

    def test_nothing_in_common(self):
        pool = {"indexer": (restorable.ALL_PAGES, 1, [0, 1]), "mamba": (restorable.TRAILING_PAGES, 1, [3])}
        self.assertEqual(restorable.prefixes(5, pool), ([], {"indexer": 2, "mamba": 4}))

    def test_against_a_naive_model(self):
        seed = random.randrange(1 << 30)
        r = random.Random(seed)
        with self.subTest(seed=seed):
            for _ in range(3000):
                kv = r.randrange(12)
                pool = {n: (r.choice((restorable.ALL_PAGES, restorable.TRAILING_PAGES)), r.randrange(4), sorted(r.sample(range(14), r.randrange(15)))) for n in "abc"[:r.randrange(4)]}
                self.assertEqual(restorable.prefixes(kv, pool), naive_prefixes(kv, pool), (kv, pool))

    def test_an_unknown_rule(self):
        with self.assertRaises(ValueError):
            restorable.prefixes(1, {"x": ("block_groups", 1, [0])})


class Slots(list):
    """The engine's own kind of list."""

    def __getitem__(self, i):
        got = super().__getitem__(i)
        return Slots(got) if isinstance(i, slice) else got

    def tolist(self):
        return list(self)


class HostPool:
    """As SGLang's: K of all pages, then V of all pages."""

    layout, page_size, dtype = "page_first_direct", P, "float32"

    def __init__(self, pages, k=24, v=40):
        self.memory = bytearray(pages * (k + v))
        self.base = ctypes.addressof((ctypes.c_char * len(self.memory)).from_buffer(self.memory))
        self.k, self.v, self.pages = k, v, pages

    def get_page_buffer_meta(self, slots):
        out = []
        for first in slots.tolist()[::P]:
            p = first // P
            out += [self.base + p * self.k, self.base + self.pages * self.k + p * self.v]
        return out, [self.k, self.v] * (len(slots) // P)

    def page(self, p):
        return bytes(self.memory[p * self.k:(p + 1) * self.k] + self.memory[self.pages * self.k + p * self.v:][:self.v])

    def slots(self, *pages):
        return Slots(s for p in pages for s in range(p * P, p * P + P))


class Pools(unittest.TestCase):
    def test_there_and_back(self):
        a, b = HostPool(6), HostPool(6)
        a.memory[:] = random.Random(1).randbytes(len(a.memory))
        pa, pb = (pools.Pool("kv", 0, h, h.slots(0)) for h in (a, b))
        self.assertEqual((pa.bytes, pa.sizes), (64, [24, 40]))
        page = bytearray(64)
        for from_, to in ((3, 1), (0, 5)):
            pools.read(pa.places(a.slots(from_), 1)[0], page)
            self.assertEqual(bytes(page), a.page(from_))
            pools.write(pb.places(b.slots(to), 1)[0], memoryview(page).toreadonly())
        self.assertEqual([b.page(i) for i in range(6)], [bytes(64), a.page(3), *[bytes(64)] * 3, a.page(0)])

    def test_slots_of_another_number_of_pages(self):
        h = HostPool(4)
        p = pools.Pool("kv", 0, h, h.slots(0))
        self.assertEqual(list(p.places(h.slots(), 0)), [])
        for slots, n in ((h.slots(0, 1), 3), (h.slots(0), 0), (None, 1), (Slots([0, 1]), 1)):
            with self.assertRaises(ValueError):
                p.places(slots, n)

    def test_pages_at_equal_distances(self):
        """The pool is asked once, and what is said afterwards is what it would say."""
        h = HostPool(9)
        asked, answer = [], h.get_page_buffer_meta
        h.get_page_buffer_meta = lambda slots: asked.append(slots) or answer(slots)
        p = pools.Pool("kv", 0, h, h.slots(0), h.slots(0, 1))
        before = len(asked)
        seed = random.randrange(1 << 30)
        r = random.Random(seed)
        with self.subTest(seed=seed):
            for _ in range(200):
                at = [r.randrange(9) for _ in range(r.randrange(5))]
                got, want = p.places(h.slots(*at), len(at)), answer(h.slots(*at))
                self.assertEqual((got.addresses, got.sizes * len(at)), want)
                first, end = sorted(r.choices(range(6), k=2))
                self.assertEqual(list(got[first:end]), list(got)[first:end])
        self.assertEqual(len(asked), before)
        for slots in ([1, 2, 3, 4], [P + 1, P + 2, P + 3, P + 4], [-P, -3, -2, -1]):
            with self.assertRaises(ValueError):
                p.places(Slots(slots), 1)

    def test_pieces_of_several_regions(self):
        h = HostPool(6)
        p = pools.Pool("kv", 0, h, h.slots(0), h.slots(0, 1))
        end = h.base + 6 * h.k
        for shared, want in (
                (pools.Shared([(h.base, len(h.memory), -1)]), lambda a: (0, a - h.base)),
                (pools.Shared([(h.base, 6 * h.k, -1), (end, 6 * h.v, -1)]), lambda a: (0, a - h.base) if a < end else (1, a - end)),
                (pools.Shared([(1, 2, -1), (h.base, len(h.memory), -1)]), lambda a: (1, a - h.base))):
            places = p.places(h.slots(5, 0, 3), 3)
            self.assertTrue(shared.covers(places))
            got = shared.pages(places)
            self.assertEqual(got.counts, [2, 2, 2])
            self.assertEqual(list(struct.iter_unpack("<IQI", got.pieces)), [(*want(a), n) for runs in places for a, n in runs])
        self.assertEqual(shared.pages(p.places(h.slots(), 0)), client.Pages([], b""))

    def test_names(self):
        keys = keys_of(tokens(1, 40))
        self.assertEqual(store.names(keys), [store.name(k) for k in keys])
        self.assertEqual(store.names([]), [])
        for bad in (keys[0][:-2], keys[0] + "00", "zz" + keys[0][2:], " " * 2 + keys[0][2:]):
            with self.assertRaises(ValueError):
                store.names([keys[1], bad])
            with self.assertRaises(ValueError):
                store.names([bad, keys[1][:128 - len(bad)]])


    def test_names_of_what_was_asked_for(self):
        keys = keys_of(tokens(1, 40))
        for name, got in (("all", keys), ("the front", keys[:7]), ("another list", [k + "" for k in keys]), ("more", keys + keys_of(tokens(2, 1))), ("its end", keys[3:]), ("others behind the first", keys[:1] + keys[2:]), ("none", [])):
            asked = store.Asked()
            self.assertEqual(asked.joined(keys), store.joined(keys), name)
            with unittest.mock.patch.object(store, "joined", side_effect=store.joined) as made:
                self.assertEqual(asked.take(got), b"".join(map(store.name, got)), name)
            self.assertEqual(made.call_count, 0 if got == keys[:len(got)] and got else 1, name)
            self.assertEqual(len(asked), int(name in ("its end", "none")), "what was taken is kept")
        asked = store.Asked(most=3)
        for k in keys[:5] + keys[4:5]:
            asked.joined([k])
        self.assertEqual((len(asked), [k for k in keys if k in asked._of]), (3, keys[2:5]))
        with self.assertRaises(ValueError):
            asked.joined([keys[0], keys[1][:-1]])
        self.assertEqual(len(asked), 3)


class FakeManager:
    """What is published, by group and name; sessions of it as the client's are."""

    def __init__(self):
        self.pages, self.spoiled, self.room, self.lost, self.leases, self.number = {}, set(), None, False, {}, 0
        self.published, self.asked, self.spins = [], 0, []

    def query(self, wants, mode=client.PREFIX, wait=0.0, spin=0.0):
        self.asked += 1
        self.spins.append(spin)
        if self.lost:
            raise client.Lost("on purpose")
        (group, names), = wants
        if isinstance(names, bytes):
            names = [names[i:i + 32] for i in range(0, len(names), 32)]
        if mode == client.DISCOVER:
            return client.Answer(client.CANDIDATES, positions=([i for i, n in enumerate(names) if (group, n) in self.pages],))
        hits = restorable.leading([i for i, n in enumerate(names) if (group, n) in self.pages], len(names))
        if not hits:
            return client.Answer(client.READY, "missing")
        self.number += 1
        self.leases[self.number] = (group, names[:hits])
        return client.Answer(client.READY, "found", Lease(self.number, 1, [hits], [0]))

    def release(self, lease):
        del self.leases[lease.index]

    def restore(self, lease, consumer, take):
        group, names = self.leases.pop(lease.index)
        for i, n in enumerate(names):
            if (group, n) in self.spoiled:
                self.spoiled.discard((group, n))
                del self.pages[(group, n)]
                raise client.Spoiled("on purpose")
            take(i, memoryview(self.pages[(group, n)]).toreadonly())

    def publish(self, blocks, write, root=("", "", "")):
        if self.lost:
            raise client.Lost("on purpose")
        return self._keep(blocks, write, root)._replace(there=())

    def _keep(self, blocks, write, root):
        self.published.append((blocks, root))
        there, present = [], 0
        for i, b in enumerate(blocks):
            if (b.group, b.name) in self.pages:
                present += 1
            elif self.room is None or len(self.pages) < self.room:
                page = bytearray(64)
                write(i, memoryview(page))
                self.pages[(b.group, b.name)] = bytes(page)
            there.append((b.group, b.name) in self.pages)
        return client.Published(sum(there) - present, present, 0, (0, 0), tuple(there))

    # The second route: base is where pool 0 lies.

    def _runs(self, pages):
        at = 0
        for n in pages.counts:
            runs = []
            for _ in range(n):
                number, offset, size = struct.unpack_from("<IQI", pages.pieces, at)
                assert number == 0
                runs.append((self.base + offset, size))
                at += 16
            yield runs
        assert at == len(pages.pieces)

    def publish_from(self, blocks, pages, root=("", "", "")):
        if self.lost:
            raise client.Lost("on purpose")
        runs = list(self._runs(pages))
        return self._keep(blocks, lambda i, slot: pools.read(runs[i], slot), root)

    def restore_into(self, lease, consumer, pages):
        group, names = self.leases.pop(lease.index)
        for i, (n, runs) in enumerate(zip(names, self._runs(pages), strict=True)):
            if (group, n) in self.spoiled:
                self.spoiled.discard((group, n))
                del self.pages[(group, n)]
                return client.RestoredInto(i, len(names), "mismatch")
            pools.write(runs, self.pages[(group, n)])
        return client.RestoredInto(len(names), len(names), "done")


    busy = staticmethod(lambda: False)  # a query would have to wait

    def fetch(self, group, names, pages, whole=False, spin=0.0):
        self.asked += 1
        self.spins.append(spin)
        if self.lost:
            raise client.Lost("on purpose")
        if self.busy():
            return None
        if isinstance(names, bytes):
            names = [names[i:i + 32] for i in range(0, len(names), 32)]
        if isinstance(pages, client.Lines):
            pages = self._spelt(pages)
        runs = list(self._runs(pages))
        assert len(runs) == len(names)
        hits = restorable.leading([i for i, n in enumerate(names) if (group, n) in self.pages], len(names))
        if not hits or whole and hits < len(names):
            return client.Fetched(0, 0, "done", "missing")
        self.number += 1
        self.leases[self.number] = (group, names[:hits])
        r = self.restore_into(Lease(self.number, 1, [hits], [0]), 0, client.Pages(pages.counts[:hits], pages.pieces[:16 * sum(pages.counts[:hits])]))
        self.fetched += r.good
        return client.Fetched(r.good, r.total, r.outcome, "found")

    fetched = 0

    @staticmethod
    def _spelt(pages):
        (n,), lines = struct.unpack_from("<I", pages.lines), list(struct.iter_unpack("<IQII", pages.lines[4:]))
        assert n == len(lines)
        places = struct.unpack(f"<{len(pages.places) // 8}Q", pages.places)
        return client.Pages([n] * len(places), b"".join(struct.pack("<IQI", pool, at + step * p, size) for p in places for pool, at, step, size in lines))


class FakeKeeper:
    up = True

    def __init__(self, session):
        self.session, self.offered, self.refused = session, False, ()

    @contextlib.contextmanager
    def use(self, lane, wait):
        if lane in self.refused:
            raise client.Lost("busy")
        yield self.session


class Storing(unittest.TestCase):
    shared = None
    fetches_all = False

    def setUp(self):
        self.m, self.host = FakeManager(), HostPool(32)
        self.host.memory[:] = random.Random(5).randbytes(len(self.host.memory))
        self.pool = pools.Pool("kv", 0, self.host, self.host.slots(0))
        self.k = FakeKeeper(self.m)
        self.s = store.Store(self.k, 1.0, {"id-of-a": "a"}, shared=self.shared)

    def put(self, seed, at, n, space=lore.Space(), **options):
        ids = tokens(seed, n)
        keys = keys_of(ids, lore.seed(space))
        book = lore.Lore(P)
        book.note(keys, ids, [], space)
        names = [store.name(k) for k in keys]
        return names, self.s.set(0, names, book.take(keys), self.pool.places(self.host.slots(*range(at, at + n)), n), **options)

    def get(self, names, at, **options):
        return self.s.get(0, names, self.pool.places(self.host.slots(*range(at, at + len(names))), len(names)), **options)

    def test_a_release_that_finds_the_connection_busy(self):
        """The lease of a restore that could not begin is let go of before the next question, and not forgotten."""
        if self.fetches_all:
            self.skipTest("asked and restored in one message: there is no lease")
        names, _ = self.put(1, 0, 3)
        busy = []
        query = self.m.query

        def asked(*args, **kwargs):
            answer = query(*args, **kwargs)
            self.k.refused = busy
            return answer

        self.m.query, busy[:] = asked, ["restores", "queries"]
        self.assertEqual(self.get(names, 10), [False] * 3)
        self.assertEqual(len(self.m.leases), 1, "nobody can be told")
        self.m.query, self.k.refused = query, ()
        self.assertEqual(self.s.there([(0, names)]), [[0, 1, 2]])
        self.assertEqual(self.m.leases, {})
        self.assertFalse(self.s.busy)

    def test_stored_and_restored(self):
        before = [self.host.page(i) for i in range(5)]
        names, ok = self.put(1, 0, 5)
        self.assertEqual(ok, [True] * 5)
        self.assertEqual(self.s.there([(0, names), (0, b"".join(names))]), [[0, 1, 2, 3, 4]] * 2)
        self.assertEqual(self.get(names, 10), [True] * 5)
        self.assertEqual([self.host.page(10 + i) for i in range(5)], before)
        blocks, root = self.m.published[0]
        self.assertEqual([b.parent for b in blocks], [client.NO_BLOCK, *names[:4]])
        self.assertEqual(([list(b.tokens) for b in blocks], root), ([list(tokens(1, 5)[i * P:][:P]) for i in range(5)], ("", "", "")))

    def test_a_page_that_is_gone_ends_the_prefix(self):
        names, _ = self.put(1, 0, 5)
        del self.m.pages[(0, names[2])]
        self.assertEqual(self.get(names, 10), [True, True, False, False, False])
        self.assertEqual(self.get(names, 20, whole=True), [False] * 5)
        self.assertEqual(self.m.leases, {}, "what is not used is given back")

    def test_a_spoiled_page_ends_the_prefix(self):
        names, _ = self.put(1, 0, 5)
        self.m.spoiled = {(0, names[3])}
        self.assertEqual(self.get(names, 10), [True, True, True, False, False])
        self.assertEqual([self.host.page(10 + i) for i in range(3)], [self.host.page(i) for i in range(3)])

    def test_a_page_of_another_length(self):
        """What the Manager says is its page is not copied in part, nor beyond."""
        if self.s._shared:
            self.skipTest("the Manager copies")
        for n in (63, 65):
            names, _ = self.put(n, 0, 3)
            self.m.pages[(0, names[1])] = bytes(n)
            before = self.host.page(11)
            self.assertEqual(self.get(names, 10), [False] * 3)
            self.assertEqual(self.host.page(11), before)

    def test_pages_that_keep_failing(self):
        names, _ = self.put(1, 0, 8)
        self.m.spoiled = {(0, n) for n in names}
        asked = self.m.asked
        self.assertEqual(self.get(names, 10), [False] * 8)
        self.assertLessEqual(self.m.asked - asked, store.TRIES)

    def test_refused(self):
        self.m.room = 3
        names, ok = self.put(1, 0, 5)
        self.assertEqual(ok, [True] * 3 + [False] * 2 if self.s._shared else [False] * 5)
        self.assertEqual(self.put(3, 0, 5, whole=True)[1], [False] * 5)
        self.m.room = None
        self.assertEqual(self.put(2, 0, 5)[1], [True] * 5, "later ones are stored all the same")
        self.assertEqual(self.put(1, 0, 5)[1], [True] * 5, "and so is this one")

    def test_who_is_in_a_call(self):
        """A flush joins the threads of those who ask and who restore."""
        names, _ = self.put(1, 0, 3)
        seen = []
        for name in ("query", "fetch"):
            if hasattr(self.m, name):
                setattr(self.m, name, lambda *a, call=getattr(self.m, name), **k: seen.append(self.s.busy) or call(*a, **k))
        self.s.there([(0, names)])
        self.get(names, 10)
        self.assertEqual(set(seen), {True})
        self.assertGreaterEqual(len(seen), 2)
        self.assertFalse(self.s.busy)

    def test_no_manager(self):
        names, _ = self.put(1, 0, 5)
        self.m.lost = True
        self.assertEqual((self.s.there([(0, names), (0, names)]), self.get(names, 10), self.put(2, 0, 5)[1]), ([[], []], [False] * 5, [False] * 5))

    def test_a_lease_that_is_not_restored_is_given_back(self):
        names, _ = self.put(1, 0, 5)
        self.k.refused = (keeping.RESTORES,)
        self.assertEqual((self.get(names, 10), self.m.leases), ([False] * 5, {}))

    def test_stopped(self):
        names, _ = self.put(1, 0, 5)
        self.s.stopped = "other weights"
        asked = self.m.asked
        self.assertEqual((self.s.there([(0, names)]), self.get(names, 10), self.put(1, 0, 5)[1]), ([[]], [False] * 5, [False] * 5))
        self.assertEqual(self.m.asked, asked)

    def test_roots(self):
        for space, root, named in ((lore.Space(None, "s"), ("", "", "s"), True), (lore.Space("id-of-a", None), ("", "a", ""), True),
                                   (lore.Space("id-of-a", "s"), ("", "a", "s"), True), (lore.Space("a caller's", None), ("", "", ""), False)):
            self.put(7, 0, 2, space)
            blocks, got = self.m.published[-1]
            self.assertEqual((got, [bool(len(b.tokens)) for b in blocks]), (root, [named] * 2), space)

    def test_unknown_pages_have_no_name(self):
        names = [store.name(k) for k in keys_of(tokens(9, 3))]
        ok = self.s.set(0, names, [lore.UNKNOWN] * 3, self.pool.places(self.host.slots(0, 1, 2), 3))
        blocks, _ = self.m.published[-1]
        self.assertEqual((ok, [b.tokens for b in blocks], [b.parent for b in blocks]), ([True] * 3, [()] * 3, [client.NO_BLOCK] * 3))
        self.assertEqual(self.s.counts.take()["unnamed"], 3)

    def test_long_questions_are_cut(self):
        names = [store.name(k) for k in keys_of(tokens(3, 40))]
        for n in names[::2]:
            self.m.pages[(0, n)] = b""
        before, store.MOST_NAMES = store.MOST_NAMES, 7
        self.addCleanup(setattr, store, "MOST_NAMES", before)
        self.assertEqual(self.s.there([(0, names), (0, b"".join(names))]), [list(range(0, 40, 2))] * 2)

    def test_random_lives(self):
        """Against a model: what is said to be stored is there with its bytes, whatever is lost, spoiled or refused."""
        seed = random.randrange(1 << 30)
        r = random.Random(seed)
        with self.subTest(seed=seed):
            want = {}  # name: bytes
            chains = [[store.name(k) for k in keys_of(tokens(100 + i, 6))] for i in range(8)]
            restored = 0
            for _ in range(2000):
                names = r.choice(chains)[:r.randrange(1, 7)]
                n = len(names)
                places = [r.sample(range(32), n)]
                where = self.pool.places(self.host.slots(*places[0]), n)
                self.m.lost = r.random() < 0.05
                self.m.room = r.choice((None, 10, 30))
                if r.random() < 0.1 and self.m.pages:
                    self.m.spoiled.add(r.choice(list(self.m.pages)))
                if r.random() < 0.1 and self.m.pages:
                    gone = r.choice(list(self.m.pages))
                    self.m.spoiled.discard(gone)
                    del self.m.pages[gone]
                if r.random() < 0.5:
                    for p in places[0]:
                        for address, size in self.pool.places(self.host.slots(p), 1)[0]:
                            pools.memory(address, size)[:] = r.randbytes(size)
                    # As the engine: a page's bytes follow from its name.
                    for name, runs in zip(names, where):
                        if name in want:
                            pools.write(runs, want[name])
                        page = bytearray(64)
                        pools.read(runs, page)
                        want[name] = bytes(page)
                    if all(self.s.set(0, names, [lore.UNKNOWN] * n, where)):
                        self.assertTrue(all((0, x) in self.m.pages for x in names))
                else:
                    for name, p, ok in zip(names, places[0], self.s.get(0, names, where)):
                        if ok:
                            restored += 1
                            self.assertEqual(self.host.page(p), want[name])
            self.assertEqual(self.m.leases, {})
            self.assertGreater(restored, 20)


    def test_a_restore_that_is_refused_gives_its_lease_back(self):
        names, _ = self.put(9, 0, 4)

        def refuse(*_):
            raise client.Refused(11)

        self.m.restore = self.m.restore_into = refuse
        self.assertEqual(self.get(names, 8), [False] * 4)
        self.assertEqual(self.m.leases, {})


class StoringFromPools(Storing):
    """The same where the Manager copies, one that does not know how to ask and restore in one."""

    def setUp(self):
        super().setUp()
        self.m.base, self.k.offered = self.host.base, True
        self.m.restore = self.m.publish = None
        self.fetches = []
        self.m.fetch = self.unknown
        self.s._shared = pools.Shared([(self.host.base, len(self.host.memory), -1)])

    def unknown(self, *_, **__):
        self.fetches.append(1)
        raise client.Refused(36)

    def test_it_is_asked_once_whether_it_can(self):
        names, _ = self.put(1, 0, 5)
        self.assertEqual((self.get(names, 10), self.get(names, 20), len(self.fetches)), ([True] * 5, [True] * 5, 1))

    def test_what_lies_elsewhere_is_not_covered(self):
        s, other = self.s._shared, HostPool(2)
        self.assertTrue(s.covers(self.pool.places(self.host.slots(0, 31), 2)))
        self.assertFalse(s.covers(pools.Pool("kv", 0, other, other.slots(0)).places(other.slots(0), 1)))
        self.assertFalse(s.covers([[(self.host.base + len(self.host.memory) - 1, 2)]]))


class StoringByFetching(StoringFromPools):
    """The same where it asks and restores in one."""

    fetches_all = True

    def setUp(self):
        super().setUp()
        del self.m.fetch

    test_it_is_asked_once_whether_it_can = None

    def test_one_exchange(self):
        names, _ = self.put(1, 0, 5)
        asked = self.m.asked
        got = self.s.get(0, b"".join(names), self.pool.places(self.host.slots(*range(10, 15)), 5))
        self.assertEqual((got, self.m.asked - asked), ([True] * 5, 1))
        self.assertEqual([self.host.page(10 + i) for i in range(5)], [self.host.page(i) for i in range(5)])
        self.assertEqual((self.get(names[::-1], 20), self.m.asked - asked, self.m.fetched), ([True] * 5, 2, 10))

    def test_where_it_would_wait_the_other_way_does(self):
        names, _ = self.put(1, 0, 5)
        self.m.busy = lambda: True
        self.assertEqual((self.get(names, 10), self.m.fetched), ([True] * 5, 0))
        self.m.busy = lambda: False
        self.assertEqual((self.get(names, 20), self.m.fetched), ([True] * 5, 5))

    def test_random_lives(self):
        r = random.Random(7)
        self.m.busy = lambda: r.random() < 0.2
        super().test_random_lives()
        self.assertGreater(self.m.fetched, 20)

    def test_a_restore_that_is_refused_gives_its_lease_back(self):
        self.m.busy = lambda: True
        super().test_a_restore_that_is_refused_gives_its_lease_back()

    def test_a_fetch_that_is_refused(self):
        names, _ = self.put(9, 0, 4)
        self.m.fetch = self.refuse
        self.assertEqual(self.get(names, 8), [False] * 4)
        del self.m.fetch
        self.assertEqual(self.get(names, 8), [True] * 4, "it is tried again")

    def refuse(self, *_, **__):
        raise client.Refused(11)


class StoringAtEqualDistances(StoringByFetching):
    """The same with pages at equal distances, of slots that divide them and of others."""

    def setUp(self):
        super().setUp()
        self.pool = pools.Pool("kv", 0, self.host, self.host.slots(0), self.host.slots(0, 1))
        self.assertEqual(self.pool._unit, 1)
        self.assertIsInstance(self.s._shared.lines(self.pool.places(self.host.slots(2), 1)), client.Lines)


class StoringOddPages(StoringByFetching):
    def setUp(self):
        super().setUp()
        self.host = HostPool(32, 23, 41)
        self.host.memory[:] = random.Random(5).randbytes(len(self.host.memory))
        self.m.base = self.host.base
        self.s._shared = pools.Shared([(self.host.base, len(self.host.memory), -1)])
        self.pool = pools.Pool("kv", 0, self.host, self.host.slots(0), self.host.slots(0, 1))
        self.assertEqual(self.pool._unit, P)
        self.assertIsInstance(self.s._shared.lines(self.pool.places(self.host.slots(2), 1)), client.Lines)

    def test_what_lies_elsewhere_is_not_covered(self):
        end = self.host.base + len(self.host.memory) - 1
        one = pools.Shared([(self.host.base, 32 * 23, -1)])  # keys alone
        self.assertIsNone(one.lines(self.pool.places(self.host.slots(2), 1)))
        self.assertFalse(self.s._shared.covers([[(end, 2)]]))


class Session:
    """A session as the keeper knows it: a socket whose other end is the Manager's."""

    def __init__(self, number):
        self.here, self.there = socket.socketpair()
        self.offered = False
        self.credentials, self.closed = Credentials(1, number, bytes(16)), threading.Event()

    def fileno(self):
        return self.here.fileno()

    def lane(self, name):
        return self

    def close(self):
        self.closed.set()
        self.here.close()
        self.there.close()


class ScriptedLink:
    """A connection whose other end has said all that it will."""

    def __init__(self, frames):
        self.frames, self.sent, self.ref = frames, [], 0

    def send(self, kind, payload=b"", ref=None, fd=None):
        if ref is None:
            self.ref += 1
            ref = self.ref
        self.sent.append(kind)
        return ref

    def deadline(self):
        return None

    def receive(self, until=None):
        if not self.frames:
            raise EOFError("it has said all")
        return self.frames.pop(0)


class Client(unittest.TestCase):
    def test_a_plan_in_parts_while_an_arena_is_asked_for(self):
        """What comes for a restore while another answer is waited for is the restore's."""
        n, page = 3, 4096
        fd = os.memfd_create("arena")
        self.addCleanup(os.close, fd)
        os.ftruncate(fd, n * page)
        for i in range(n):
            os.pwrite(fd, bytes([i + 1]) * page, i * page)
        plan = lambda first, slots: wire.Frame(
            wire.PLAN, 1, 0, 0, struct.pack("<IIIIII", 4, 1, 0, first, n, len(slots)) + b"".join(struct.pack("<IIIIQ", 9, i, 1, page, 0) for i in slots), [])
        s = object.__new__(client.Session)
        s._query = ScriptedLink([
            plan(0, [0]), plan(1, [1, 2]), wire.Frame(wire.ARENAS, 2, 0, 0, struct.pack("<IIIIQ", 1, 9, n, page, n * page), [os.dup(fd)]),
            wire.Frame(wire.RESTORED, 1, 0, 0, struct.pack("<II?", 4, 1, True), [])])
        s._own, s._others, s._answers, s._parts = {}, {}, {}, [[page]]
        got = {}
        s.restore(Lease(4, 1, [n], [9]), 0, lambda i, view: got.__setitem__(i, bytes(view[:1])))
        self.assertEqual((got, s._query.sent, s._answers), ({i: bytes([i + 1]) for i in range(n)}, [wire.START, wire.MAP_ARENAS, wire.COPIED], {}))
        s.unmap()


class Log:
    def warning(self, *_, **__):
        pass

    info = warning


class Keeping(unittest.TestCase):
    def setUp(self):
        self.made, self.refuse, self.again = [], 0, threading.Condition()

    def register(self):
        with self.again:
            if self.refuse:
                self.refuse -= 1
                raise client.Lost("nobody is there")
            self.made.append(Session(len(self.made) + 1))
            self.again.notify_all()
            return self.made[-1]

    def keeper(self):
        k = keeping.Keeper(self.register, Log())
        self.addCleanup(k.close)
        return k

    def session(self, n, k):
        """Waits for the n-th session to be the keeper's."""
        with self.again:
            self.assertTrue(self.again.wait_for(lambda: len(self.made) >= n, SOON_S))
        self.soon(lambda: k._session is self.made[n - 1])
        return self.made[n - 1]

    def soon(self, condition):
        done = threading.Event()
        for _ in range(SOON_S * 100):
            if condition():
                return
            done.wait(0.01)
        self.fail("it did not happen")

    def test_a_session_and_its_end(self):
        k = self.keeper()
        s = self.session(1, k)
        with k.use(keeping.QUERIES, 1) as a, k.use(keeping.PUBLISHES, 1) as b:
            self.assertIs(a, s)
            self.assertIs(b, s)
        k.close()
        self.assertTrue(s.closed.is_set())
        self.assertFalse(k._thread.is_alive())
        with self.assertRaises(client.Lost):
            with k.use(keeping.QUERIES, 1):
                pass
        k.close()

    def test_one_at_a_time(self):
        k = self.keeper()
        self.session(1, k)
        with k.use(keeping.QUERIES, 1):
            with self.assertRaises(client.Lost):
                with k.use(keeping.QUERIES, 0.01):
                    pass
            self.assertEqual(k.late, 1)
            self.assertTrue(k.up, "a busy connection is not a lost one")
            before, keeping.STUCK_S = keeping.STUCK_S, 0
            self.addCleanup(setattr, keeping, "STUCK_S", before)
            with self.assertRaises(client.Lost):
                with k.use(keeping.QUERIES, 1 << 20):  # one that lasts too long is not waited for
                    pass

    def test_a_hang_up_is_seen_by_itself(self):
        k = self.keeper()
        first = self.session(1, k)
        first.there.close()
        second = self.session(2, k)
        self.assertTrue(first.closed.wait(SOON_S))
        self.assertIsNot(first, second)

    def test_a_call_that_finds_out(self):
        k = self.keeper()
        first = self.session(1, k)
        with self.assertRaises(client.Lost):
            with k.use(keeping.PUBLISHES, 1):
                raise client.Lost("on purpose")
        self.session(2, k)
        self.assertTrue(first.closed.wait(SOON_S))

    def test_what_is_used_is_not_closed(self):
        k = self.keeper()
        first = self.session(1, k)
        with k.use(keeping.PUBLISHES, 1):
            first.there.close()
            self.soon(lambda: not k.up)
            self.assertFalse(first.closed.is_set())
        self.assertTrue(first.closed.wait(SOON_S))

    def test_it_tries_again(self):
        before, keeping.FIRST_RETRY_S = keeping.FIRST_RETRY_S, 0.001
        self.addCleanup(setattr, keeping, "FIRST_RETRY_S", before)
        self.refuse = 3
        k = self.keeper()
        self.assertIsNotNone(self.session(1, k))

    def test_a_model_of_which_nobody_knows_what_it_is(self):
        """Its files have changed since the engine loaded them: what is there now would be taken the next time."""
        tried, before = [], keeping.FIRST_RETRY_S
        keeping.FIRST_RETRY_S = 0
        self.addCleanup(setattr, keeping, "FIRST_RETRY_S", before)

        def register():
            tried.append(1)
            raise fingerprint.Changed("younger")

        k = keeping.Keeper(register, Log())
        k._thread.join(SOON_S)
        self.assertEqual((k._thread.is_alive(), len(tried), k.up), (False, 1, False))
        with self.assertRaises(client.Lost):
            with k.use(keeping.QUERIES, 1):
                pass
        k.close()

    def test_closed_while_it_tries(self):
        self.refuse = 1 << 30
        k = self.keeper()
        k.close()
        self.assertFalse(k._thread.is_alive())


class Question:
    def __init__(self, keys):
        self.keys, self.count, self.answer, self.dropped = keys, len(keys), None, False


LIMIT = 0.5  # seconds that one thing may take


class Rank:
    """An Admission, and what its questions hold: a slot a page that was found, as the linker's staging memory."""

    def __init__(self, budget=1.0):
        self.asked, self.held = [], 0
        self.turn = admission.Turn(LIMIT)
        self.a = admission.Admission(self.ask, self.drop, budget, self.turn)

    def ask(self, keys):
        self.asked.append(Question(keys))
        return self.asked[-1]

    def drop(self, q):
        assert not q.dropped, "given back twice"
        q.dropped = True
        if q.answer is not None:
            self.held -= q.answer

    def answer(self, q, hits):
        if q.answer is None and not q.dropped:
            q.answer = hits
            self.held += hits
            if not self.a.answered(q, hits):
                self.drop(q)

    def load(self, rid, keys):
        got = self.a.take(rid, keys)
        if got is not None:
            q, skip = got
            assert q.keys[skip:skip + len(keys)] == keys
            self.drop(q)
        return got is not None


K = [f"k{i}" for i in range(10)]


class Waiting(unittest.TestCase):
    """One rank."""

    def setUp(self):
        self.r = Rank()
        self.a = self.r.a

    def round(self, keys, now, rid="r"):
        """(hits, whether it is passed over)."""
        hits = self.a.looked(rid, keys, now) if keys else 0
        return hits, self.a.agreed(rid, self.a.verdict(rid, now))

    def test_it_waits_for_its_answer(self):
        self.assertEqual(self.round(K[:6], 0), (0, True))
        self.assertEqual(self.round(K[:6], 0.5), (0, True))
        self.assertEqual(len(self.r.asked), 1, "asked once")
        self.r.answer(self.r.asked[0], 4)
        self.assertEqual(self.round(K[:6], 0.6), (4, False))
        self.assertTrue(self.r.load("r", K[:4]))
        self.a.admitted("r")
        self.assertEqual((self.r.held, len(self.a)), (0, 0))

    def test_what_cannot_be_looked_up_now_goes_at_once(self):
        ask, self.a._ask = self.a._ask, lambda keys: None
        self.assertEqual(self.round(K[:6], 0), (0, False))
        self.a._ask = ask
        self.assertEqual(self.round(K[:5], 0.1), (0, False), "it computes, and is not asked for again")
        self.assertFalse(self.r.load("r", K[:1]))
        self.a.admitted("r")
        self.assertEqual((self.r.asked, len(self.a)), ([], 0))

    def test_a_miss_goes_at_once(self):
        self.round(K[:6], 0)
        self.r.answer(self.r.asked[0], 0)
        self.assertEqual(self.round(K[:6], 0.1), (0, False))

    def test_its_time_is_up(self):
        self.round(K[:6], 0)
        self.assertEqual(self.round(K[:6], 0.99), (0, True))
        self.assertEqual(self.round(K[:6], 1.0), (0, False))
        self.r.answer(self.r.asked[0], 6)  # too late
        self.assertEqual((self.r.held, self.round(K[:6], 1.1)), (0, (0, False)))
        self.assertEqual(len(self.r.asked), 1)

    def test_a_manager_that_hangs_costs_one_limit(self):
        """The thread that asks has been at one thing for too long: who waits goes, and who comes does not wait."""
        self.r.turn.begins(0)
        for i in range(64):
            self.assertEqual(self.round(K[:6], 0.1, f"early {i}"), (0, True))
        self.assertEqual({self.round(K[:6], LIMIT - 0.01, f"early {i}") for i in range(64)}, {(0, True)})
        self.assertEqual({self.round(K[:6], LIMIT, f"early {i}") for i in range(64)}, {(0, False)})
        self.assertEqual(len(self.r.asked), 64)
        self.assertTrue(all(q.dropped for q in self.r.asked))
        for i in range(64):
            self.assertEqual(self.round(K[:6], LIMIT + i, f"late {i}"), (0, False))
        self.assertEqual(len(self.r.asked), 64, "nothing is looked up meanwhile")
        self.r.turn.ends()
        self.assertEqual(self.round(K[:6], 100, "early 0"), (0, False), "what was let go computes")
        self.assertEqual(self.round(K[:6], 100, "afterwards"), (0, True))
        self.r.turn.begins(100)
        self.r.answer(self.r.asked[-1], 6)
        self.r.turn.ends()
        self.r.turn.begins(100 + LIMIT)  # something else, which takes long too: what is here is used
        self.assertEqual(self.round(K[:6], 100 + 3 * LIMIT, "afterwards"), (6, False))
        self.assertTrue(self.r.load("afterwards", K[:6]))
        self.assertEqual(self.r.held, 0)

    def test_a_changed_prompt_is_not_looked_up_anew_while_the_manager_hangs(self):
        self.round(K[2:6], 0)
        self.r.turn.begins(0)
        self.assertEqual(self.round(K[:6], LIMIT), (0, False))
        self.assertEqual((len(self.r.asked), self.r.asked[0].dropped), (1, True))

    def test_an_answer_within_a_round_is_for_the_next(self):
        """Else the request would go without what was just found."""
        self.assertEqual(self.a.looked("r", K[:6], 0), 0)
        self.r.answer(self.r.asked[0], 6)
        self.assertTrue(self.a.agreed("r", self.a.verdict("r", 0)))
        self.assertEqual(self.round(K[:6], 0.1), (6, False))

    def test_the_device_cache_has_overtaken_it(self):
        """SGLang does not ask the linker about a prompt that the device has: without this it would wait for ever."""
        self.round(K[:6], 0)
        self.assertEqual(self.round((), 0.1), (0, False))
        self.r.answer(self.r.asked[0], 6)
        self.assertEqual((self.r.held, self.r.asked[0].dropped), (0, True))

    def test_the_device_cache_has_a_part(self):
        self.round(K[:6], 0)
        self.assertEqual(self.round(K[2:6], 0.1), (0, True))
        self.r.answer(self.r.asked[0], 5)
        self.assertEqual(self.round(K[2:6], 0.2), (3, False))
        self.assertEqual(self.round(K[4:6], 0.3), (1, False), "it waits for room, and the device has more by then")
        self.assertTrue(self.r.load("r", K[4:5]))
        self.a.admitted("r")
        self.assertEqual((len(self.r.asked), self.r.held), (1, 0))

    def test_the_device_cache_has_lost_a_part(self):
        self.round(K[2:6], 0)
        self.assertEqual(self.round(K[:6], 0.1), (0, True))
        self.assertEqual((len(self.r.asked), self.r.asked[0].dropped), (2, True))
        self.r.answer(self.r.asked[0], 4)
        self.assertEqual(self.round(K[:6], 0.2), (0, True), "an answer to what is not asked any more")
        self.r.answer(self.r.asked[1], 6)
        self.assertEqual(self.round(K[:6], 0.3), (6, False))

    def test_aborted(self):
        for answered in (False, True):
            self.round(K[:6], 0, f"r{answered}")
            q = self.r.asked[-1]
            if answered:
                self.r.answer(q, 6)
            self.a.released(f"r{answered}")
            self.r.answer(q, 6)
            self.assertEqual((self.r.held, len(self.a), q.dropped), (0, 0, True))
        self.a.released("nobody")

    def test_a_load_of_what_was_not_found(self):
        self.round(K[:6], 0)
        self.assertFalse(self.r.load("r", K[:3]))
        self.r.answer(self.r.asked[0], 4)
        self.assertFalse(self.r.load("r", K[:5]))
        self.assertFalse(self.r.load("r", K[1:3]))
        self.assertFalse(self.r.load("another", K[:3]))

    def test_nobody_is_known(self):
        self.assertEqual((self.a.verdict("r", 0), self.a.agreed("r", admission.GO)), (admission.GO, False))

    def test_random_lives_of_ranks(self):
        """Ranks whose answers differ and come at other times do the same with each request in each round; nobody waits beyond the budget; whatever is
        found is loaded or given back."""
        seed = random.randrange(1 << 30)
        r = random.Random(seed)
        with self.subTest(seed=seed):
            loads = expired = overtaken = stuck = 0
            for ranks in (1, 2, 3):
                all_ranks = [Rank() for _ in range(ranks)]
                now, live, number = 0.0, {}, 0
                for _ in range(1500):
                    now += r.random() * 0.1
                    if len(live) < 5:
                        number += 1
                        live[f"r{number}"] = [r.randrange(0, 3), r.randrange(3, 11), None]  # what the device has, pages in all, since when it waits
                    for rank in all_ranks:
                        if r.random() < 0.1:
                            rank.turn.ends()
                        elif r.random() < 0.1:
                            rank.turn.begins(now - r.random() * 2 * LIMIT)
                        waiting = [q for q in rank.asked if q.answer is None and not q.dropped]
                        if waiting and r.random() < 0.4:
                            q = r.choice(waiting)
                            rank.answer(q, r.randrange(q.count + 1))
                    for rid in list(live):
                        request = live[rid]
                        if r.random() < 0.1:
                            request[0] = r.choice((request[1], r.randrange(request[1])))  # the device's part changes
                        if r.random() < 0.03:
                            for rank in all_ranks:
                                rank.a.released(rid)
                            del live[rid]
                            continue
                        device, total, since = request
                        keys = [f"{rid}.{i}" for i in range(device, total)]
                        hits = [rank.a.looked(rid, keys, now) for rank in all_ranks] if keys else [0] * ranks
                        waits = [q for rank in all_ranks if rank.turn.stuck(now) for q in [rank.a._entries.get(rid)] if keys and q.state == admission._ASKED]
                        agreed = max(rank.a.verdict(rid, now) for rank in all_ranks)
                        if waits:
                            stuck += 1
                            self.assertEqual(agreed, admission.EXPIRE, "nobody waits for a rank whose Manager hangs")
                        passed = {rank.a.agreed(rid, agreed) for rank in all_ranks}
                        self.assertEqual(len(passed), 1, "all ranks do the same")
                        if passed == {True}:
                            request[2] = now if since is None else since
                            self.assertLess(now - request[2], 1.0, "it waits within its budget")
                            continue
                        expired += agreed == admission.EXPIRE
                        overtaken += not keys and since is not None
                        if r.random() < 0.3:
                            continue  # no room in the batch
                        n = min(hits) if agreed != admission.EXPIRE else 0
                        if n:
                            self.assertTrue(all(rank.load(rid, keys[:n]) for rank in all_ranks))
                            loads += 1
                        for rank in all_ranks:
                            rank.a.admitted(rid)
                        del live[rid]
                for rank in all_ranks:
                    rank.a.clear()
                    for q in rank.asked:
                        rank.answer(q, q.count)
                    self.assertEqual((rank.held, len(rank.a)), (0, 0))
            self.assertGreater(min(loads, expired, overtaken, stuck), 5, "the test has seen too little")


class StagingMemory(unittest.TestCase):
    def test_stored_from_it_and_restored_into_it(self):
        """As the linker does it: the Manager copies between its pool and slots."""
        s, m = staging.Staging(6, 64), FakeManager()
        m.base, keeper = s.base, FakeKeeper(m)
        keeper.offered = True
        kept = store.Store(keeper, 1.0, shared=pools.Shared([s.region()]))
        names = store.names(keys_of(tokens(1, 3)))
        for i, slot in enumerate((4, 0, 2)):
            s.view(slot)[:] = bytes([i + 1]) * 64
        self.assertEqual(kept.set(0, names, [lore.UNKNOWN] * 3, s.places([4, 0, 2])), [True] * 3)
        self.assertEqual(kept.get(0, names, s.places([1, 3, 5])), [True] * 3)
        self.assertEqual([bytes(s.view(i)) for i in (1, 3, 5)], [bytes([i + 1]) * 64 for i in range(3)])

    def test_answers_are_looked_for_as_long_as_they_take(self):
        """And not at all if that is more than the setting, or if nothing is set."""
        s, m = staging.Staging(6, 64), FakeManager()
        m.base, keeper = s.base, FakeKeeper(m)
        keeper.offered = True
        names = store.names(keys_of(tokens(1, 3)))
        for spin_s, rate, want in ((500e-6, 1e6, [150e-6, 342e-6]), (300e-6, 1e6, [150e-6, 0]), (500e-6, 1, [150e-6, 0]), (0, 1e6, [0, 0])):
            with unittest.mock.patch.object(store, "COPIED_A_S", rate):
                kept = store.Store(keeper, 1.0, shared=pools.Shared([s.region()]), spin_s=spin_s)
                m.spins.clear()
                kept.there([(0, names)])
                kept.get(0, names, s.places([1, 3, 5]))
                for got, expected in zip(m.spins, want, strict=True):
                    self.assertAlmostEqual(got, expected)

    def test_slots(self):
        s = staging.Staging(4, 4096)
        a = s.take(3)
        self.assertEqual((len(set(a)), s.take(2), s.free), (3, None, 1))
        for i in a:
            s.view(i)[:] = bytes([i + 1]) * 4096
            ((address, size),), = s.places([i])
            self.assertEqual(bytes(pools.memory(address, size)), bytes([i + 1]) * 4096)
        s.give(a)
        self.assertEqual(s.free, 4)
        self.assertTrue(pools.Shared([s.region()]).covers(s.places(range(4))))


if __name__ == "__main__":
    unittest.main()
