"""The connector's decisions and threads, without vLLM and without a Manager: python3 python/tests/vllm_check.py."""

import array
import fcntl
import itertools
import os
import pathlib
import random
import resource
import select
import socket
import sys
import tempfile
import threading
import time
import types
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from perigee import client  # noqa: E402
from perigee.client import Credentials, Lease, fingerprint  # noqa: E402
from perigee.vllm import broker as brokering  # noqa: E402
from perigee.vllm import adapters, breaker, keeper, messages, scheduling, weights, working  # noqa: E402
from perigee.vllm import trace as tracing  # noqa: E402

B = 4
SESSION = Credentials(7, 1, bytes(16))


class Log:
    def warning(self, *_, **__):
        pass

    info = warning


class Request:
    def __init__(self, ident, tokens, salt=None, lora=None):
        self.request_id, self.cache_salt, self.lora_request = ident, salt, lora
        self.all_token_ids = list(tokens)
        self.mm_features, self.prompt_embeds, self.prompt_is_token_ids, self.resumable = [], None, None, False
        self.skip_reading_prefix_cache, self.num_preemptions, self.num_computed_tokens = False, 0, 0

    @property
    def num_tokens(self):
        return len(self.all_token_ids)

    @property
    def block_hashes(self):
        return [bytes([i + 1]) * 32 for i in range(self.num_tokens // B)]


class Broker:
    """Answers when it is told to, and counts what it lends."""

    def __init__(self):
        self.credentials, self.asked, self.lent, self.number = SESSION, [], set(), 0

    def ask(self, names, wait, request=""):
        q = brokering.Query(names, wait, request)
        self.asked.append(q)
        return q

    def answer(self, q, hits):
        if hits == 0 or q.dropped:
            q.state = brokering.NOTHING
            return
        self.number += 1
        q.lease, q.hits, q.session = Lease(self.number, 1, [hits], [0]), hits, SESSION
        self.lent.add(self.number)
        q.state = brokering.READY

    def drop(self, q):
        q.dropped = True
        if q.lease is not None:
            self.lent.discard(q.lease.index)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Scheduling(unittest.TestCase):
    def setUp(self):
        self.b, self.clock = Broker(), Clock()
        self.s = scheduling.Scheduling(self.b, B, lambda lora: (lora.digest, lora.stamp) if lora.known else None, budget_s=1.0, clock=self.clock)

    def test_one_token_is_left(self):
        for n, blocks in ((4, 0), (5, 1), (8, 1), (9, 2)):
            r = Request(f"r{n}", range(n))
            got = self.s.matched(r, 0)
            if blocks == 0:
                self.assertEqual(got, (0, False))
                continue
            self.assertEqual(got, (None, False))
            q = self.b.asked[-1]
            self.assertEqual(len(q.names), 32 * blocks)
            self.b.answer(q, blocks)
            self.assertEqual(self.s.matched(r, 0), (blocks * B, True))
            self.assertEqual(self.s.matched(r, 0), (blocks * B, True), "asking again changes nothing")

    def test_not_known_yet_ends(self):
        r = Request("r", range(20))
        self.assertEqual(self.s.matched(r, 0), (None, False))
        self.clock.now = 0.99
        self.assertEqual(self.s.matched(r, 0), (None, False))
        self.clock.now = 1.0
        self.assertEqual(self.s.matched(r, 0), (0, False))
        self.b.answer(self.b.asked[0], 4)  # too late
        self.assertEqual(self.s.matched(r, 0), (0, False))
        self.assertEqual((len(self.b.asked), self.b.lent), (1, set()))

    def test_an_adapter_that_is_being_read(self):
        lora = types.SimpleNamespace(known=False, digest=None, stamp=("s",), lora_name="a", lora_path="/a")
        r = Request("r", range(20), lora=lora)
        self.assertEqual(self.s.matched(r, 0), (None, False))
        self.assertEqual(self.b.asked, [])
        lora.known, lora.digest = True, bytes(range(32))
        self.s.matched(r, 0)
        want = client.block_name(bytes([1]) * 32, client.request_id(lora=lora.digest))
        self.assertEqual(self.b.asked[0].names[:32], want)
        save, = self.s.step({"r": 20}, lambda _: range(5)).saves
        self.assertEqual(save.adapter, ("/a", ("s",)))

    def test_an_adapter_that_is_left_alone_waits_for_nothing(self):
        r = Request("r", range(20), lora=types.SimpleNamespace(known=True, digest=None, stamp=None, lora_name="a", lora_path="/a"))
        self.s.arrived(r)
        self.assertEqual(self.s.matched(r, 0), (0, False))
        self.assertEqual((self.b.asked, self.s.step({"r": 20}, lambda _: range(5)).saves), ([], []))

    def test_the_load(self):
        r = Request("r", range(20))
        self.s.matched(r, 4)
        self.b.answer(self.b.asked[0], 3)
        self.assertEqual(self.s.matched(r, 8), (2 * B, True), "the engine has one more by now")
        self.s.allocated(r, [10, 11, 12, 13, 14], 2 * B)
        step = self.s.step({}, None)
        self.assertEqual([(x.request, x.lease.hits, x.blocks) for x in step.loads], [("r", [3], [-1, 12, 13])])
        self.assertEqual(self.s.step({}, None).loads, [])
        self.s.allocated(r, [], 0)  # the second call
        self.s.ended(r)
        self.assertEqual(len(self.b.lent), 1, "the workers' lease is not the scheduler's to give up")

    def test_a_lease_that_a_rank_could_not_begin_with_is_given_up(self):
        """A rank's blocks may be reported before all ranks have ended. A load that went well is the Manager's to end."""
        first, second = Request("first", range(20)), Request("second", range(20))
        for r, where in ((first, [1, 2, 3, 4, 5]), (second, [6, 7, 8, 9, 10])):
            self.s.matched(r, 0)
            self.b.answer(self.b.asked[-1], 3)
            self.s.matched(r, 0)
            self.s.allocated(r, where, 3 * B)
        self.s.step({}, None)
        self.s.restored([], {7, 8})
        self.assertEqual(len(self.b.lent), 2)
        self.s.ended(second)  # its client has left meanwhile
        self.s.restored(["first"], set())
        self.s.restored(["second"], set())
        self.assertEqual((self.b.lent, self.s.loading), ({1}, {}))
        self.assertEqual([q.dropped for q in self.b.asked], [False, True])

    def test_what_the_engine_had_is_gone(self):
        r = Request("r", range(20))
        self.s.matched(r, 8)
        self.b.answer(self.b.asked[0], 2)
        self.assertEqual(self.s.matched(r, 4), (None, False), "asked again, from where it is now")
        self.assertEqual((len(self.b.asked[1].names), self.b.lent), (3 * 32, set()))

    def test_left_alone(self):
        for name, value in (("mm_features", [1]), ("prompt_embeds", 1), ("prompt_is_token_ids", [True]), ("resumable", True)):
            r = Request(name, range(20))
            setattr(r, name, value)
            self.s.arrived(r)
            self.assertEqual(self.s.matched(r, 0), (0, False))
            self.assertEqual(self.s.step({name: 20}, lambda _: range(5)).saves, [])
        self.assertEqual(self.b.asked, [])

    def test_saves(self):
        r = Request("r", range(10, 30), salt="s")
        self.s.arrived(r)
        first, = self.s.step({"r": 9}, lambda _: [7, 8, 9]).saves
        self.assertEqual((first.blocks, first.parent, first.salt), ([7, 8], client.NO_BLOCK, "s"))
        self.assertEqual(array.array("I", first.tokens).tolist(), list(range(10, 18)))
        r.num_computed_tokens = 9
        self.assertEqual(self.s.step({"r": 1}, lambda _: [7, 8, 9]).saves, [])
        second, = self.s.step({"r": 11}, lambda _: [7, 8, 9, 3, 2]).saves
        self.assertEqual((second.blocks, second.parent), ([9, 3, 2], first.names[-1]))
        self.s.ended(r)
        self.assertEqual(self.s.step({}, None).finished, ["r"])

    def test_a_reset(self):
        """All is asked for and saved anew; the steps say how often it was reset, and whether something was computed since."""
        waiting, preempted = Request("waiting", range(20)), Request("preempted", range(20))
        for r in (waiting, preempted):
            self.s.arrived(r)
        self.s.matched(waiting, 0)
        self.b.answer(self.b.asked[0], 3)
        first = self.s.step({"preempted": 20}, lambda _: range(5))
        self.assertEqual((first.weights, first.fresh, len(first.saves)), (0, False, 1))
        preempted.num_preemptions = 1
        self.s.reset()
        self.assertEqual(self.b.lent, set())
        self.assertEqual(self.s.matched(waiting, 0), (None, False))
        self.assertEqual(len(self.b.asked), 2, "asked again")
        steps = [self.s.step(t, lambda _: range(5)) for t in ({}, {"preempted": 8}, {"preempted": 8}, {})]
        self.assertEqual([(s.weights, s.fresh) for s in steps], [(1, True), (1, True), (1, False), (1, False)])
        self.assertEqual(steps[1].saves[0].blocks, [0, 1])

    def test_a_lease_of_another_session(self):
        r = Request("r", range(20))
        self.s.matched(r, 0)
        self.b.answer(self.b.asked[0], 3)
        self.b.credentials = Credentials(7, 2, bytes(16))
        self.assertEqual(self.s.matched(r, 0), (None, False), "asked again, of the one that is there")
        self.assertEqual((len(self.b.asked), self.b.lent), (2, set()))

    def test_random_lives(self):
        """Whatever happens to requests: every lease is the workers' exactly once, or given up."""
        seed = random.randrange(1 << 30)
        r = random.Random(seed)
        with self.subTest(seed=seed):
            live, loads, given = {}, 0, 0
            for i in range(5000):
                self.clock.now += r.random() * 0.05
                if len(live) < 6:
                    q = Request(f"r{i}", range(r.randrange(1, 40)))
                    live[q.request_id] = q
                    self.s.arrived(q)
                q = r.choice(list(live.values()))
                match r.choices(range(6), (4, 4, 4, 4, 1, 1))[0]:
                    case 0 | 1:
                        got, later = self.s.matched(q, r.randrange(q.num_tokens // B + 1) * B)
                        if got and r.random() < 0.7:
                            self.s.allocated(q, range(100), got if r.random() < 0.9 else 0)
                    case 2 | 3:
                        waiting = [a for a in self.b.asked[-8:] if a.state == brokering.ASKED]
                        if waiting:
                            a = r.choice(waiting)
                            self.b.answer(a, r.randrange(len(a.names) // 32 + 1))
                    case 4:
                        q.num_preemptions += 1
                    case 5:
                        self.s.ended(live.pop(q.request_id))
                for x in self.s.step({}, None).loads:
                    loads += 1
                    self.assertIn(x.lease.index, self.b.lent)
                    self.assertEqual(len(x.blocks), x.lease.hits[0])
                    bad = r.random() < 0.3
                    if not bad:
                        self.b.lent.discard(x.lease.index)
                    self.s.restored([x.request], {b for b in x.blocks if b >= 0} if bad else set())
            for q in live.values():
                self.s.ended(q)
            self.s.step({}, None)
            self.assertEqual((self.b.lent, self.s.tracked, self.s.loading), (set(), {}, {}))
            self.assertGreater(loads, 20)


class FakeSession:
    credentials = SESSION

    def __init__(self):
        self.fault, self.closed, self.published = None, 0, []
        self.present = 0  # of the first blocks of a publish
        self.go, self.restoring = threading.Event(), threading.Event()
        self.go.set()
        self.here, self.there = socket.socketpair()

    def fileno(self):
        return self.here.fileno()

    def restore(self, lease, consumer, take):
        self.restoring.set()
        self.go.wait()
        for i in range(lease.hits[0]):
            if self.fault and i == 1:
                raise self.fault
            take(i, bytes([lease.index]))

    def publish(self, blocks, write, **options):
        self.go.wait()
        if self.fault:
            raise self.fault
        for i in range(self.present, len(blocks)):
            write(i, None)
        options.pop("copied")()
        self.published.append((blocks, options))
        return client.Published(len(blocks), 0, 0, (5, 6))

    def unmap(self):
        pass

    def close(self):
        self.closed += 1


class FakePages:
    def __init__(self):
        self.written, self.taken = {}, []

    def write(self, block, page):
        self.written[block] = page

    def read(self, block, slot):
        self.taken.append(block)


def joining(session):
    return working.Joining(lambda c: session, keeper=keeper.Keeper())


class Working(unittest.TestCase):
    def setUp(self):
        self.session, self.pages = FakeSession(), FakePages()
        self.joining = joining(self.session)

    def loads(self, *loads):
        loader = working.Loader(self.joining, self.pages, 0, Log())
        for x in loads:
            loader.submit(x)
        loader.close()
        return loader.take(), loader.take()

    def test_a_load(self):
        got, again = self.loads(messages.Load("r", SESSION, Lease(3, 1, [3], [0]), [-1, 8, 9]))
        self.assertEqual((got, again), (({"r"}, set()), (set(), set())))
        self.assertEqual(self.pages.written, {8: b"\3", 9: b"\3"})

    def test_what_is_traced_of_a_load(self):
        traced = []
        loader = working.Loader(self.joining, self.pages, 0, Log(), trace=lambda *a: traced.append(a[0]))
        loader.submit(messages.Load("r", SESSION, Lease(3, 1, [3], [0]), [-1, 8, 9]))
        loader.close()
        self.assertEqual(traced, ["restore_start", "first_page", "engine_ready"])

    def test_a_load_that_fails_is_bad_as_a_whole(self):
        for fault in (client.Spoiled("x"), client.Lost("x"), client.Refused(3), ValueError("x")):
            self.session.fault, self.joining = fault, joining(self.session)
            got, again = self.loads(messages.Load("r", SESSION, Lease(3, 1, [3], [0]), [-1, 8, 9]))
            self.assertEqual((got, again), (({"r"}, {8, 9}), (set(), set())), fault)

    def test_no_session(self):
        def refuse(_):
            raise client.Lost("nobody is there")
        self.joining = working.Joining(refuse, keeper=keeper.Keeper())
        got, _ = self.loads(messages.Load("a", SESSION, Lease(3, 1, [1], [0]), [8]), messages.Load("b", SESSION, Lease(4, 1, [1], [0]), [9]))
        self.assertEqual(got, ({"a", "b"}, {8, 9}))

    def test_a_session_that_could_not_be_joined_is_tried_again(self):
        clock, tried, refusals = Clock(), [], [client.Refused(11), OSError("full"), None]

        def make(_):
            tried.append(clock.now)
            if (fault := refusals.pop(0)) is not None:
                raise fault
            return self.session

        j = working.Joining(make, clock, keeper.Keeper())
        outcomes = []
        for now in (0.0, 0.9, 1.0, 2.9, 3.0, 3.1):
            clock.now = now
            try:
                with j.use(SESSION):
                    outcomes.append("joined")
            except (client.PerigeeError, OSError) as e:
                outcomes.append(type(e).__name__)
        self.assertEqual((outcomes, tried), (["Refused", "Lost", "OSError", "Lost", "joined", "joined"], [0.0, 1.0, 3.0]))
        j.retire(None)

    def test_a_session_that_ends_is_let_go_of_without_a_step(self):
        """At once if nobody uses it, and else by its last user; and once."""
        closed = threading.Event()
        for used in (False, True):
            session = FakeSession()
            closed.clear()
            session.close = lambda: (setattr(session, "closed", session.closed + 1), closed.set())
            j = joining(session)
            with j.use(SESSION):
                if used:
                    session.there.close()
                    end = time.monotonic() + 60
                    while not j._joined[SESSION].dead:
                        j._watcher.join(0.001)
                        self.assertLess(time.monotonic(), end, "it was not seen that the session has ended")
                    self.assertEqual(session.closed, 0)
            session.there.close()
            self.assertTrue(closed.wait(60))
            with self.assertRaises(client.Lost):
                with j.use(SESSION):
                    pass
            j.close()
            j._retire()
            self.assertEqual((session.closed, j._watcher.is_alive()), (1, False))
            session.here.close()

    def test_a_lost_session_is_closed_once(self):
        self.session.fault = client.Lost("x")
        self.loads(*[messages.Load(f"r{i}", SESSION, Lease(3, 1, [3], [0]), [1, 2, 3]) for i in range(3)])
        self.assertEqual(self.session.closed, 1)

    def test_a_load_that_stands_still_is_given_up_and_writes_nothing_any_more(self):
        clock, traced = Clock(), []
        self.session.go.clear()
        loader = working.Loader(self.joining, self.pages, 0, Log(), 1.0, lambda *a: traced.append(a), clock)
        load = messages.Load("a", SESSION, Lease(3, 1, [2], [0]), [-1, 8])
        loader.submit(load)
        self.assertTrue(self.session.restoring.wait(60))
        loader.submit(messages.Load("b", SESSION, Lease(4, 1, [1], [0]), [9]))
        clock.now = 0.9
        self.assertEqual(loader.take(), (set(), set()))
        clock.now = 1.0
        self.assertEqual(loader.take(), ({"a", "b"}, {8, 9}), "the one behind it, too: it costs one limit")
        loader.submit(messages.Load("c", SESSION, Lease(5, 1, [1], [0]), [10]))
        self.assertEqual(loader.take(), ({"c"}, {10}), "at once")
        self.session.go.set()
        loader._queue.put(None)
        loader._thread.join()
        self.assertEqual((self.pages.written, loader.take()), ({}, (set(), set())))
        self.assertEqual([e[:2] for e in traced if e[0] == "restore_failed"], [("restore_failed", r) for r in "abc"])
        # It moves again: what comes now is begun.
        again = working.Loader(self.joining, self.pages, 0, Log(), 1.0, clock=clock)
        again._silence.stuck = True
        again._queue.put(load)  # one that was given up
        again._queue.put(None)
        again._thread.join()
        self.assertFalse(again._silence.stuck)

    def test_loads_of_other_weights(self):
        """Those that are under way are given up, those that come are refused: blocks are reported, and no page is written any more."""
        self.session.go.clear()
        loader = working.Loader(self.joining, self.pages, 0, Log())
        loader.submit(messages.Load("a", SESSION, Lease(3, 1, [2], [0]), [-1, 8]))
        self.assertTrue(self.session.restoring.wait(60))
        loader.give_up()
        loader.refuse(messages.Load("b", SESSION, Lease(4, 1, [1], [0]), [9]))
        self.assertEqual(loader.take(), ({"a", "b"}, {8, 9}))
        self.session.go.set()
        loader.submit(messages.Load("c", SESSION, Lease(5, 1, [1], [0]), [10]))
        loader.close()
        self.assertEqual((loader.take(), self.pages.written, loader._silence.open), (({"c"}, set()), {10: b"\5"}, 0))

    def test_pages_keep_a_load_going(self):
        clock, loader = Clock(), None

        class Slow(FakeSession):
            def restore(self, lease, consumer, take):
                for i in range(lease.hits[0]):
                    clock.now += 0.9
                    seen.append(loader.take())
                    take(i, b"x")

        seen, self.joining = [], joining(Slow())
        loader = working.Loader(self.joining, self.pages, 0, Log(), 1.0, clock=clock)
        loader.submit(messages.Load("a", SESSION, Lease(3, 1, [5], [0]), [1, 2, 3, 4, 5]))
        loader._queue.put(None)
        loader._thread.join()
        self.assertEqual((seen, loader.take()), ([(set(), set())] * 5, ({"a"}, set())))

    def test_after_a_step_that_waited_in_vain_saves_pause(self):
        clock = Clock()
        s = working.Saver(self.joining, self.pages, 0, B, 0.05, Log(), clock=clock)
        self.session.go.clear()
        s.begin(self.step())
        s.end()
        self.session.go.set()
        self.assertTrue(s._last.finished.wait(60))
        clock.now = 0.9
        s.begin(self.step(blocks=(7,)))
        s.end()
        self.assertEqual((self.pages.taken, s._backoff.strikes), ([], 1))
        clock.now, s._wait_s = 1.0, 60
        s.begin(self.step(blocks=(8,)))
        s.end()
        s.close()
        self.assertEqual((self.pages.taken, s.dropped), ([8], 3))

    def saver(self, wait=5.0):
        s = working.Saver(self.joining, self.pages, 0, B, wait, Log())
        self.addCleanup(s.close)
        return s

    def step(self, request="r", blocks=(5, 6), first=0):
        """Saves blocks of a request, of which so many were complete before."""
        names = [client.NO_BLOCK, *(bytes([i + 1]) * 32 for i in range(first + len(blocks)))]
        tokens = array.array("I", range(len(blocks) * B)).tobytes()
        return messages.Step(SESSION, [], [messages.Save(request, names[first + 1:], names[first], tokens, list(blocks))])

    def test_a_save(self):
        s = self.saver()
        step = self.step()
        s.begin(step)
        s.end()
        s.begin(messages.Step(finished=["another"]))
        s.close()
        (blocks, options), = self.session.published
        self.assertEqual((self.pages.taken, [list(b.tokens) for b in blocks]), ([5, 6], [[0, 1, 2, 3], [4, 5, 6, 7]]))
        self.assertEqual(options["parent_chain"], (0, 0))

    def test_what_other_weights_may_have_computed_is_not_saved(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "adapter_model.safetensors")
            file.write_bytes(b"one")
            for change, present, want in ((False, 0, [5, 6]), (True, 0, []), (False, 1, [6]), (True, 1, [])):
                self.session.present = present
                s, step = self.saver(), self.step()
                step.saves[0].adapter = (folder, adapters.stamp(folder))
                self.pages.taken.clear()
                s.begin(step)
                if change:  # while the step computes
                    file.write_bytes(b"other")
                s.end()
                s.close()
                self.assertEqual((self.pages.taken, s.dropped), (want, 2 if change else 0))

    def test_a_prompt_in_two_steps_is_one_chain(self):
        s = self.saver()
        for step in self.step(), self.step(blocks=(7,), first=2):
            s.begin(step)
            s.end()
        s.begin(messages.Step(finished=["r"]))
        s.begin(self.step(blocks=(5,)))
        s.end()
        s.close()
        self.assertEqual([o["parent_chain"] for _, o in self.session.published], [(0, 0), (5, 6), (0, 0)])

    def test_a_save_behind_one_that_was_dropped_is_of_no_chain_that_the_saver_knows(self):
        """Whoever took it for what follows the last one that was saved would tell gateways of a prompt that nobody has."""
        s = self.saver()
        for first, fault in (0, None), (2, client.Lost("x")), (4, None), (6, None):
            self.session.fault = fault
            s.begin(self.step(first=first))
            s.end()
            self.assertTrue(s._last.finished.wait(60))
            self.joining = s._joining = joining(self.session) if fault else s._joining
        s.close()
        self.assertEqual([o["parent_chain"] for _, o in self.session.published], [(0, 0), (0, 0), (5, 6)])

    def test_nothing_is_read_before_the_step_has_computed_nor_after_it_has_ended(self):
        s = self.saver(wait=0.05)
        self.session.go.clear()
        s.begin(self.step())
        s.end()  # the Manager says nothing: the step goes on
        s.begin(self.step(blocks=(8, 9)))  # and this one is not even tried
        s.end()
        self.session.go.set()
        s._queue.put(None)
        s._thread.join()
        self.assertEqual((self.pages.taken, s.dropped), ([], 4))


class FakeManager:
    """A Manager that takes a process's word for all parts of a session that the process has, and notes where that word is wrong."""

    def __init__(self, apart=False):
        self.apart = apart  # the halves are two processes
        self.changed = threading.Condition()
        self.parts, self.live, self.said, self.wrong = [], set(), [], []
        self.registered, self.hangs, self.go = 0, False, True  # go: copies go on

    def until(self, condition):
        with self.changed:
            assert self.changed.wait_for(condition, 60)

    def let(self, go):
        with self.changed:
            self.go = go
            self.changed.notify_all()

    def register(self):
        with self.changed:
            if self.hangs:
                raise client.Lost("timed out")
            if any((p.credentials, p.process) not in self.said for p in self.parts):
                raise client.Refused(10)  # its memory is a process's still
            self.registered += 1
            self.live.add(c := numbered(self.registered))
            return Part(self, c, "scheduler" if self.apart else "engine", False)

    def make(self, credentials):
        with self.changed:
            if credentials not in self.live:
                raise client.Refused(1)
            return Part(self, credentials, "rank" if self.apart else "engine", True)

    def lose(self, credentials):
        """The session ends: where the Manager does not hang, all hear of it."""
        with self.changed:
            self.live.discard(credentials)
            for p in self.parts:
                if p.credentials == credentials and not self.hangs:
                    p.there.close()
                    p.ended = True
            self.changed.notify_all()

    def goodbye(self, credentials, process):
        with self.changed:
            for p in self.parts:
                if (p.credentials, p.process) == (credentials, process) and (p.mapped or p.using):
                    self.wrong.append(f"session {credentials.session}: a goodbye while a part of it is {'used' if p.using else 'mapped'}")
            if (credentials, process) in self.said:
                self.wrong.append(f"session {credentials.session}: a second goodbye")
            self.said.append((credentials, process))
        self.lose(credentials)


def numbered(n):
    return Credentials(7, n, bytes(16))


class Part:
    """A client.Session of that process. Its copies stop where the Manager is told so, and go on whatever becomes of the session: they are memory's alone."""

    def __init__(self, manager, credentials, process, mapped):
        self.m, self.credentials, self.process, self.mapped, self.using, self.ended, self.dropped = manager, credentials, process, mapped, 0, False, False
        self.here, self.there = socket.socketpair()
        manager.parts.append(self)

    def fileno(self):
        return self.here.fileno()

    def _use(self, stands):
        with self.m.changed:
            self.using += 1
            self.m.changed.notify_all()
            self.m.changed.wait_for(stands)
            self.using -= 1
            if not self.mapped:
                self.m.wrong.append(f"session {self.credentials.session}: unmapped under a copy")
            if self.ended:
                raise client.Lost("the end")

    def restore(self, lease, consumer, take):
        self._use(lambda: self.m.go or self.ended)  # it waits for the Manager's word, or for the connection's end
        for i in range(lease.hits[0]):
            take(i, b"page")

    def publish(self, blocks, write, **options):
        self._use(lambda: self.m.go)  # it copies: nothing but its own end ends it
        for i in range(len(blocks)):
            write(i, None)
        options["copied"]()
        return client.Published(len(blocks), 0, 0, (0, 0))

    def poll(self):
        if self.ended:
            raise client.Lost("the end")

    def interrupt(self):
        with self.m.changed:
            if self.dropped:
                self.m.wrong.append("hung up on what is dropped")
            self.ended = True
            self.here.shutdown(socket.SHUT_RDWR)
            self.m.changed.notify_all()
        if not self.m.hangs:
            self.m.lose(self.credentials)

    def unmap(self):
        with self.m.changed:
            if self.using:
                self.m.wrong.append(f"session {self.credentials.session}: unmapped while it is used")
            self.mapped = False
            self.m.changed.notify_all()

    def close(self):
        if not self.dropped:
            self.unmap()
            self.m.goodbye(self.credentials, self.process)
        self.drop()

    def drop(self):
        with self.m.changed:
            self.here.close()
            self.there.close()
            self.dropped = True
            self.m.changed.notify_all()


class HalvesCase(unittest.TestCase):
    """Both halves with the threads that they have, and a Manager: of one process or of two, with one keeper or with one each."""

    APART, KEEPERS = False, 1

    def setUp(self):
        self.m, self.pages = FakeManager(self.APART), FakePages()
        self.keepers = [keeper.Keeper() for _ in range(self.KEEPERS)]
        self.b = brokering.Broker(self.m.register, 1, Log(), 0.25, clock=Clock(), keeper=self.keepers[0])
        self.j = working.Joining(self.m.make, Clock(), self.keepers[-1])
        self.loader = working.Loader(self.j, self.pages, 0, Log(), 3600)
        self.saver = working.Saver(self.j, self.pages, 0, B, 0.01, Log(), clock=itertools.count(0, 100).__next__)
        self.ended = False
        self.addCleanup(self.end, self.m)
        self.up(1)

    def end(self, m):
        m.let(True)
        if m is self.m and not self.ended:
            self.shut(("rank", "scheduler"))

    def shut(self, order):
        """As vLLM shuts down, or the other way round."""
        self.ended = True
        for half in order:
            for part in {"rank": (self.loader, self.saver, self.j), "scheduler": (self.b,)}[half]:
                part.close()

    def until(self, condition):
        end = time.monotonic() + 60
        while not condition():
            self.b._thread.join(0.001)
            self.assertLess(time.monotonic(), end)

    def up(self, n):
        self.until(lambda: self.b.credentials == numbered(n))

    def load(self, n=1, begun=lambda: None):
        self.loader.submit(messages.Load(f"r{n}", numbered(n), Lease(3, 1, [2], [0]), [8, 9]))
        begun()

    def save(self, n=1, begun=lambda: None):
        self.saver.begin(messages.Step(numbered(n), [], [messages.Save("r", [bytes(32)], client.NO_BLOCK, bytes(4 * B), [5])]))
        begun()  # else the end of the step, which waits for 10 ms, may come before the saver's thread has looked at it
        self.saver.end()

    def copying(self, *begin):
        """Copies that stand still in the midst, until let(True)."""
        self.m.let(False)
        for i, what in enumerate(begin, 1):
            what(begun=lambda: self.m.until(lambda: sum(p.using for p in self.m.parts) == i))

    def taken(self, want):
        got = [set(), set()]

        def all_of_it():
            for have, more in zip(got, self.loader.take()):
                have |= more
            return got[0] == want[0]

        self.until(all_of_it)
        self.assertEqual(tuple(got), want)

    def all_given_back(self, sessions):
        """Each once, with all that it had."""
        self.until(lambda: not any(k._held for k in self.keepers))
        self.m.until(lambda: all(p.dropped for p in self.m.parts))
        self.assertEqual((self.m.wrong, self.m.said), ([], [(numbered(i + 1), "engine") for i in range(sessions)]))


class Halves(HalvesCase):
    """In one process, as with the executor uni. Whatever ends first: one goodbye a session, when nothing of it is used or mapped."""

    def test_nothing_happens(self):
        for order in (("rank", "scheduler"), ("scheduler", "rank")):
            with self.subTest(order):
                self.load()
                self.taken(({"r1"}, set()))
                self.saver._wait_s = 60
                self.save()
                self.shut(order)
                self.all_given_back(1)
                self.assertEqual((self.pages.written, self.pages.taken), ({8: b"page", 9: b"page"}, [5]))
                self.setUp()

    def test_the_session_is_lost_while_a_load_is_in_flight(self):
        self.copying(self.load)
        self.m.lose(numbered(1))
        self.taken(({"r1"}, {8, 9}))
        self.up(2)  # nobody had to do anything for it
        self.m.let(True)
        self.load(2)
        self.taken(({"r2"}, set()))
        self.shut(("rank", "scheduler"))
        self.all_given_back(2)

    def test_the_scheduler_registers_anew_while_the_rank_still_copies(self):
        self.copying(self.save)
        for _ in range(3):
            self.b.renew()
        self.m.until(lambda: numbered(1) not in self.m.live)
        self.assertIsNone(self.b.credentials)
        self.assertEqual((self.m.said, self.m.registered), ([], 1), "the memory is the rank's still")
        self.j._joined.clear()  # as a step without a session does
        self.m.live.add(numbered(1))  # and one that hangs would let it in
        with self.assertRaises(client.Lost):
            with self.j.use(numbered(1)):
                pass
        self.m.let(True)
        self.up(2)
        self.shut(("rank", "scheduler"))
        self.all_given_back(2)

    def test_the_rank_loses_it_first(self):
        """By an answer that makes no sense, say, or none in two minutes."""
        with self.assertRaises(client.Lost):
            with self.j.use(numbered(1)):
                raise client.Lost("timed out")
        self.up(2)
        self.shut(("rank", "scheduler"))
        self.all_given_back(2)

    def test_a_manager_that_hangs(self):
        """It tells nobody of anything; those who hang up do."""
        self.copying(self.load)
        self.m.hangs = True
        self.b.halt()
        self.taken(({"r1"}, {8, 9}))
        self.m.until(lambda: self.m.said)
        self.m.hangs = False
        self.b.renew()
        self.up(2)
        self.shut(("scheduler", "rank"))
        self.all_given_back(2)

    def test_a_manager_that_is_killed_in_the_midst_of_all(self):
        self.copying(self.load, self.save)
        self.m.lose(numbered(1))
        self.taken(({"r1"}, {8, 9}))
        self.until(lambda: self.b.credentials is None)
        self.assertEqual(self.m.said, [], "a page is being copied")
        self.m.let(True)
        self.up(2)
        self.shut(("rank", "scheduler"))
        self.all_given_back(2)

    def test_a_thread_that_hangs(self):
        """Nothing is said for it, by neither half and in no order: that is the process's end's."""
        for order in (("rank", "scheduler"), ("scheduler", "rank")):
            with self.subTest(order):
                self.copying(self.save)
                self.b.halt()
                self.until(lambda: self.b.credentials is None)
                with unittest.mock.patch.object(threading.Thread, "join", lambda *_, **__: None):  # that has a bound of its own
                    self.shut(order)
                self.b._thread.join()
                self.assertEqual((self.m.said, self.m.wrong, self.m.parts[1].mapped), ([], [], True))
                self.m.let(True)
                self.all_given_back(1)
                self.setUp()

    def test_shutdown_while_it_copies(self):
        for order in (("rank", "scheduler"), ("scheduler", "rank")):
            with self.subTest(order):
                self.copying(self.save, self.load)
                closing = threading.Thread(target=self.shut, args=(order,))
                closing.start()
                self.m.let(True)
                closing.join()
                self.all_given_back(1)
                self.setUp()

    def test_the_session_ends_as_the_rank_joins(self):
        """The Attach may be taken, or not; nobody says goodbye before that is known."""
        for fault in (None, client.Refused(1), client.Unfinished):
            with self.subTest(fault):
                begun, go = threading.Event(), threading.Event()

                def make(credentials):
                    part = None
                    if fault in (None, client.Unfinished):
                        part = Part(self.m, credentials, "engine", fault is None)
                    begun.set()
                    go.wait()
                    if fault is client.Unfinished:
                        raise client.Unfinished("joined by half", part)
                    if fault:
                        raise fault
                    return part

                self.j._make = make
                self.load()
                begun.wait()
                self.addCleanup(go.set)
                self.b.halt()
                self.until(lambda: all(h.ending and not h.members for h in self.keepers[0]._held.values()))
                self.assertEqual(self.m.said, [])
                go.set()
                self.taken(({"r1"}, {8, 9}))
                self.shut(("rank", "scheduler"))
                self.all_given_back(1)
                self.setUp()

    def test_the_rank_joins_by_half(self):
        """The session is over for the other half, too, and none joins it any more."""
        make = self.j._make

        def half(credentials):
            self.j._make = make
            raise client.Unfinished("joined by half", Part(self.m, credentials, "engine", False))

        self.j._make = half
        self.load()
        self.taken(({"r1"}, {8, 9}))
        self.up(2)
        self.m.live.add(numbered(1))
        with self.assertRaises(client.Lost):
            self.keepers[0].join(numbered(1), make)
        self.m.live.discard(numbered(1))
        self.load(2)
        self.taken(({"r2"}, set()))
        self.shut(("rank", "scheduler"))
        self.all_given_back(2)

    def test_nobody_joins_what_was_left(self):
        """A Manager that hangs may hear of the goodbye after it."""
        self.b.halt()
        self.all_given_back(1)
        self.m.live.add(numbered(1))
        self.load()
        self.taken(({"r1"}, {8, 9}))
        self.assertEqual(len(self.m.parts), 1)

    def test_random(self):
        """All of it in any order; then all is given back, once each."""
        seed = random.randrange(1 << 30)
        r = random.Random(seed)
        with self.subTest(seed=seed):
            for _ in range(400):
                n = self.m.registered
                match r.randrange(9):
                    case 0:
                        self.m.let(False)
                    case 1 | 2:
                        self.m.let(True)
                    case 3:
                        self.load(n)
                    case 4:
                        self.save(n)
                    case 5 if r.random() < 0.2:
                        self.m.lose(numbered(n))
                    case 6 if r.random() < 0.2:
                        self.b.renew()
                    case 7 if r.random() < 0.5:
                        self.j.retire(self.b.credentials)
                    case 8 if r.random() < 0.3:
                        self.m.let(True)
                        self.until(lambda: self.b.credentials is not None)
            self.m.let(True)
            self.shut(r.sample(("rank", "scheduler"), 2))
            self.all_given_back(self.m.registered)

    def test_again(self):
        """Calling again does nothing."""
        member = keeper.Keeper().hold(session := FakeSession())
        for _ in range(2):
            member.let_go()
            member.end()
        self.assertEqual(session.closed, 1)


class Apart(HalvesCase):
    """With the executor mp each half is its process's only one, and says goodbye for itself."""

    APART, KEEPERS = True, 2

    def test_each_for_itself(self):
        self.copying(self.save)
        self.b.halt()
        self.m.until(lambda: self.m.said)
        self.assertEqual(self.m.said, [(numbered(1), "scheduler")], "it waits for nobody")
        self.m.let(True)
        self.m.until(lambda: len(self.m.said) == 2)
        self.b.renew()
        self.up(2)
        self.load(2)
        self.taken(({"r2"}, set()))
        self.shut(("rank", "scheduler"))
        self.m.until(lambda: all(p.dropped for p in self.m.parts))
        self.assertEqual((self.m.wrong, sorted(self.m.said)), ([], [(numbered(n), half) for n in (1, 2) for half in ("rank", "scheduler")]))


class Unsafe(HalvesCase):
    """The check itself: what one process did with a goodbye of each half."""

    KEEPERS = 2

    def test_a_goodbye_of_each(self):
        self.copying(self.save)
        self.b.halt()
        self.m.until(lambda: self.m.said)
        self.assertEqual(self.m.wrong, ["session 1: a goodbye while a part of it is used"])


class Weights(unittest.TestCase):
    def test_what_a_rank_trusts(self):
        step = lambda weights, fresh=False: messages.Step(weights=weights, fresh=fresh)
        t = weights.Trust()
        self.assertEqual((t.step(step(0)), t.spoiled), (True, None))
        t.change()
        self.assertEqual((t.step(step(0)), t.spoiled), (False, 0))
        self.assertEqual((t.step(step(1, True)), t.spoiled), (True, None), "reset after the change")
        t.change()
        self.assertEqual((t.step(step(1, True)), t.spoiled), (True, None), "changed after the reset, before anything was computed")
        t.change()
        self.assertEqual((t.step(step(1)), t.spoiled), (False, 1), "in the midst")
        self.assertTrue(weights.Trust().step(step(7)))

    def test_hooks(self):
        """As vLLM has it: a class and one that inherits; a subclass that has the method anew calls its base's."""
        calls, modules = [], {}
        for module, kind, name, needed in weights.HOOKS:
            if needed:
                m = modules.setdefault(module, types.ModuleType(module))
                owner = m.__dict__.setdefault(kind, type(kind, (), {}))
                setattr(owner, name, lambda self, *a, name=name, **k: calls.append((name, a)) or name)
        self.enterContext(unittest.mock.patch.dict(sys.modules, modules))
        hook = lambda: calls.append("changed")
        for _ in range(2):  # two engines in one process, one after the other
            self.assertEqual(weights.install(hook), [])
            worker = type("CPUWorker", (modules["vllm.v1.worker.gpu_worker"].Worker,), {})()
            self.assertEqual(worker.reload_weights("x"), "reload_weights")
            self.assertEqual(calls, ["changed", ("reload_weights", ("x",))])
            weights.remove(hook)
            calls.clear()
        worker.reload_weights()
        self.assertEqual(calls, [("reload_weights", ())])
        del modules["vllm.v1.worker.gpu_worker"].Worker.update_weights
        self.assertEqual(weights.install(hook), ["vllm.v1.worker.gpu_worker.Worker.update_weights"])
        weights.remove(hook)


class Adapters(unittest.TestCase):
    """Files, numbers and names of adapters: a digest only where it is certain what the engine computes with."""

    def setUp(self):
        self.warned = []
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.log = types.SimpleNamespace(warning=lambda text, *a: self.warned.append(text % a))

    def adapter(self, name, content=b"weights", at=None):
        path = self.folder / (at or name)
        path.mkdir(exist_ok=True)
        (path / "adapter_model.safetensors").write_bytes(content)
        return path

    def request(self, name="a", ident=1, path=None, **more):
        return types.SimpleNamespace(lora_name=name, lora_int_id=ident, lora_path=str(path or self.folder / name), **more)

    def known(self, immutable=True, later=0.0):
        """later: how long after the files were written the engine was started."""
        return adapters.Adapters(self.log, immutable, lambda: time.time() + later)

    def ask(self, a, lora):
        while (found := a(lora)) is None:
            for t in threading.enumerate():
                if t.name == "perigee-adapter":
                    t.join()
        return found

    def test_content_decides(self):
        self.adapter("a"), self.adapter("same"), self.adapter("other", b"other weights")
        a = self.known()
        first, same, other = (self.ask(a, self.request(n, i))[0] for i, n in enumerate(("a", "same", "other"), 1))
        self.assertEqual((first, other != first, len(first)), (same, True, 32))
        self.assertEqual(self.warned, [])

    def test_files_that_change_under_the_engine(self):
        self.adapter("a")
        a = self.known()
        self.assertIsNotNone(self.ask(a, self.request())[0])
        self.adapter("a", b"another")
        self.assertEqual(self.ask(a, self.request()), (None, None))
        self.adapter("a")  # as before, and the engine may have read the other meanwhile
        self.assertEqual(self.ask(a, self.request()), (None, None))
        self.assertEqual(len(self.warned), 1)

    def test_files_younger_than_the_engine(self):
        self.adapter("a")
        self.assertEqual(self.ask(self.known(False), self.request()), (None, None))
        self.assertIn("younger than the engine", self.warned[0])
        self.assertIsNotNone(self.ask(self.known(False, later=60), self.request())[0])

    def test_a_link_that_is_younger_than_the_engine(self):
        """The files of both are old, and nobody knows which the engine has read."""
        one, late = self.adapter("one"), self.folder / "link"
        began = time.time() + 60
        a = adapters.Adapters(self.log, False, lambda: began)
        late.symlink_to(one)
        self.assertIn(str(late), [entry[0] for entry in adapters.stamp(late)])
        self.assertIsNotNone(self.ask(a, self.request("a", path=late))[0])
        other = self.adapter("two", b"other")
        late.unlink()
        late.symlink_to(other)
        self.assertEqual(self.ask(a, self.request("a", path=late)), (None, None))

    def test_a_name_or_a_number_that_was_anothers(self):
        self.adapter("a"), self.adapter("b", b"b")
        for second in (self.request("a", 2), self.request("a", 1, self.folder / "b"), self.request("b", 1)):
            a = self.known()
            self.assertIsNotNone(self.ask(a, self.request("a", 1))[0])
            self.assertEqual(self.ask(a, second), (None, None))
            self.assertEqual(self.ask(a, self.request("a", 1)), (None, None))

    def test_what_is_loaded_otherwise(self):
        self.adapter("a")
        for option in ("load_inplace", "is_3d_lora_weight"):
            a = self.known()
            self.assertEqual(self.ask(a, self.request(**{option: True})), (None, None))
            self.assertEqual(self.ask(a, self.request()), (None, None))

    def test_what_cannot_be_read(self):
        a = self.known()
        self.assertEqual(self.ask(a, self.request("nothing")), (None, None))
        self.assertEqual(len(self.warned), 1)

    def test_no_more_than_a_bound(self):
        self.adapter("a")
        a = self.known()
        for i in range(adapters.MOST):
            a._entry(self.request(f"n{i}", i + 1))
        self.assertEqual(a(self.request("a", adapters.MOST + 1)), (None, None))
        self.assertEqual(len(a._names), adapters.MOST)


class Breaking(unittest.TestCase):
    def test_one_budget_and_no_more(self):
        b = breaker.Breaker(0.25)
        self.assertFalse(b.late(10.05, 10), "asked with the rest of a budget")
        self.assertTrue(b.late(10.25, 10))
        self.assertFalse(b.late(10.25, 10), "once")
        self.assertEqual((b.closed, b.wait(1000)), (False, None), "the question itself is the probe")
        b.heard(70, 10)  # it lives, and how quick it is we do not know
        self.assertEqual((b.closed, b.wait(70)), (False, 0))
        b.probed()
        self.assertIsNone(b.wait(71))
        b.heard(70.01, 70)
        self.assertTrue(b.closed)

    def test_one_that_is_too_slow_is_looked_at_ever_less(self):
        b, now, waits = breaker.Breaker(0.25), 0.25, []
        b.late(now, 0)
        b.heard(now, -1)
        for _ in range(9):
            waits.append(b.wait(now))
            sent = now = now + waits[-1]
            b.probed()
            now += 0.3
            b.heard(now, sent)
        self.assertEqual([round(w, 6) for w in waits], [0, 1, 2, 4, 8, 16, 30, 30, 30])

    def test_quick_with_probes_alone(self):
        """A Manager that answers probes at once and no question in time: the budgets that it costs become rare."""
        b, now, paid = breaker.Breaker(0.25), 0.0, 0
        while now < 3600:
            if b.closed:
                sent, now = now, now + 0.25
                paid += b.late(now, sent)
                b.heard(now + 0.01, sent)
            elif (w := b.wait(now)) is not None:
                sent, now = now + w, now + w + 0.001
                b.probed()
                b.heard(now, sent)
        self.assertLess(paid, 3600 / 30 + 10)

    def test_random(self):
        """Questions run out only while it is closed; open, there is a probe under way or one is due; an answer in time closes it."""
        seed = random.randrange(1 << 30)
        r = random.Random(seed)
        with self.subTest(seed=seed):
            b, now, probe = breaker.Breaker(1.0), 0.0, None
            for _ in range(5000):
                now += r.random()
                was = b.closed
                match r.randrange(3):
                    case 0:
                        if b.late(now, now - r.random() * 2):
                            self.assertTrue(was)
                            probe = now - 1
                    case 1 if probe is not None:
                        sent, probe = probe, None
                        b.heard(now, sent)
                        self.assertTrue(b.closed if now - sent <= 1 else was == b.closed)
                    case 2 if b.wait(now) == 0:
                        probe = now
                        b.probed()
                if not b.closed:
                    self.assertEqual(b.wait(now) is None, probe is not None)
                    self.assertLessEqual(b.wait(now) or 0, breaker.LAST_S + 1e-6)


class Silent:
    """A Manager's session that says nothing until it is told to, on a real descriptor."""

    credentials = SESSION

    def __init__(self):
        self.r, self.w = os.pipe()
        self.asked, self.answers, self.released, self.cancelled, self.modes = [], {}, [], [], []
        self.lock = threading.Condition()

    def fileno(self):
        return self.r

    def ask(self, wants, *, mode=client.PREFIX, consumers=1, wait=0.0):
        with self.lock:
            self.asked.append(mode)
            self.lock.notify_all()
            ticket = len(self.asked)
        if mode == client.DISCOVER:
            self.say(ticket, client.Answer(client.CANDIDATES))
        return ticket

    def say(self, ticket, answer):
        with self.lock:
            self.answers[ticket] = answer
        os.write(self.w, b"x")

    def poll(self):
        p = select.poll()
        p.register(self.r, select.POLLIN)
        if p.poll(0):
            os.read(self.r, 4096)

    def answer(self, ticket, block=True):
        with self.lock:
            return self.answers.pop(ticket, None)

    def cancel(self, ticket):
        self.cancelled.append(ticket)

    def release(self, lease):
        with self.lock:
            self.released.append(lease.index)
            self.lock.notify_all()

    def until(self, condition):
        with self.lock:
            assert self.lock.wait_for(condition, 60)

    def unmap(self):
        pass

    def close(self):
        os.close(self.r)
        os.close(self.w)


class Dying(Silent):
    """Its first questions are heard, and answered with leases; then it is gone, by a call of asking or of answering."""

    def __init__(self, where, heard):
        super().__init__()
        self.where, self.heard = where, heard

    def ask(self, wants, **options):
        if self.where == "ask" and len(self.asked) == self.heard:
            raise client.Lost("broken pipe")
        return super().ask(wants, **options)

    def answer(self, ticket, block=True):
        if self.where == "answer" and ticket > self.heard:
            raise client.Lost("the end")
        return client.Answer(client.READY, "found", Lease(ticket, 1, [1], [0])) if self.where == "answer" and len(self.asked) > self.heard else None


class Brokering(unittest.TestCase):
    def until(self, b, condition, what):
        """The broker's thread lives, and condition comes true within a minute."""
        end = time.monotonic() + 60
        while not condition():
            b._thread.join(0.001)
            self.assertTrue(b._thread.is_alive(), f"the broker's thread has ended: {what}")
            self.assertLess(time.monotonic(), end, f"never: {what}: {b.credentials}, {b.open} open, {b.sessions} sessions")

    def test_sessions_that_do_not_last(self):
        """Those that are lost at once are tried ever more slowly, as a Manager that is not there; one that has lasted is another matter."""
        for clock, want in ((Clock(), [0.1, 0.2, 0.4, 0.8]), (itertools.count(0, 100).__next__, [0.1] * 4)):
            pauses = []

            class Ended(threading.Event):
                def wait(self, timeout=None):
                    pauses.append(timeout)
                    if len(pauses) == 4:
                        self.set()

            sessions = []

            def register():
                sessions.append(FakeSession())
                sessions[-1].poll = unittest.mock.Mock(side_effect=client.Lost("the end"))
                return sessions[-1]

            with unittest.mock.patch.object(brokering.Broker, "_wait", lambda *_: False), unittest.mock.patch.object(brokering, "threading", types.SimpleNamespace(Event=Ended, Thread=threading.Thread, Lock=threading.Lock)):
                b = brokering.Broker(register, 1, Log(), 0.25, clock=clock, keeper=keeper.Keeper())
                b._thread.join()
            self.assertEqual((pauses, [s.closed for s in sessions]), (want, [1] * 4))

    def test_each_question_is_counted_down_once(self):
        """The session is lost as a question is sent, or in the midst of the answers: none stays open, and what was answered stays so."""
        for where in ("ask", "answer"):
            with self.subTest(where):
                self.lost_once(where)

    def lost_once(self, where):
        session, taken = Dying(where, 2), threading.Semaphore(1)

        def register():
            if not taken.acquire(blocking=False):
                raise OSError("gone")
            return session

        b = brokering.Broker(register, 1, Log(), 0.25, clock=Clock(), keeper=keeper.Keeper())
        self.addCleanup(b.close)
        self.until(b, lambda: b.credentials is not None, "a session")
        asked = []
        for i in range(3):
            asked.append(b.ask(bytes(32), 3600, f"{i}"))
            if i < 2:
                session.until(lambda: len(session.asked) == i + 1)
        self.until(b, lambda: all(q.state != brokering.ASKED for q in asked) and b.credentials is None, f"the end of the session and of {[q.state for q in asked]}")
        self.assertEqual(b.open, 0)
        self.assertEqual([q.state for q in asked], [brokering.READY] * 2 * (where == "answer") + [brokering.NOTHING] * (1 if where == "answer" else 3))

    def test_a_question_as_the_session_is_lost(self):
        """It is asked while there is a session, which is lost before the thread hears of the question: it does not wait for the next registration."""
        session, registering, go = Silent(), threading.Event(), threading.Event()
        sessions = [session]

        def register():
            if sessions:
                return sessions.pop()
            registering.set()
            go.wait()
            raise OSError("gone")

        def lost():
            raise client.Lost("the end")

        b = brokering.Broker(register, 1, Log(), 0.25, clock=Clock(), keeper=keeper.Keeper())
        self.addCleanup(lambda: (go.set(), b.close()))
        self.until(b, lambda: b.credentials is not None, "a session")
        lock, me, once = b._count, threading.get_ident(), [1]

        class Count:
            """As soon as the question is counted the session is gone."""

            def __enter__(self):
                lock.acquire()

            def __exit__(self, *_):
                lock.release()
                if threading.get_ident() == me and once:
                    once.pop()
                    session.poll = lost
                    os.write(session.w, b"x")
                    registering.wait(60)

        b._count = Count()
        q = b.ask(bytes(32), 3600)
        self.assertTrue(registering.wait(60))
        self.assertEqual((q.state, q.why, b.open), (brokering.NOTHING, "the Manager was lost", 0))

    def test_a_model_of_which_nobody_knows_what_it_is(self):
        """Its files have changed since the engine loaded them: what is there now would be taken the next time."""
        tried, told = [], threading.Event()

        def register():
            tried.append(1)
            raise fingerprint.Changed("younger")

        log = Log()
        log.warning = lambda *_, **__: told.set()
        b = brokering.Broker(register, 1, log, 0.25)
        self.addCleanup(b.close)
        self.assertTrue(told.wait(60))
        for _ in range(3):
            q = b.ask(bytes(32), 3600)
            b._command("look", None)
        b.close()
        self.assertEqual((q.state, q.why, len(tried), b.open, b._thread.is_alive()), (brokering.NOTHING, "no Manager", 1, 0, False))

    def test_another_session_and_none(self):
        sessions, begun, go = [], [], threading.Semaphore(0)

        def register():
            begun.append(1)
            go.acquire()
            sessions.append(Silent())
            sessions[-1].credentials = Credentials(7, len(sessions), bytes(16))
            return sessions[-1]

        def until(condition):
            self.until(b, condition, f"{len(begun)} begun")

        b = brokering.Broker(register, 1, Log(), 0.25, clock=Clock(), keeper=keeper.Keeper())
        self.addCleanup(lambda: (go.release(9), b.close()))
        go.release()
        until(lambda: b.credentials)
        q = b.ask(bytes(32), 3600)
        sessions[0].until(lambda: sessions[0].asked)
        b.renew()
        self.assertIsNone(b.credentials, "at once")
        self.assertEqual(b.ask(bytes(32), 3600).state, brokering.NOTHING)
        until(lambda: q.state == brokering.NOTHING)
        go.release()
        until(lambda: b.credentials)
        self.assertEqual((b.credentials.session, b.open), (2, 0))
        # Wanted anew while it registers: that one counts for nothing.
        b.renew()
        until(lambda: len(begun) == 3)
        b.renew()
        go.release()
        until(lambda: len(sessions) == 3)
        self.assertIsNone(b.credentials)
        go.release()
        until(lambda: b.credentials)
        self.assertEqual(b.credentials.session, 4)
        b.halt()
        self.assertIsNone(b.credentials)
        go.release()
        b._command("look", None)
        b.renew()
        until(lambda: b.credentials)
        self.assertEqual((b.credentials.session, b.open), (5, 0))

    def test_descriptors_beyond_1024(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and hard < 2048:
            self.skipTest("there may be no such descriptor")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        session = Silent()
        high = fcntl.fcntl(session.r, fcntl.F_DUPFD_CLOEXEC, 1100)
        os.close(session.r)
        session.r = high
        b = brokering.Broker(lambda: session, 1, Log(), 0.25, clock=Clock(), keeper=keeper.Keeper())
        self.addCleanup(b.close)
        self.until(b, lambda: b.credentials is not None, "a session")
        q = b.ask(bytes(32), 3600, "r")
        session.until(lambda: session.asked)
        session.say(1, client.Answer(client.READY, "found", Lease(9, 1, [1], [0])))
        self.until(b, lambda: q.state != brokering.ASKED or b.sessions > 1, "an answer")
        self.assertEqual((q.state, b.sessions), (brokering.READY, 1))

    def test_a_manager_that_hangs_costs_one_budget(self):
        session, traced, changed = Silent(), [], threading.Condition()

        def trace(*event):
            with changed:
                traced.append(event)
                changed.notify_all()

        def until(condition):
            with changed:
                self.assertTrue(changed.wait_for(condition, 60), traced)

        log = Log()
        log.info = lambda text, *_: trace(text)
        clock = Clock()
        b = brokering.Broker(lambda: session, 1, log, 0.25, trace, clock, keeper.Keeper())
        self.addCleanup(b.close)
        until(lambda: traced and "registered" in traced[0][0])
        first = b.ask(bytes(32), 0.25, "first")
        session.until(lambda: len(session.asked) == 1)
        # The second has all the time in the world, and is let go with the first.
        second = b.ask(bytes(64), 3600, "second")
        session.until(lambda: len(session.asked) == 2)
        clock.now = 0.25
        b._command("look", None)
        until(lambda: {e[1] for e in traced if e[0] == "nothing"} == {"first", "second"})
        self.assertEqual((first.state, first.why, second.state, second.why), (brokering.NOTHING, "silent") * 2)
        third = b.ask(bytes(32), 3600, "third")
        self.assertEqual((third.state, third.why), (brokering.NOTHING, "silent"), "at once")
        # It comes to itself: its answer, with a lease that nobody wants; then one probe, and all is as before.
        clock.now = 60.0
        session.say(1, client.Answer(client.READY, "found", Lease(9, 1, [1], [0])))
        until(lambda: ("answering",) in traced)
        self.assertEqual((session.asked[-1], session.released), (client.DISCOVER, [9]))
        fourth = b.ask(bytes(32), 3600, "fourth")
        session.until(lambda: session.asked[-1] == client.PREFIX)
        session.say(len(session.asked), client.Answer(client.READY, "found", Lease(10, 1, [1], [0])))
        until(lambda: ("host_ready", "fourth", 1) in traced)
        self.assertEqual((fourth.state, fourth.hits, b.open), (brokering.READY, 1, 0))


class Tracing(unittest.TestCase):
    def test_there_and_back(self):
        with tempfile.TemporaryDirectory() as folder:
            ticks = iter(range(1000))
            ring = tracing.Ring(folder, "rank0", 4, lambda: next(ticks))
            self.addCleanup(ring.close)
            for i in range(6):
                ring(tracing.EVENTS[i], f"r{i}" if i else "é" * 50, i - 3)
            raw = pathlib.Path(ring.path).read_bytes()
            got = tracing.read(raw)
            self.assertEqual(got, [(i + 1, i, tracing.EVENTS[i], f"r{i}", i - 3) for i in range(2, 6)], "the oldest are overwritten")
            seed = random.randrange(1 << 30)
            r = random.Random(seed)
            with self.subTest(seed=seed):
                for _ in range(2000):
                    bad = bytearray(raw)
                    for _ in range(r.randrange(1, 4)):
                        bad[r.randrange(len(bad))] = r.randrange(256)
                    del bad[r.choice((len(bad), len(bad), r.randrange(len(bad)))):]
                    try:
                        self.assertLessEqual(len(tracing.read(bytes(bad))), 4)
                    except ValueError:
                        pass

    def test_off(self):
        self.assertIs(tracing.make("", "x"), tracing.none)
        tracing.none("enqueue", "r", 1)

    def test_what_a_request_goes_through(self):
        traced = []
        b = Broker()
        s = scheduling.Scheduling(b, B, None, trace=lambda e, r="", v=0: traced.append((e, r, v)))
        r = Request("r", range(20))
        s.arrived(r)
        s.matched(r, 0)
        b.answer(b.asked[0], 3)
        s.matched(r, 0)
        s.allocated(r, range(5), 3 * B)
        s.step({}, None)
        s.step({"r": 8}, lambda _: range(5))
        s.step({"r": 1}, lambda _: range(5))
        self.assertEqual(traced, [("enqueue", "r", 0), ("restore_submit", "r", 3), ("first_use", "r", 0)])


if __name__ == "__main__":
    unittest.main()
