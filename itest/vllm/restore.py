"""A real vLLM engine and the Cache Manager: what is restored gives the same answers as what is computed, and prefill is really saved.

Run by scripts/vllm/qualify.sh restore. Prompts are token ids. What an answer should be is what the same engine says to the same prompt under a salt that nobody
else has: then nothing can be restored or found in its own cache, which each such answer proves by its usage. One engine after another, since
starting one is what takes the time; the order of ORDER at the end matters.
"""

import atexit
import collections
import json
import os
import pathlib
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

from cachefleet import PYTHONPATH, Engine, complete, perigee, restorable
from fleet import BLOCK, LOGS, MODEL
from manager import Manager, flip
from servers import BIN, DIES_WITH_US, ROOT, Stopwatch, ask, at_once, fetch, tokens, wait_until

sys.path.insert(0, str(ROOT / "python"))

from perigee.vllm import trace  # noqa: E402

BLOCKS = 300  # of 32 tokens: two prompts of 4,000 tokens fit, a third evicts; and one of 8,000
MAX_LEN = 8192
PAGE = 128 << 10  # bytes: 4 layers, keys and values of 2 heads of 64 in float32, 32 tokens
SLOTS = 16384  # of the pool: 2 GiB, more than all of this saves before Flipped empties it
ANSWER = 16  # tokens
# The executor of all engines but OneProcess's: mp is vLLM's own choice on a CPU.
EXECUTOR = os.environ.get("QUALIFY_EXECUTOR", "mp")
LENGTHS = (100, 129, 500, 1000, 1025, 1999, 3000, 4000, 8000)
watch = Stopwatch()
results = []  # lines for the end
salts = iter(range(1, 1 << 30))


class SlowEngine(Engine):
    """vLLM with the connector, and what slow_loads.py does to it."""

    def __init__(self, folder):
        super().__init__("restore-engine", BLOCKS, MAX_LEN)
        self.slow, self.hold = pathlib.Path(folder, "slow"), pathlib.Path(folder, "hold")

    def start(self, *more, max_seqs=16, blocks=BLOCKS, executor=EXECUTOR, **extra):
        # Budgets that a busy machine does not use up: what is checked is that all is restored. None of them: the defaults.
        extra = {"instance": "restore", "lookup_ms": 3000, "save_ms": 5000, "load_ms": 10000} | extra
        self.max_seqs, self.blocks = max_seqs, blocks
        # So vLLM has the scheduler and the rank in one process, as it does by itself on one GPU; and it binds no threads then.
        uni = ["VLLM_ENABLE_V1_MULTIPROCESSING=0", "OMP_NUM_THREADS=1"] if executor == "uni" else []
        with watch.row("an engine, from nothing to ready"):
            super().start(*more, transfer=perigee(manager, "slow_loads", "SlowConnector", **{k: v for k, v in extra.items() if v is not None}),
                          environment=[PYTHONPATH, *uni, f"PERIGEE_SLOW_LOADS={self.slow}", f"PERIGEE_HOLD_SAVES={self.hold}"])

    def again(self, *more, **options):
        """Another start, and it has registered."""
        self.stop()
        wait_until(lambda: manager.number("sessions") == 0, "the engine has gone")
        self.start(*more, **options)
        wait_until(manager.registered, "it has registered")


class Case(unittest.TestCase):
    def setUp(self):
        began = time.monotonic()
        self.addCleanup(lambda: watch.rows.append((self.id().removeprefix("__main__."), time.monotonic() - began)))

    def say(self, prompt, n=ANSWER, salt=None):
        return complete(engine, prompt, n, salt)

    def computed(self, prompt, n=ANSWER):
        """What the engine says if it computes everything."""
        a = self.say(prompt, n, f"only-{os.getpid()}-{next(salts)}")
        self.assertEqual(a.cached, 0)
        return a.ids

    def saved(self):
        """Until the Manager has what the engine's last steps computed: a step waits for its saves, but not for the last word on them."""
        wait_until(lambda: manager.number("granted_bytes") == 0, "nothing is being published")

    def registered_again(self, prompts, want):
        """It is registered again, saves and restores."""
        wait_until(manager.registered, "it has registered again")
        for p in prompts:
            self.say(p)
        self.saved()
        self.empty()
        got = [self.say(p) for p in prompts]
        self.assertEqual([(a.cached, a.ids) for a in got], [(restorable(len(p)), w) for p, w in zip(prompts, want)])

    def post(self, path, body=None):
        status, text = fetch(engine.url + path, body or {})
        self.assertEqual(status, 200, text)

    def session(self):
        return [s["session"] for s in ask(manager.url + "/status")["sessions"]]

    def renewed(self, act):
        before = self.session()
        act()
        wait_until(lambda: len(s := self.session()) == 1 and s != before, "it has registered anew")

    def kill_while_publishing(self, p):
        """SIGKILL after the twelfth page of a prompt that nobody has: then nothing is held of the engine."""
        held = engine.hold.with_suffix(".held")
        held.unlink(missing_ok=True)  # of a step before, which says nothing of this one
        engine.hold.write_text("12")

        def ask_in_vain():
            try:
                self.say(p)
            except Exception:  # its engine dies
                return
            raise AssertionError("it was answered: it was not held")

        asking = threading.Thread(target=lambda: failed.append(at_once([ask_in_vain])), daemon=True)
        failed = []
        asking.start()
        try:
            wait_until(held.exists, "a step's saves are held")
            self.assertGreater(manager.number("granted_bytes"), 0, "slots are granted and not sealed")
            engine.kill()
        finally:
            engine.hold.unlink()
        asking.join()
        self.assertEqual(failed, [[None]])
        wait_until(lambda: manager.number("sessions") == 0, "the engine has gone")
        for name in ("granted_bytes", "pinned_bytes", "quarantined_bytes"):
            wait_until(lambda: manager.number(name) == 0, name + " is 0")

    def in_a_load(self, act, prompt):
        """What the engine says to a prompt that the Manager has, if act() is done to the Manager between the lease and its load: which proves by its usage that it was."""
        done = []

        def between():
            try:
                wait_until(lambda: manager.number("query_reserved_bytes", 'phase="leased"') > 0, "a lease is given")
                act()
                done.append(True)
            finally:
                engine.slow.unlink()

        engine.slow.write_text("600")
        acting = threading.Thread(target=between)
        acting.start()
        a = self.say(prompt)
        acting.join()
        self.assertEqual((done, a.cached), ([True], 0), "it was restored, and what is checked here did not happen")
        return a

    def empty(self):
        """The engine's own cache is empty, and its memory has something else in it."""
        engine.reset()
        self.say(tokens(f"between {next(salts)}", 4000), 1)
        self.say(tokens(f"between {next(salts)}", 4000), 1)
        engine.reset()


class Restored(Case):
    """In one engine, after a reset."""

    def test_lengths(self):
        prompts = [tokens(f"length {n} {i}", n) for n in LENGTHS for i in range(3)]
        want = [self.say(p) for p in prompts]
        self.assertEqual([a.cached for a in want], [0] * len(prompts))
        self.saved()
        self.empty()
        before = engine.counters()
        for p, w in zip(prompts, want):
            got = self.say(p)
            self.assertEqual((got.cached, got.ids), (restorable(len(p)), w.ids), len(p))
        after = {k: v - before[k] for k, v in engine.counters().items()}
        all_of_it, restored = sum(map(len, prompts)), sum(restorable(len(p)) for p in prompts)
        self.assertEqual(after, {"hits": restored, "external": restored, "local": 0, "computed": all_of_it - restored, "preempted": 0})
        results.append(f"{len(prompts)} prompts of {min(LENGTHS)} to {max(LENGTHS)} tokens after a reset: {restored} of {all_of_it} tokens restored, answers equal")

    def test_the_answer_depends_on_what_is_restored(self):
        """Else equal answers would prove nothing: prompts that differ in their first block alone are answered differently."""
        tail = tokens("tail", 1000)
        answers = {tuple(self.computed(tokens(f"head {i}", 32) + tail)) for i in range(4)}
        self.assertEqual(len(answers), 4)

    def test_partial_hits(self):
        whole = tokens("partial", 2000)
        self.say(whole)
        self.saved()
        for shared in (64, 700, 1280, 1999):
            with self.subTest(shared=shared):
                p = whole[:shared] + tokens(f"other {shared}", 1500)
                want = self.computed(p)
                self.empty()
                got = self.say(p)
                self.assertEqual((got.cached, got.ids), (shared // BLOCK * BLOCK, want))

    def test_the_engine_has_a_part(self):
        p = tokens("both", 3000)
        want = self.say(p).ids
        self.saved()
        self.empty()
        self.say(p[:1000], 1)  # from the Manager, and then the engine's own
        before = engine.counters()
        got = self.say(p)
        after = {k: v - before[k] for k, v in engine.counters().items()}
        self.assertEqual((got.cached, got.ids), (restorable(3000), want))
        self.assertEqual((after["local"], after["external"]), (992, restorable(3000) - 992))

    def test_what_was_answered_is_restored_too(self):
        p = tokens("a turn", 500)
        first = self.say(p, 200)
        self.saved()
        again = p + first.ids + tokens("next turn", 100)
        want = self.computed(again)
        self.empty()
        got = self.say(again)
        # The last token of an answer is never computed, so that its block may lack it.
        self.assertEqual((got.cached, got.ids), ((500 + 199) // BLOCK * BLOCK, want))

    def test_salts_are_apart(self):
        p = tokens("salted", 1000)
        want = self.say(p, salt="tenant-a").ids
        self.saved()
        self.empty()
        self.assertEqual(self.say(p, salt="tenant-b").cached, 0)
        self.assertEqual(self.say(p).cached, 0)
        got = self.say(p, salt="tenant-a")
        self.assertEqual(got.ids, want)
        self.empty()
        got = self.say(p, salt="tenant-a")
        self.assertEqual((got.cached, got.ids), (restorable(1000), want))

    def test_at_once(self):
        prompts = [tokens(f"at once {i}", 400 + 17 * i) for i in range(16)]  # 17 blocks each: all are there at once
        want = [self.say(p).ids for p in prompts]
        self.saved()
        for n in (1, 4, 8, 16):
            with self.subTest(concurrency=n):
                self.empty()
                for first in range(0, 16, n):
                    got = at_once([lambda p=p: self.say(p) for p in prompts[first:first + n]])
                    self.assertEqual([(a.cached, a.ids) for a in got],
                                     [(restorable(len(a.prompt)), w) for a, w in zip(got, want[first:first + n])])

    def test_one_prompt_eight_times_at_once(self):
        p = tokens("eight times", 2500)
        want = self.say(p).ids
        self.saved()
        self.empty()
        got = at_once([lambda: self.say(p)] * 8)
        self.assertEqual([a.ids for a in got], [want] * 8)
        self.assertEqual({a.cached for a in got}, {restorable(2500)})


class Preempted(Case):
    def test_preemption(self):
        """Sixteen requests that do not fit: the engine takes the blocks of some for the others, who overwrite them, and gets them back from the Manager."""
        # 18 blocks each at first, 288 of 300, and 22 at the end: some 50 are taken, and used up by those that go on.
        prompts = [tokens(f"preempted {i}", 570) for i in range(16)]
        want = [self.computed(p, 110) for p in prompts]
        self.empty()
        before, loads = engine.counters(), manager.number("restores_total", "whole")
        got = at_once([lambda p=p: self.say(p, 110) for p in prompts])
        after = {k: v - before[k] for k, v in engine.counters().items()}
        loads = manager.number("restores_total", "whole") - loads
        self.assertEqual([a.ids for a in got], want)
        self.assertGreater(after["preempted"], 0, "nothing was preempted: the check is worth nothing")
        self.assertGreater(loads, 0, "nothing was restored of what was preempted")
        results.append(f"{after['preempted']:.0f} preemptions among 16 requests, {loads:.0f} restores of what was preempted, answers equal")


class Aborted(Case):
    def leave(self, prompt, wait):
        """Sends a request, waits, and closes the connection."""
        body = json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": 4, "temperature": 0, "stream": True}).encode()
        s = socket.create_connection(("127.0.0.1", engine.port))
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: e\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        wait()
        s.close()

    def test_abort_during_a_load(self):
        p = tokens("left", 3000)
        want = self.say(p).ids
        self.saved()
        self.empty()
        before = manager.number("restores_total")
        engine.slow.write_text("1.5")
        try:
            self.leave(p, lambda: wait_until(lambda: manager.number("pinned_bytes") > 0, "its pages are held: the load is under way"))
            self.leave(p, lambda: time.sleep(0.2))
        finally:
            engine.slow.unlink()
        wait_until(engine.idle, "the engine is idle")
        wait_until(lambda: manager.number("restores_total") - before > 0, "the load that was under way has ended")
        wait_until(lambda: manager.number("pinned_bytes") == 0, "nothing is pinned")
        got = self.say(p)
        self.assertEqual(got.ids, want)
        wait_until(lambda: engine.number("kv_cache_usage_perc") == 0, "the blocks are free again")

    def test_many_aborts(self):
        prompts = [tokens(f"many {i}", 1500) for i in range(6)]
        want = [self.say(p).ids for p in prompts]
        self.saved()
        self.empty()
        r = random.Random(7)
        for _ in range(40):
            self.leave(r.choice(prompts), lambda: time.sleep(r.random() * 0.08))
        wait_until(engine.idle, "the engine is idle")
        wait_until(lambda: manager.number("pinned_bytes") == 0, "nothing is pinned")
        self.assertEqual([self.say(p).ids for p in prompts], want)
        wait_until(lambda: engine.number("kv_cache_usage_perc") == 0, "the blocks are free again")


class Flipped(Case):
    """A bit that changes in the pool is never served."""

    def begin(self, name):
        manager.flush()
        before = manager.slots(PAGE)
        p = tokens(name, 2000)
        want = self.say(p).ids
        self.saved()
        mine = [k for k, v in manager.slots(PAGE).items() if before.get(k) != v]
        self.assertEqual(len(mine), (2000 + ANSWER - 1) // BLOCK, "the slots that it was saved to")
        engine.reset()
        self.say(tokens(f"other {name}", 4000), 1, "other")
        engine.reset()
        return p, want, mine

    def test_one_bit(self):
        p, want, mine = self.begin("one bit")
        spoiled = manager.number("spoiled_pages_total")
        flip([random.Random(3).choice(mine[:60])])
        self.assertEqual(self.say(p).ids, want)
        self.assertEqual(manager.number("spoiled_pages_total") - spoiled, 1)
        engine.reset()
        self.saved()
        got = self.say(p)  # it was saved anew
        self.assertEqual((got.cached, got.ids), (restorable(2000), want))

    def test_a_bit_in_each_page(self):
        p, want, mine = self.begin("each page")
        flip(mine)
        self.assertEqual(self.say(p).ids, want)

    def test_without_checksums_it_would_be_seen(self):
        """The check itself: a page that is copied over another's before it is sealed is as good as any to the Manager, and the answer is another."""
        p = tokens("one block else", 2000)
        other = p[:32] + tokens("else", 32) + p[64:]
        self.assertNotEqual(self.computed(p), self.computed(other))


class Fresh(Case):
    """In an engine that was just started."""

    def test_fresh(self):
        prompts = [tokens(f"fresh {n}", n) for n in LENGTHS]
        want = [self.say(p).ids for p in prompts]
        self.saved()
        engine.stop()
        wait_until(lambda: manager.number("sessions") == 0, "the engine has gone")
        engine.start()
        wait_until(manager.registered, "it has registered")
        got = [self.say(p) for p in prompts]
        self.assertEqual([(a.cached, a.ids) for a in got], [(restorable(len(p)), w) for p, w in zip(prompts, want)])
        c = engine.counters()
        self.assertEqual((c["external"], c["hits"]), (sum(map(restorable, map(len, prompts))),) * 2)
        results.append(f"{len(prompts)} prompts in a fresh engine: {c['external']:.0f} of {sum(map(len, prompts))} tokens restored, answers equal")

    def test_killed_while_publishing(self):
        """SIGKILL after the twelfth page, of which eight are sealed and four are not: the Manager has what was sealed, and nothing else is held or found."""
        p = tokens("killed", 4000)
        want = self.computed(p)
        self.saved()
        self.kill_while_publishing(p)
        engine.start()
        wait_until(manager.registered, "it has registered")
        got = self.say(p)
        self.assertEqual(got.ids, want)
        self.assertIn(got.cached, (0, 8 * BLOCK), "what was not sealed was found")
        results.append(f"killed after 12 pages of a publish, 8 of them sealed: {got.cached} tokens found by the next engine, answer equal")
        self.saved()
        self.empty()
        got = self.say(p)
        self.assertEqual((got.cached, got.ids), (restorable(4000), want))


class Defaults(Case):
    """With the budgets that the connector has by itself. What they leave out on a busy machine is latency, never an answer; the trace says which ran out."""

    @classmethod
    def setUpClass(cls):
        cls.traces = pathlib.Path(folder.name, "traces")
        cls.traces.mkdir()
        engine.again(lookup_ms=None, save_ms=None, load_ms=None, trace=str(cls.traces))

    def events(self):
        """[(ns, event, request, value)...] of all processes, in order."""
        return sorted(e[1:] for f in self.traces.iterdir() for e in trace.read(f.read_bytes()))

    def test_under_load(self):
        prompts = [tokens(f"under load {i}", 700 + 100 * i) for i in range(8)]
        want = [self.computed(p) for p in prompts]
        burning = [subprocess.Popen([*DIES_WITH_US, sys.executable, "-c", "while True: pass"]) for _ in range(2 * os.cpu_count())]
        try:
            first = at_once([lambda p=p: self.say(p) for p in prompts])
            self.saved()
            self.empty()
            began = self.events()[-1][0]
            got = at_once([lambda p=p: self.say(p) for p in prompts])
        finally:
            for b in burning:
                b.kill()
                b.wait()
        self.assertEqual(([a.ids for a in first], [a.ids for a in got]), (want, want))
        all_of_it, there = sum(restorable(len(p)) for p in prompts), sum(a.cached for a in got)
        events = self.events()
        dropped = sum(e[3] for e in events if e[1] == "save_dropped")
        why = collections.Counter(trace.WHY[e[3]] for e in events if e[1] == "nothing" and e[0] > began)
        failed = sum(e[1] == "restore_failed" and e[0] > began for e in events)
        if there < all_of_it:
            self.assertGreater(dropped + sum(why.values()) + failed, 0, "something was not restored, and nothing says why")
        results.append(f"default budgets, 8 at once beside {len(burning)} busy loops: {there} of {all_of_it} tokens restored, answers equal; "
                       f"{dropped} blocks not saved in time, {failed} loads given up, computed because {dict(why) or 'of nothing else'}")

    def stop_and_ask(self, prompts, want, seconds):
        """Stops the Manager, asks one after the other, and gives the seconds that each took."""
        took, until = [], time.monotonic() + seconds
        manager.signal(signal.SIGSTOP)
        try:
            while len(took) < len(prompts) or time.monotonic() < until:
                i = len(took) % len(prompts)
                t = time.monotonic()
                self.assertEqual(self.say(prompts[i]).ids, want[i])
                took.append(time.monotonic() - t)
                engine.reset()
        finally:
            manager.signal(signal.SIGCONT)
        return took

    def restored_again(self, prompts, want):
        """Within a while, since a budget may run out on a busy machine at any time."""
        def again():
            self.empty()
            got = [self.say(p) for p in prompts]
            self.assertEqual([a.ids for a in got], want)
            self.saved()
            return [a.cached for a in got] == [restorable(len(p)) for p in prompts]

        wait_until(again, "all is restored again", 600)

    def test_a_manager_that_hangs_costs_one_budget(self):
        prompts = [tokens(f"hangs {i}", 1000) for i in range(6)]
        want = [self.computed(p) for p in prompts]
        self.restored_again(prompts, want)
        session = ask(manager.url + "/status")["sessions"]
        self.empty()
        began = self.events()[-1][0]
        # Longer than the connector waits for an answer that the Manager gives at once: the session must live all the same.
        took = self.stop_and_ask(prompts, want, 15)
        events = [e for e in self.events() if e[0] > began]
        silent = next((e[0] for e in events if e[1] == "silent"), None)
        self.assertIsNotNone(silent, "it was never noticed")
        answering = next((e[0] for e in events if e[1] == "answering"), 1 << 63)
        self.assertEqual([e for e in events if e[1] == "read_start" and silent < e[0] < answering], [], "asked again while it was silent")
        plain = []
        for i in range(6):
            engine.reset()
            t = time.monotonic()
            self.computed(prompts[i])
            plain.append(time.monotonic() - t)
        results.append(f"the Manager stopped for {sum(took):.0f} s: the first request took {1000 * took[0]:.0f} ms, the other {len(took) - 1} {1000 * statistics.median(took[1:]):.0f} ms by the median, "
                       f"computed without asking {1000 * statistics.median(plain):.0f} ms")
        wait_until(lambda: any(e[1] == "answering" and e[0] > silent for e in self.events()), "it is asked again")
        self.restored_again(prompts, want)
        self.assertEqual([s["session"] for s in ask(manager.url + "/status")["sessions"]], [s["session"] for s in session], "the session has not ended")

    def test_a_manager_that_hangs_in_a_load(self):
        p = tokens("hangs in a load", 3000)
        want = self.computed(p)
        self.restored_again([p], [want])
        self.empty()
        try:
            self.assertEqual(self.in_a_load(lambda: manager.signal(signal.SIGSTOP), p).ids, want)
        finally:
            manager.signal(signal.SIGCONT)
        wait_until(lambda: manager.number("pinned_bytes") == 0, "its lease is given back")
        self.restored_again([p], [want])
        wait_until(lambda: engine.number("kv_cache_usage_perc") == 0, "the blocks are free again")


class Lost(Case):
    """The Manager goes away while the engine serves."""

    def serve(self, during):
        """Requests run while during() does; all of them are answered as they should be."""
        prompts = [tokens(f"lost {i}", 1200 + 50 * i) for i in range(6)]
        want = [self.computed(p) for p in prompts]
        for p in prompts:
            self.say(p)
        self.saved()
        self.empty()
        stop, wrong, count = threading.Event(), [], [0]

        def ask_on(i):
            r = random.Random(i)
            while not stop.is_set():
                k = r.randrange(len(prompts))
                try:
                    if self.say(prompts[k]).ids != want[k]:
                        wrong.append(k)
                except Exception as e:
                    wrong.append(e)
                count[0] += 1
                if i == 0:
                    fetch(engine.url + "/reset_prefix_cache", {})

        threads = [threading.Thread(target=ask_on, args=(i,)) for i in range(3)]
        for t in threads:
            t.start()
        try:
            during(count)
        finally:
            stop.set()
            for t in threads:
                t.join()
        self.assertEqual(wrong, [])
        return prompts, want

    def served(self, count, more=6):
        n = count[0]
        wait_until(lambda: count[0] >= n + more, f"{more} more requests", 120)

    def test_killed_and_restarted(self):
        def during(count):
            for _ in range(3):
                self.served(count)
                manager.kill()
                self.served(count)
                manager.start()
                wait_until(manager.registered, "it has registered again")

        self.registered_again(*self.serve(during))

    def test_killed_during_loads(self):
        p = tokens("killed in a load", 3000)
        want = self.say(p).ids
        self.saved()
        self.empty()
        self.assertEqual(self.in_a_load(manager.kill, p).ids, want)
        manager.start()
        self.registered_again([p], [want])

    def test_stopped_for_a_while(self):
        """A Manager that hangs is worse than one that is gone: everything has its own end."""
        def during(count):
            self.served(count)
            manager.signal(signal.SIGSTOP)
            try:
                self.served(count, 10)
            finally:
                manager.signal(signal.SIGCONT)
            self.served(count)

        prompts, want = self.serve(during)
        self.assertEqual([self.say(p).ids for p in prompts], want)
        # The session may have ended, and a Manager that lives waits for the engine's processes before it gives their memory to anybody.
        manager.kill()
        manager.start()
        self.registered_again(prompts, want)

    def test_a_small_pool(self):
        """64 pages, of which each prompt takes 40: blocks are evicted and refused all the time."""
        manager.kill()
        manager.start(64 * PAGE)
        self.serve(lambda count: self.served(count, 20))
        self.assertGreater(manager.number("removed_blocks_total", "evicted"), 0)
        manager.kill()
        manager.start()
        wait_until(manager.registered, "it has registered again")


class Times(Case):
    """Time to the first token, restored and recomputed in turns. No bound: the machine is anybody's."""

    def first(self, prompt, salt=None):
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 2, "temperature": 0, "stream": True} | ({"cache_salt": salt} if salt else {})
        r = urllib.request.Request(engine.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        t = time.monotonic()
        with urllib.request.urlopen(r, timeout=120) as answer:
            answer.readline()
            took = time.monotonic() - t
            answer.read()
        return took

    def test_first_token(self):
        for n in (1000, 2000, 4000, 8000):
            p = tokens(f"time {n}", n)
            self.say(p)
            self.saved()
            restored, computed = [], []
            for i in range(5):
                engine.reset()
                loads = engine.counters()["external"]
                restored.append(self.first(p))
                self.assertEqual(engine.counters()["external"] - loads, restorable(n))
                computed.append(self.first(p, f"time {next(salts)}"))
            line = (f"{n} tokens to the first token: restored {1000 * statistics.median(restored):.0f} ms ({1000 * min(restored):.0f} to {1000 * max(restored):.0f}), "
                    f"computed {1000 * statistics.median(computed):.0f} ms ({1000 * min(computed):.0f} to {1000 * max(computed):.0f})")
            results.append(line)
            print(line, flush=True)


class Weights(Case):
    """Weights that are changed in place, or may be: nothing of what was computed before is restored, and nothing is kept under its name. They are the same each time, so that the
    answers are."""

    def written(self):
        return manager.number("published_blocks_total", 'disposition="write"')

    def kept(self, p, want):
        """Computed, saved and restored, all of it."""
        before = self.written()
        got = self.say(p)
        self.assertEqual((got.cached, got.ids), (0, want), "other weights' pages")
        self.saved()
        self.assertEqual(self.written() - before, len(p) // BLOCK)
        self.empty()
        got = self.say(p)
        self.assertEqual((got.cached, got.ids), (restorable(len(p)), want))
        self.saved()
        self.empty()

    def test_weights(self):
        p = tokens("weights", 1000)
        want = self.computed(p)
        self.kept(p, want)
        with self.subTest("changed in place"):
            self.post("/collective_rpc", {"method": "reload_weights"})
            for _ in range(2):  # in the first a lease is given, and not used
                before = self.written()
                got = self.say(p)
                self.assertEqual((got.cached, got.ids, self.written()), (0, want, before))
                self.empty()
                wait_until(lambda: self.session() == [], "the scheduler's half has heard of it")
            self.assertEqual(manager.number("pinned_bytes"), 0)
        for name, act in (("a reset of what is outside, too", lambda: self.post("/reset_prefix_cache?reset_external=true")), ("a pause", lambda: (self.post("/pause"), self.post("/resume"))),
                          ("weights that are changed within a pause", lambda: (self.post("/pause"), self.post("/collective_rpc", {"method": "reload_weights"}), self.post("/resume")))):
            with self.subTest(name):
                self.renewed(act)
                self.kept(p, want)
        with self.subTest("a plain reset"):
            self.kept(q := tokens("weights, last", 1000), self.computed(q))
            engine.reset()
            self.assertEqual(self.say(p).cached, restorable(1000), "of the last name")


class Adapters(Case):
    """LoRA: the same name and path with other weights is another adapter, which vLLM's own hash does not see over a restart."""

    def write(self, sign):
        """An adapter of random weights, at the same place each time."""
        import torch
        from safetensors.torch import save_file
        h, g = json.loads((ROOT / ".cache/vllm/model/config.json").read_text())["hidden_size"], torch.Generator().manual_seed(7)
        path, weights = pathlib.Path(folder.name, "adapter"), {}
        path.mkdir(exist_ok=True)
        for i in range(4):
            for side, rows, columns, factor in (("A", 8, h, 0.1), ("B", h, 8, 0.1 * sign)):
                weights[f"base_model.model.model.layers.{i}.self_attn.q_proj.lora_{side}.weight"] = torch.randn(rows, columns, generator=g) * factor
        save_file(weights, path / "adapter_model.safetensors")
        (path / "adapter_config.json").write_text(json.dumps({
            "peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none", "task_type": "CAUSAL_LM"}))
        return path

    def start(self, path):
        engine.stop()
        wait_until(lambda: manager.number("sessions") == 0, "the engine has gone")
        engine.start("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"adapter={path}")
        wait_until(manager.registered, "it has registered")

        def read():
            q = tokens(next(salts), 200)
            self.answer(q, "adapter", "first")
            self.saved()
            self.empty()
            return self.answer(q, "adapter", "first").cached == restorable(200)

        wait_until(read, "the adapter's files are read: nothing of it is kept before")

    def answer(self, p, model, salt=None):
        return complete(engine, p, ANSWER, salt, model)

    def test_adapters(self):
        p = tokens("adapter", 1000)
        self.start(self.write(1))
        plain, adapted = self.answer(p, MODEL), self.answer(p, "adapter")
        self.assertEqual((plain.cached, adapted.cached), (0, 0))
        self.assertNotEqual(plain.ids, adapted.ids, "the adapter changes nothing: the check is worth nothing")
        self.saved()
        self.empty()
        for model, want in ((MODEL, plain), ("adapter", adapted)):
            got = self.answer(p, model)
            self.assertEqual((got.cached, got.ids), (restorable(1000), want.ids), model)

        # The files are written again below the engine, which goes on with the weights that it has: what it computes now must have no name.
        path = self.write(-1)
        self.empty()
        q = tokens("adapter, later", 1000)
        for _ in range(2):
            published = manager.number("published_blocks_total", 'disposition="write"')
            got = self.answer(q, "adapter")
            self.saved()
            self.assertEqual(got.cached, 0, "restored for an adapter of which nobody knows what it is")
            self.assertEqual(manager.number("published_blocks_total", 'disposition="write"'), published, "pages of nobody knows which adapter")
            self.empty()
        stale = got.ids

        self.start(path)
        got = self.answer(p, MODEL)
        self.assertEqual((got.cached, got.ids), (restorable(1000), plain.ids))
        got = self.answer(p, "adapter")
        self.assertEqual(got.cached, 0, "another adapter's pages")
        self.assertNotEqual(got.ids, adapted.ids)
        got = self.answer(q, "adapter")
        self.assertEqual(got.cached, 0, "pages of the weights that were there before")
        self.assertNotEqual(got.ids, stale)


class OneProcess(Case):
    """The scheduler's half and the rank's in one process, which vLLM makes by itself on one GPU: whatever ends its session, all that it had is given back, and it goes on."""

    @classmethod
    def setUpClass(cls):
        cls.prompts = [tokens(f"one process {i}", 1000 + 500 * i) for i in range(4)]
        cls.want = [complete(engine, p, ANSWER).ids for p in cls.prompts]
        wait_until(lambda: manager.number("granted_bytes") == 0, "nothing is being published")
        engine.again(executor="uni")

    def test_one_process(self):
        names = subprocess.run(["ps", "-s", str(engine.group()), "-o", "args="], capture_output=True, text=True, check=True).stdout
        self.assertNotIn("Worker", names)
        with self.subTest("what an engine of two processes has kept"):
            self.assertEqual([(a.cached, a.ids) for a in map(self.say, self.prompts)], [(restorable(len(p)), w) for p, w in zip(self.prompts, self.want)])
        self.empty()
        with self.subTest("the Manager killed within a load"):
            self.assertEqual(self.in_a_load(manager.kill, self.prompts[-1]).ids, self.want[-1])
            manager.start()
            self.registered_again(self.prompts, self.want)
        with self.subTest("another session while the Manager lives"):  # what is copied meanwhile is TestPythonHalves' and vllm_check.py's
            self.renewed(lambda: self.post("/reset_prefix_cache?reset_external=true"))
            wait_until(lambda: manager.number("quarantined_bytes") == 0, "nothing waits for the engine's end")
            self.registered_again(self.prompts, self.want)
        with self.subTest("killed"):
            self.kill_while_publishing(tokens("one process, killed", 4000))
        results.append("scheduler and rank in one process: restored what two had kept, and after a Manager killed within a load and another session; killed, it held nothing")


folder = tempfile.TemporaryDirectory()
manager = Manager("restore-manager", folder.name, LOGS, SLOTS * PAGE)
engine = SlowEngine(folder.name)


def sweep():
    """What an interrupted run leaves."""
    for server in (engine.server, manager.server):
        if server is not None and server.child.poll() is None:
            server.child.send_signal(signal.SIGCONT)
            server.child.terminate()


def setUpModule():
    atexit.register(sweep)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the one exception that unittest lets through
    unittest.addModuleCleanup(folder.cleanup)
    manager.start()
    unittest.addModuleCleanup(lambda: manager.server.child.poll() is None and manager.stop())
    engine.start()
    unittest.addModuleCleanup(engine.stop)
    wait_until(manager.registered, "the engine has registered")


ORDER = [Restored, Times, Preempted, Aborted, Flipped, Lost, Fresh, OneProcess, Defaults, Weights, Adapters]


def load_tests(loader, *_):
    return unittest.TestSuite(loader.loadTestsFromTestCase(c) for c in ORDER)


if __name__ == "__main__":
    if not os.access(BIN, os.X_OK):
        sys.exit(f"{BIN}: missing; run: make build")
    program = unittest.main(exit=False, verbosity=2)
    print("what took how long:")
    watch.print()
    for line in results:
        print("   ", line)
    sys.exit(not program.result.wasSuccessful())
