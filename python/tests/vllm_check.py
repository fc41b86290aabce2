"""The connector's decisions and threads, without vLLM and without a Manager: python3 python/tests/vllm_check.py."""

import array
import contextlib
import pathlib
import random
import sys
import threading
import types
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from perigee import client  # noqa: E402
from perigee.client import Credentials, Lease  # noqa: E402
from perigee.vllm import broker as brokering  # noqa: E402
from perigee.vllm import messages, scheduling, working  # noqa: E402

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

    def ask(self, names, wait):
        q = brokering.Query(names, wait)
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
        self.s = scheduling.Scheduling(self.b, B, lambda lora: (lora.known, lora.digest), budget_s=1.0, clock=self.clock)

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
        lora = types.SimpleNamespace(known=False, digest=None, lora_name="a")
        r = Request("r", range(20), lora=lora)
        self.assertEqual(self.s.matched(r, 0), (None, False))
        self.assertEqual(self.b.asked, [])
        lora.known, lora.digest = True, bytes(range(32))
        self.s.matched(r, 0)
        want = client.block_name(bytes([1]) * 32, client.request_id(lora=lora.digest))
        self.assertEqual(self.b.asked[0].names[:32], want)

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
                    self.b.lent.discard(x.lease.index)
                    self.assertEqual(len(x.blocks), x.lease.hits[0])
            for q in live.values():
                self.s.ended(q)
            self.s.step({}, None)
            self.assertEqual((self.b.lent, self.s.tracked), (set(), {}))
            self.assertGreater(loads, 20)


class FakeSession:
    def __init__(self):
        self.fault, self.closed, self.published = None, 0, []
        self.go = threading.Event()
        self.go.set()

    def restore(self, lease, consumer, take):
        for i in range(lease.hits[0]):
            if self.fault and i == 1:
                raise self.fault
            take(i, bytes([lease.index]))

    def publish(self, blocks, write, **options):
        self.go.wait()
        if self.fault:
            raise self.fault
        for i in range(len(blocks)):
            write(i, None)
        options.pop("copied")()
        self.published.append((blocks, options))
        return client.Published(len(blocks), 0, 0, (5, 6))

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
    return working.Joining(lambda c: session)


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

    def test_a_load_that_fails_is_bad_as_a_whole(self):
        for fault in (client.Spoiled("x"), client.Lost("x"), client.Refused(3), ValueError("x")):
            self.session.fault, self.joining = fault, joining(self.session)
            got, again = self.loads(messages.Load("r", SESSION, Lease(3, 1, [3], [0]), [-1, 8, 9]))
            self.assertEqual((got, again), (({"r"}, {8, 9}), (set(), set())), fault)

    def test_no_session(self):
        def refuse(_):
            raise client.Lost("nobody is there")
        self.joining = working.Joining(refuse)
        got, _ = self.loads(messages.Load("a", SESSION, Lease(3, 1, [1], [0]), [8]), messages.Load("b", SESSION, Lease(4, 1, [1], [0]), [9]))
        self.assertEqual(got, ({"a", "b"}, {8, 9}))

    def test_a_lost_session_is_closed_once(self):
        self.session.fault = client.Lost("x")
        self.loads(*[messages.Load(f"r{i}", SESSION, Lease(3, 1, [3], [0]), [1, 2, 3]) for i in range(3)])
        self.assertEqual(self.session.closed, 1)

    def saver(self, wait=5.0):
        s = working.Saver(self.joining, self.pages, 0, B, wait, Log())
        self.addCleanup(s.close)
        return s

    def step(self, request="r", blocks=(5, 6)):
        n = len(blocks)
        return messages.Step(SESSION, [], [messages.Save(request, [bytes([i]) * 32 for i in range(n)], client.NO_BLOCK, array.array("I", range(n * B)).tobytes(), list(blocks))])

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

    def test_a_prompt_in_two_steps_is_one_chain(self):
        s = self.saver()
        for blocks in (5, 6), (7,):
            s.begin(self.step(blocks=blocks))
            s.end()
        s.begin(messages.Step(finished=["r"]))
        s.begin(self.step(blocks=(5,)))
        s.end()
        s.close()
        self.assertEqual([o["parent_chain"] for _, o in self.session.published], [(0, 0), (5, 6), (0, 0)])

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


if __name__ == "__main__":
    unittest.main()
