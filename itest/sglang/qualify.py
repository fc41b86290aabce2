"""A real SGLang engine and the Cache Manager: what is restored gives the same answers as what is computed, and prefill is really saved.

Run by scripts/sglang/qualify.sh. Prompts are token ids. What an answer should be is what the same engine says to the same prompt under a salt that nobody
else has: then nothing can be restored or found in its own cache, which each such answer proves by its usage. One engine after another, since
starting one is what takes the time; the order of ORDER at the end matters.
"""

import atexit
import concurrent.futures
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "itest"))
from manager import Manager, flip  # noqa: E402
from servers import BIN, Server, Stopwatch, ask, at_once, fetch, free_port, tokens, wait_until  # noqa: E402

LOGS = ROOT / ".cache/sglang/log"
MODEL = "tiny"
PAGE = 16  # tokens
BYTES = 64 << 10  # of a page: 4 layers, keys and values of 2 heads of 64 in float32
TOKENS = 16384  # of the device pool; the host pool is twice as large
SLOTS = 16384  # of the Manager's pool: 1 GiB, half of it for each of two engines, and more than all of this saves
ANSWER = 6  # tokens: enough to tell answers apart, and each is a step of the engine
LENGTHS = (100, 129, 500, 1000, 1025, 1999, 3000)
ZEROS = bytes(16 << 20)
HOLD = "600"  # seconds: until the check has done what it wants to do meanwhile
REGISTERED = "Perigee: registered with the Cache Manager"
REFUSED = "Perigee: the cache is not flushed: pages are still being restored"
WAIT_S = 20  # a request waits so long for its pages: more than a busy machine takes
STAGED = 512  # pages of the linker's staging memory: not so many that what is not given back would not be seen
watch = Stopwatch()
results = []  # lines for the end
salts = iter(range(1, 1 << 30))


class Engine:
    """SGLang with the backend."""

    def __init__(self, manager, folder):
        self.manager, self.port, self.events, self.replay, self.server = manager, free_port(), free_port(), free_port(), None
        self.url = f"http://127.0.0.1:{self.port}"
        self.slow, self.held = pathlib.Path(folder, "slow"), pathlib.Path(folder, "slow.held")  # see slow_gets.py

    def start(self, *more, allocator="shm", env=(), **settings):
        """allocator "default" is a host pool that is nobody else's: then the backend copies. settings are of the extra config."""
        extra = {
            "backend_name": "perigee", "module_path": "slow_gets", "class_name": "SlowStorage", "interface_v1": 1,
            "prefetch_threshold": PAGE, "socket": self.manager.socket, "instance": "qualify", "model": MODEL, "url": self.url, "allocator": allocator,
            # Budgets that a busy machine does not use up: what is checked is that all is restored.
            "lookup_ms": 5000, "prefetch_timeout_base": WAIT_S} | settings
        self.begin([
            "--enable-hierarchical-cache", "--hicache-ratio", "2", "--hicache-write-policy", "write_through", "--hicache-io-backend", "direct",
            "--hicache-mem-layout", "page_first_direct", "--hicache-storage-prefetch-policy", "timeout", "--hicache-storage-backend", "dynamic",
            "--hicache-storage-backend-extra-config", json.dumps(extra), *more], env)

    def start_linked(self):
        """With the linker in the place of the host pool and its storage."""
        linker = {"linker": "SlowLinker", "linker_module_path": "slow_gets", "linker_extra_config": {
            "socket": self.manager.socket, "instance": "qualify", "model": MODEL, "url": self.url, "lookup_ms": 5000, "budget_ms": 1000 * WAIT_S, "staging_bytes": STAGED * BYTES}}
        self.begin(["--enable-unified-cache-external-linker", "--unified-cache-external-linker-backend", "dynamic", "--unified-cache-external-linker-config", json.dumps(linker)])

    def begin(self, flags, env=()):
        path = f"{ROOT / 'python'}:{ROOT / 'itest/sglang'}"
        with watch.row("an engine, from nothing to ready"):
            self.server = Server("qualify-engine", LOGS, [
                "env", f"PYTHONPATH={path}", f"PERIGEE_SLOW_GETS={self.slow}", *env, ROOT / "scripts/sglang/serve.sh", "--name", "qualify-engine", "--port", self.port,
                "--page", PAGE, "--tokens", TOKENS, "--events-port", self.events, "--replay-port", self.replay, "--", *flags])
            self.server.ready()

    def stop(self):
        if self.server is not None and self.server.child.poll() is None:
            if self.server.stop() != 0:
                raise AssertionError("the engine did not end in order")

    def kill(self):
        os.killpg(int((LOGS / "qualify-engine.pgid").read_text()), signal.SIGKILL)
        self.server.child.wait()
        self.server.child.stdout.close()

    def flush(self):
        """Empties its own caches, once it is idle."""
        wait_until(lambda: fetch(self.url + "/flush_cache", {})[0] == 200, "the engine is idle, and its caches are flushed")

    def refuses_a_flush(self):
        """Asks for one. True: it was refused because of restores, and not because of requests."""
        before = self.said(REFUSED)
        return fetch(self.url + "/flush_cache", {})[0] != 200 and self.said(REFUSED) > before

    def said(self, what):
        """How often its log has it."""
        return (LOGS / "qualify-engine.log").read_text(errors="replace").count(what)

    def requests(self):
        """(those that wait, those that run)."""
        loads = ask(self.url + "/v1/loads?include=core")["loads"]
        return tuple(sum(x[f"num_{k}_reqs"] for x in loads) for k in ("waiting", "running"))

    @contextlib.contextmanager
    def slowed(self, how=HOLD):
        """Gets are slow, as slow_gets.py has it, until the end, or until it is called."""
        end = lambda: self.slow.unlink(missing_ok=True)
        self.slow.write_text(how)
        try:
            yield end
        finally:
            end()

    def pools(self):
        """Its host pools, by descriptors of its processes that the kernel tells of: a file each, open for writing."""
        group, seen = (LOGS / "qualify-engine.pgid").read_text().strip(), {}
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                if stat.read_text().rpartition(")")[2].split()[2] != group:
                    continue
                for fd in stat.parent.joinpath("fd").iterdir():
                    if "/memfd:sglang_host_pool" in os.readlink(fd):
                        seen[fd.stat().st_ino] = fd
            except OSError:
                pass
        return list(seen.values())


class Answer:
    def __init__(self, prompt, body):
        self.prompt, self.ids, meta = prompt, body["output_ids"], body["meta_info"]
        self.cached = meta["cached_tokens"]
        self.of = {k: v for k, v in (meta.get("cached_tokens_details") or {}).items() if isinstance(v, int) and v}


def restorable(n):
    """What can be restored of a prompt: whole pages, and one token is always computed."""
    return (n - 1) // PAGE * PAGE


class Case(unittest.TestCase):
    ranks = 1  # of the engine, each with a host pool and an instance of its own at the Manager
    own = False  # it starts an engine of its own, in the place of whichever runs

    @classmethod
    def setUpClass(cls):
        if not cls.own and engine.server is None:
            engine.start()
            wait_until(manager.registered, "the engine has registered")

    def setUp(self):
        began = time.monotonic()
        self.addCleanup(lambda: watch.rows.append((self.id().removeprefix("__main__."), time.monotonic() - began)))

    def say(self, prompt, n=ANSWER, salt=None, adapter=None):
        body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": n, "temperature": 0, "ignore_eos": True}}
        return Answer(prompt, ask(engine.url + "/generate", body | ({"cache_salt": salt} if salt else {}) | ({"lora_path": adapter} if adapter else {})))

    def computed(self, prompt, n=ANSWER):
        """What the engine says if it computes everything."""
        a = self.say(prompt, n, f"only-{os.getpid()}-{next(salts)}")
        self.assertEqual(a.cached, 0)
        return a.ids

    def store(self, prompts, n=ANSWER, salt=None):
        """Says prompts that have no page in common with each other or with anything, and waits until the Manager has all pages of them: it is told of them after
        the answer. What is waited for is a count, so nothing else may be stored meanwhile."""
        wait_until(manager.quiet, "nothing else is stored")
        before = manager.published()
        answers = [self.say(p, n, salt) for p in prompts]
        pages = self.ranks * sum((len(p) + n - 1) // PAGE for p in prompts)
        wait_until(lambda: manager.published() - before >= pages and manager.quiet(), f"{pages} pages are stored")
        return answers

    def store_and_find(self, prompt):
        """Stores a prompt of which nothing is there: returns the answer's ids, and where its pages lie in the Manager's pool."""
        size = BYTES // self.ranks
        before = manager.slots(size)
        (want,) = self.store([prompt])
        mine = [k for k, v in manager.slots(size).items() if before.get(k) != v]
        self.assertEqual(len(mine), self.ranks * ((len(prompt) + ANSWER - 1) // PAGE), "the slots that it was stored to")
        return want.ids, mine

    def empty(self):
        """The engine's own caches are empty, and the host pool is, too: a flush alone leaves its bytes, and the next prompt gets the same slots again, so that
        a get that copies nothing would seem to work."""
        engine.flush()
        pools = engine.pools()
        self.assertEqual(len(pools), self.ranks)
        for pool in pools:
            with open(pool, "r+b", buffering=0) as f:
                for at in range(0, os.fstat(f.fileno()).st_size, len(ZEROS)):
                    os.pwrite(f.fileno(), ZEROS[:os.fstat(f.fileno()).st_size - at], at)

    def later(self, call, *args):
        """Begins a call in a thread of its own; result() of what is returned is what it gave."""
        pool = concurrent.futures.ThreadPoolExecutor(1)
        self.addCleanup(pool.shutdown)
        return pool.submit(call, *args)

    def let_go(self):
        """Waits until the engine has no request any more, and none of those that it had has begun to compute."""
        def gone():
            waiting, running = engine.requests()
            self.assertEqual(running, 0, "it computes: the restore was waited for no longer")
            return waiting == 0

        wait_until(gone, "the engine has let its requests go")

    def goes_on(self, prompt):
        """The Manager does, which stood still: waits until a prompt is restored again. The session may have been given up, and be another one by then."""
        manager.signal(signal.SIGCONT)

        def restored():
            engine.flush()
            return self.say(prompt).cached == restorable(len(prompt))

        wait_until(restored, "the Manager is used again")
        self.at_rest()

    def at_rest(self):
        wait_until(lambda: manager.quiet() and manager.leased() == 0, "nothing is held")

    def restored(self, got, want):
        """An answer that is right, with all of its prompt that can be from the Manager."""
        n = restorable(len(got.prompt))
        self.assertEqual((got.of, got.ids), ({"storage": n} if n else {}, want), len(got.prompt))


class Restored(Case):
    """In one engine, after a flush."""

    def test_lengths(self):
        prompts = [tokens(f"length {n}", n) for n in LENGTHS]
        want = self.store(prompts)
        self.assertEqual([a.cached for a in want], [0] * len(prompts))
        self.empty()
        copied = manager.number("copied_bytes_total", "restore")
        for p, w in zip(prompts, want):
            self.restored(self.say(p), w.ids)
        copied = manager.number("copied_bytes_total", "restore") - copied
        pages = sum(restorable(len(p)) for p in prompts) // PAGE
        self.assertEqual(copied, pages * BYTES, "each byte once, by the Manager")
        results.append(f"{len(prompts)} prompts of {min(LENGTHS)} to {max(LENGTHS)} tokens after a flush: {pages * PAGE} of {sum(map(len, prompts))} tokens restored, answers equal; "
                       f"{copied / (pages * BYTES):.2f} bytes copied for each restored")

    def test_the_answer_depends_on_what_is_restored(self):
        """Else equal answers would prove nothing: prompts that differ in their first page alone are answered differently."""
        tail = tokens("tail", 500)
        answers = {tuple(self.computed(tokens(f"head {i}", PAGE) + tail)) for i in range(3)}
        self.assertEqual(len(answers), 3)

    def test_partial_hits(self):
        whole = tokens("partial", 1000)
        self.store([whole])
        for shared in (64, 350, 999):
            with self.subTest(shared=shared):
                p = whole[:shared] + tokens(f"other {shared}", 300)
                want = self.computed(p)
                self.empty()
                got = self.say(p)
                self.assertEqual((got.of, got.ids), ({"storage": shared // PAGE * PAGE}, want))

    def test_the_engine_has_a_part(self):
        p = tokens("both", 1500)
        (want,) = self.store([p])
        self.empty()
        self.say(p[:700], 1)  # from the Manager, and then the engine's own
        got = self.say(p)
        self.assertEqual((got.cached, got.ids), (restorable(1500), want.ids))
        self.assertEqual(got.of, {"device": 688, "storage": restorable(1500) - 688})

    def test_what_was_answered_is_restored_too(self):
        p = tokens("a turn", 500)
        (first,) = self.store([p], 60)
        again = p + first.ids + tokens("next turn", 100)
        want = self.computed(again)
        self.empty()
        got = self.say(again)
        # The last token of an answer is never computed, so that its page may lack it.
        self.assertEqual((got.of, got.ids), ({"storage": (500 + 59) // PAGE * PAGE}, want))

    def test_salts_are_apart(self):
        p = tokens("salted", 1000)
        (want,) = self.store([p], salt="tenant-a")
        self.empty()
        self.assertEqual(self.say(p, salt="tenant-b").cached, 0)
        self.assertEqual(self.say(p).cached, 0)
        self.empty()
        self.restored(self.say(p, salt="tenant-a"), want.ids)

    def test_at_once(self):
        prompts = [tokens(f"at once {i}", 300 + 47 * i) for i in range(8)]
        want = [a.ids for a in self.store(prompts)]
        for n in (1, 4, 8):
            with self.subTest(concurrency=n):
                self.empty()
                for first in range(0, 8, n):
                    for got, w in zip(at_once([lambda p=p: self.say(p) for p in prompts[first:first + n]]), want[first:first + n]):
                        self.restored(got, w)

    def test_one_prompt_eight_times_at_once(self):
        p = tokens("eight times", 1200)
        (want,) = self.store([p])
        self.empty()
        got = at_once([lambda: self.say(p)] * 8)
        self.assertEqual([a.ids for a in got], [want.ids] * 8)
        self.assertEqual({a.cached for a in got}, {restorable(1200)})


class Times(Case):
    """Time to the first token, restored and recomputed in turns. No bound: the machine is anybody's."""

    def first(self, prompt, salt=None):
        body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 2, "temperature": 0, "ignore_eos": True}, "stream": True} | ({"cache_salt": salt} if salt else {})
        r = urllib.request.Request(engine.url + "/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
        t = time.monotonic()
        with urllib.request.urlopen(r, timeout=300) as answer:
            first = answer.readline()
            took = time.monotonic() - t
            answer.read()
        return took, json.loads(first.removeprefix(b"data: "))["meta_info"]["cached_tokens"]

    def test_first_token(self):
        for n in (1000, 2000, 4000, 8000):
            p = tokens(f"time {n}", n)
            self.store([p])
            restored, computed = [], []
            for _ in range(3 if n <= 2000 else 2):
                self.empty()
                took, cached = self.first(p)
                self.assertEqual(cached, restorable(n))
                restored.append(took)
                took, cached = self.first(p, f"time {next(salts)}")
                self.assertEqual(cached, 0)
                computed.append(took)
            show = lambda t: f"{1000 * statistics.median(t):.0f} ms ({1000 * min(t):.0f} to {1000 * max(t):.0f})"
            line = f"{n} tokens to the first token: restored {show(restored)}, computed {show(computed)}"
            results.append(line)
            print(line, flush=True)


class Aborted(Case):
    def leave(self, prompt, wait):
        """Sends a request, waits, and closes the connection."""
        body = json.dumps({"input_ids": prompt, "sampling_params": {"max_new_tokens": 4, "temperature": 0}, "stream": True}).encode()
        s = socket.create_connection(("127.0.0.1", engine.port))
        s.sendall(b"POST /generate HTTP/1.1\r\nHost: e\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        try:
            wait()
        finally:
            s.close()

    def test_abort_during_a_restore(self):
        p, meanwhile = tokens("left", 1500), tokens("meanwhile", 1500)
        (want,) = self.store([p])
        self.empty()
        with engine.slowed():
            self.leave(p, lambda: wait_until(manager.leased, "pages are leased: the restore is under way"))
            self.leave(p, lambda: wait_until(lambda: engine.requests()[0], "another waits behind it"))
            self.let_go()
            self.assertGreater(manager.leased(), 0, "the restore is over, so that nothing was aborted in it")
            self.assertTrue(engine.refuses_a_flush(), "it may still write into the host pool")
            other = self.say(meanwhile)
            self.assertGreater(manager.leased(), 0)
        engine.flush()
        self.at_rest()
        self.empty()
        self.restored(self.say(p), want.ids)
        self.restored(self.say(meanwhile), other.ids)  # what was aborted has not written over it
        self.at_rest()

    def test_many_aborts(self):
        prompts = [tokens(f"many {i}", 500) for i in range(4)]
        want = self.store(prompts)
        self.empty()
        r = random.Random(7)
        for _ in range(16):
            self.leave(r.choice(prompts), lambda: time.sleep(r.random() * 0.1))
        engine.flush()
        self.at_rest()
        self.assertEqual([self.say(p).ids for p in prompts], [w.ids for w in want])


class Flipped(Case):
    """A bit that changes in the Manager's pool is never served."""

    def begin(self, name):
        manager.flush()
        p = tokens(name, 1000)
        want, mine = self.store_and_find(p)
        self.empty()
        return p, want, mine

    def test_one_bit(self):
        p, want, mine = self.begin("one bit")
        spoiled = manager.number("spoiled_pages_total")
        flip([random.Random(3).choice(mine)])
        got = self.say(p)
        self.assertEqual(got.ids, want)
        self.assertLess(got.cached, restorable(1000))
        self.assertEqual(manager.number("spoiled_pages_total") - spoiled, 1)
        wait_until(manager.quiet, "it is stored anew")
        self.empty()
        wait_until(lambda: self.say(p).cached == restorable(1000), "it was stored anew")

    def test_a_bit_in_each_page(self):
        p, want, mine = self.begin("each page")
        flip(mine)
        got = self.say(p)
        self.assertEqual((got.cached, got.ids), (0, want))


class Lost(Case):
    """The Manager goes away while the engine serves."""

    def serve(self, during):
        """Requests run while during() does; all of them are answered as they should be. Between rounds of them the engine's own caches are flushed, so that
        each round asks the Manager. Returns how many tokens came from it."""
        prompts = [tokens(f"lost {self.id()} {i}", 300 + 50 * i) for i in range(4)]
        want = [a.ids for a in self.store(prompts)]
        self.empty()
        wrong, count, restored = [], [0], [0]
        between = threading.Barrier(3, action=engine.flush)  # it flushes only when it is idle

        def ask_on(i):
            r = random.Random(i)
            while True:
                try:
                    between.wait()
                except threading.BrokenBarrierError:
                    return
                for _ in range(2):
                    k = r.randrange(len(prompts))
                    try:
                        a = self.say(prompts[k])
                        restored[0] += a.of.get("storage", 0)
                        if a.ids != want[k]:
                            wrong.append(k)
                    except Exception as e:
                        wrong.append(e)
                    count[0] += 1

        threads = [threading.Thread(target=ask_on, args=(i,)) for i in range(3)]
        for t in threads:
            t.start()
        try:
            during(count)
        finally:
            between.abort()
            for t in threads:
                t.join()
        self.assertEqual(wrong, [])
        self.assertGreater(restored[0], 0, "nothing was restored: the engine's own caches had it all")

    def served(self, count, more=6):
        n = count[0]
        wait_until(lambda: count[0] >= n + more, f"{more} more requests", 300)

    def again(self):
        """It is registered again, stores and restores."""
        wait_until(manager.registered, "it has registered again")
        engine.flush()
        prompts = [tokens(f"again {self.id()} {i}", 400) for i in range(2)]
        want = self.store(prompts)
        self.empty()
        for p, w in zip(prompts, want):
            self.restored(self.say(p), w.ids)

    def test_killed_and_restarted(self):
        def during(count):
            for _ in range(2):
                self.served(count)
                manager.kill()
                self.served(count)
                manager.start()
                wait_until(manager.registered, "it has registered again")

        self.serve(during)
        self.again()

    def test_killed_during_a_restore(self):
        p = tokens("killed in a restore", 1500)
        (want,) = self.store([p])
        self.empty()
        engine.slow.write_text("60")
        held = []

        def kill():
            try:
                held.append(wait_until(manager.leased, "pages are leased for the restore"))
            finally:
                manager.kill()
                engine.slow.write_text("0")

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            got = self.say(p)
        finally:
            killer.join()
            engine.slow.unlink()
        self.assertEqual((len(held), got.of.get("storage", 0)), (1, 0), "it had leased pages, and got none")
        self.assertEqual(got.ids, want.ids)
        manager.start()
        self.again()

    def test_stopped_during_a_restore(self):
        """A Manager that hangs is worse than one that is gone: everything has its own end."""
        for how, under_way, check in ((HOLD, manager.leased, self.may_write), (HOLD + " before", engine.held.exists, self.writes_nothing)):
            with self.subTest(how=how):
                self.stopped(how, under_way, check)
        self.again()

    def may_write(self, others):
        """What it was asked to restore has no bound."""
        self.assertTrue(engine.refuses_a_flush())
        others()
        self.assertTrue(engine.refuses_a_flush())

    def writes_nothing(self, others):
        """It has not read a message that asks and restores in one, which was then taken back: the memory is the engine's again."""
        others()
        self.empty()
        said = engine.said(REGISTERED)
        manager.signal(signal.SIGCONT)
        wait_until(lambda: engine.said(REGISTERED) > said, "it has registered again")
        (pool,) = engine.pools()
        with open(pool, "rb") as f:
            while part := f.read(len(ZEROS)):
                self.assertTrue(part == ZEROS[:len(part)], "the host pool was written to")

    def stopped(self, how, under_way, check):
        """It stands still when pages are leased, or when it is to look for them, and then gets the message that is to have them copied."""
        prompts = [tokens(f"stopped {how} {i}", 400 + 300 * i) for i in range(4)]
        want = [a.ids for a in self.store(prompts)]
        self.empty()
        with engine.slowed(how) as end:
            first = self.later(self.say, prompts[3])
            wait_until(under_way, "a restore is under way")
            try:
                manager.stand_still()
                self.assertFalse(first.done(), "the restore is over")
                end()
                got = first.result()
                self.assertEqual((got.of.get("storage", 0), got.ids), (0, want[3]), "it computes")
                check(lambda: self.others(prompts, want))
            finally:
                self.goes_on(prompts[0])
        self.empty()
        for p, w in zip(prompts, want):
            self.restored(self.say(p), w)

    def others(self, prompts, want):
        got = at_once([lambda p=p: self.say(p) for p in prompts])
        self.assertEqual([(a.of.get("storage", 0), a.ids) for a in got], [(0, w) for w in want])

    def test_a_small_pool(self):
        """64 pages, of which each prompt takes 25 and more: blocks are evicted and refused all the time."""
        manager.kill()
        manager.start(64 * BYTES)
        wait_until(manager.registered, "it has registered again")
        prompts = [tokens(f"small {i}", 400 + 50 * i) for i in range(4)]
        want = [self.computed(p) for p in prompts]
        for _ in range(2):
            engine.flush()
            self.assertEqual([self.say(p).ids for p in prompts], want)
        self.assertGreater(manager.number("removed_blocks_total", "evicted"), 0)
        engine.flush()
        manager.kill()
        manager.start()
        self.again()


class Fresh(Case):
    """In an engine that was just started."""

    def test_after_one_that_was_killed(self):
        """By the second copy route. What the engine before held is free again, and what it stored is there."""
        prompts = [tokens(f"killed engine {n}", n) for n in LENGTHS]
        want = self.store(prompts)
        self.empty()
        with engine.slowed():
            lost = self.later(self.say, prompts[-1])
            wait_until(manager.leased, "pages are leased: a restore is under way")
            engine.kill()
        self.assertIsNotNone(lost.exception())
        wait_until(lambda: manager.number("sessions") == 0, "the engine has gone")
        self.at_rest()
        engine.start()
        wait_until(manager.registered, "it has registered")
        copied = manager.number("copied_bytes_total", "restore")
        for p, w in zip(prompts, want):
            self.restored(self.say(p), w.ids)
        n = sum(map(restorable, map(len, prompts)))
        self.assertEqual(manager.number("copied_bytes_total", "restore") - copied, n // PAGE * BYTES, "each byte once, by the Manager")
        results.append(f"{len(prompts)} prompts in a fresh engine after one that was killed: {n} of {sum(map(len, prompts))} tokens restored, answers equal")

    def test_by_the_first_route(self):
        """It copies itself what the Manager had copied: its host pool is not in shared memory."""
        prompts = [tokens(f"fresh {n}", n) for n in LENGTHS]
        want = self.store(prompts)
        another(allocator="default")
        self.assertEqual(engine.pools(), [])
        copied = manager.number("copied_bytes_total")
        for p, w in zip(prompts, want):
            self.restored(self.say(p), w.ids)
        self.store_there()
        self.assertEqual(manager.number("copied_bytes_total"), copied, "the Manager copies nothing")
        results.append(f"{len(prompts)} prompts in a fresh engine that copies itself: {sum(map(restorable, map(len, prompts)))} of {sum(map(len, prompts))} tokens restored, answers equal")

    def store_there(self):
        """What it stores by this route is restored. Its host pool cannot be overwritten from here: a longer prompt gets the same slots and does it."""
        p = tokens("by the first route", 1000)
        (want,) = self.store([p])
        engine.flush()
        self.computed(tokens("in the same slots", 3000))
        wait_until(manager.quiet, "it is stored")
        engine.flush()
        self.restored(self.say(p), want.ids)

    def test_new_weights(self):
        """They are changed in place: what the model before has left is not restored, and nothing is stored in its name. This engine has them from here on."""
        p = tokens("new weights", 1000)
        (want,) = self.store([p])
        engine.flush()
        path = other_weights(pathlib.Path(folder.name, "other model"))
        self.assertEqual(fetch(engine.url + "/update_weights_from_disk", {"model_path": str(path)})[0], 200)
        stored = manager.published()
        got = self.say(p)
        self.assertEqual(got.cached, 0)
        self.assertNotEqual(got.ids, want.ids, "the weights are the same: the check is worth nothing")
        engine.flush()  # which it does when it has nothing more to store
        self.assertEqual(manager.published(), stored)


def other_weights(path):
    """Makes a model of the same shape as the one of the checks."""
    import torch
    from safetensors.torch import load_file, save_file
    shutil.copytree(ROOT / ".cache/sglang/model", path)
    g, tensors = torch.Generator().manual_seed(5), load_file(path / "model.safetensors")
    for name, t in tensors.items():
        if "proj" in name:
            tensors[name] = t.flatten()[torch.randperm(t.numel(), generator=g)].reshape(t.shape)
    save_file(tensors, path / "model.safetensors")
    return path


class Front:
    """A gateway before engines, that hears of them and of the Manager."""

    def __init__(self, engines):
        port, admin = free_port(), free_port()
        config = {
            "models": [{"id": MODEL, "policy": "cost", "tokenizer": str(ROOT / ".cache/sglang/model")}],
            "discovery": {"static": {"workers": [{"id": name, "url": url} for name, url in engines.items()]}},
            "managers": [{"id": "host", **dict(zip(("events", "replay", "snapshot"), (f"tcp://127.0.0.1:{p}" for p in manager.events)))}],
            "server": {"port": port, "admin": {"port": admin}, "shutdown_drain": "0s"},
        }
        LOGS.mkdir(parents=True, exist_ok=True)
        file = LOGS / "qualify-gateway.yaml"
        file.write_text(json.dumps(config, indent=1))
        self.server = Server("qualify-gateway", LOGS, [BIN, "serve", "--config", file])
        self.server.ready()
        self.url, self.admin = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin}"
        wait_until(lambda: fetch(self.url + "/readyz")[0] == 200, "the gateway serves the model")
        wait_until(lambda: all(w["report"] and w["breaker"] == "closed" for w in ask(self.admin + "/debug/workers")["workers"]), "it knows all engines")

    def say(self, prompt, ident):
        """(tokens that were cached, the decision)."""
        a = ask(self.url + "/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True}, {"X-Request-ID": ident})

        def done():
            found = ask(f"{self.admin}/debug/decisions?request={ident}")["decisions"]
            return found[0] if len(found) == 1 and found[0]["done"] else None

        return (a["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0, wait_until(done, "the decision is in the log")


class Gateway(Case):
    """A prompt of which the Manager alone has the pages is known to the gateway, by its tokens."""

    def test_what_the_manager_has_is_known(self):
        front = Front({"sglang": engine.url})
        self.addCleanup(front.server.stop)
        prompts = [tokens(f"gateway {i}", 2000) for i in range(2)]
        self.store(prompts)
        self.assertEqual(manager.number("events_unnamed_blocks_total"), unnamed)
        self.empty()
        front.say(prompts[0], "first")  # has a price afterwards: unknown is not free
        self.empty()
        cached, decision = front.say(prompts[1], "second")
        self.assertEqual(cached, restorable(2000))
        foreseen = decision["attempts"][-1]["tries"][-1]["considered"][0].get("matched_tokens", 0)
        self.assertGreaterEqual(foreseen, restorable(2000), decision)
        results.append(f"a prompt that the Manager alone has: {foreseen} of 2000 tokens foreseen by the gateway, {cached} used")


    def test_without_what_is_before(self):
        """A Manager that was started anew has not got what the engine still has, and is given what follows it. By the engine's own events it knows what that is."""
        prompt = tokens("before and after", 1000)
        (want,) = self.store([prompt])
        manager.kill()
        manager.start()
        wait_until(manager.registered, "the engine has registered again")
        longer = prompt + want.ids + tokens("after", 500)
        self.assertGreaterEqual(self.say(longer).of.get("device", 0), 1000 // PAGE * PAGE)
        all_named("what follows a prefix that the Manager has not got")
        self.assertLess(manager.published(), 1000 // PAGE, "the engine has stored the prefix anew: this check needs another one")


class Told(Case):
    """An engine that gives its storage no tokens: gateways hear of its pages by its own events, of those that were stored before the Manager began to follow them, too."""

    own = True

    def test_by_events(self):
        another(notes=False)
        prompts = [tokens(f"told {i}", 1000) for i in range(2)]
        before = manager.number("events_unnamed_blocks_total")
        self.store(prompts)
        self.store([tokens("told apart", 500)], salt="tenant")
        named = all_named("what was stored without tokens")
        self.assertGreaterEqual(named - before, 2 * (1000 // PAGE) + 500 // PAGE, "they were stored with their tokens")
        front = Front({"sglang": engine.url})
        self.addCleanup(front.server.stop)
        self.empty()
        front.say(prompts[0], "told-first")
        self.empty()
        cached, decision = front.say(prompts[1], "told-second")
        foreseen = decision["attempts"][-1]["tries"][-1]["considered"][0].get("matched_tokens", 0)
        self.assertGreaterEqual((cached, foreseen), (restorable(1000),) * 2, decision)
        results.append(f"stored without tokens, {named - before} pages were named by the engine's events: {foreseen} of 1000 tokens foreseen by the gateway, {cached} used")


class Both(Case):
    """vLLM and SGLang on one Manager at once, and the gateway before both: each prompt goes to the engine that can restore it, and gets its answer."""

    def test_two_families(self):
        self.assertTrue((ROOT / ".cache/vllm/installed").exists(), "no vLLM: scripts/vllm/install.sh")
        port, events, replay = (free_port() for _ in range(3))
        url = f"http://127.0.0.1:{port}"
        transfer = {
            "kv_connector": "PerigeeConnector", "kv_connector_module_path": "perigee.vllm", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"socket": manager.socket, "instance": "vllm", "lookup_ms": 5000, "save_ms": 10000, "url": url, "model": MODEL}}
        with watch.row("a vLLM engine, from nothing to ready"):
            vllm = Server("qualify-vllm", LOGS, [
                "env", f"PYTHONPATH={ROOT / 'python'}", ROOT / "scripts/vllm/serve.sh", "--name", "sglang-vllm", "--port", port, "--events-port", events, "--replay-port", replay,
                "--blocks", "128", "--max-len", "4000", "--cpus", "0", "--dev", "--", "--kv-transfer-config", json.dumps(transfer)])
            self.addCleanup(lambda: vllm.child.poll() is None and vllm.stop())
            vllm.ready()
        self.families(url)

    def families(self, url):
        wait_until(lambda: manager.registered(2), "both have registered")

        def theirs(prompt, salt=None):
            body = {"model": MODEL, "prompt": prompt, "max_tokens": ANSWER, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
            a = ask(url + "/v1/completions", body | ({"cache_salt": salt} if salt else {}))
            return a["choices"][0]["token_ids"], (a["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0

        ours, other = [tokens(f"sglang {i}", 1600) for i in range(3)], [tokens(f"vllm {i}", 1600) for i in range(3)]
        want = [a.ids for a in self.store(ours)]
        before = manager.published()
        wanted = [theirs(p)[0] for p in other]
        wait_until(lambda: manager.published() - before >= 3 * 50 and manager.quiet(), "vLLM's are stored, too")

        def reset():
            self.empty()
            wait_until(lambda: fetch(url + "/reset_prefix_cache", {})[0] == 200, "vLLM's cache is reset")

        reset()
        got = at_once([lambda p=p: ("s", self.say(p)) for p in ours] + [lambda p=p: ("v", theirs(p)) for p in other])
        for (_, a), w in zip(got[:3], want):
            self.restored(a, w)
        self.assertEqual([g for _, g in got[3:]], [(w, 1600 // 32 * 32 - 32 if 1600 % 32 == 0 else 1600 // 32 * 32) for w in wanted])
        front = Front({"sglang": engine.url, "vllm": url})
        self.addCleanup(front.server.stop)
        # Each engine has a price afterwards: unknown is not free.
        reset()
        self.say(ours[2])
        theirs(other[2])
        reset()
        for i in range(2):
            for name, p in (("sglang", ours[i]), ("vllm", other[i])):
                cached, decision = front.say(p, f"{name}-{i}")
                picked = decision["attempts"][-1]["tries"][-1]["picked"]
                self.assertEqual((picked, cached), (name, restorable(1600) if name == "sglang" else 1568), decision)
                results.append(f"both engines on one Manager: a prompt of {name}'s went to {picked}, {cached} of 1600 tokens restored")


class Ranks(Case):
    """Two ranks, tensor parallel: each is an instance of its own at the Manager, with half of each page."""

    own, ranks = True, 2

    def test_two_ranks(self):
        # Each rank has a processor: the release binds them by itself only where there are as many NUMA nodes.
        cpus = sorted(os.sched_getaffinity(0))
        another("--tp-size", "2", env=["SGLANG_CPU_OMP_THREADS_BIND=" + "|".join(str(cpus[i % len(cpus)]) for i in range(2))])
        prompts = [tokens(f"ranks {n}", n) for n in (100, 1000, 1999)]
        want = [a.ids for a in self.store(prompts)]
        self.empty()
        for p, w in zip(prompts, want):
            self.assertEqual(self.computed(p), w)
        self.empty()
        for p, w in zip(prompts, want):
            self.restored(self.say(p), w)
        self.one_rank_lacks_a_page()
        results.append(f"two ranks: {sum(map(restorable, map(len, prompts)))} of {sum(map(len, prompts))} tokens restored, answers equal; a page that one of them lacks is restored by none")

    def one_rank_lacks_a_page(self):
        """A bit that flips in one rank's page: both end there."""
        p = tokens("one rank", 1000)
        want, places = self.store_and_find(p)
        self.empty()
        spoiled = manager.number("spoiled_pages_total")
        flip([random.Random(4).choice(places)])
        got = self.say(p)
        self.assertEqual(got.ids, want)
        self.assertLess(got.cached, restorable(1000))
        self.assertEqual(manager.number("spoiled_pages_total") - spoiled, 1)
        wait_until(manager.quiet, "it is stored anew")
        self.empty()
        wait_until(lambda: self.say(p).cached == restorable(1000), "it was stored anew")


class Adapters(Case):
    """LoRA: two adapters and the model itself have no page in common."""

    own = True

    def test_adapters(self):
        paths = {name: adapter(pathlib.Path(folder.name, name), seed) for seed, name in enumerate(("one", "two"))}
        another("--enable-lora", "--lora-backend", "torch_native", "--lora-paths", *(f"{n}={p}" for n, p in paths.items()))
        p = tokens("adapters", 1000)
        want = {}
        unnamed = manager.number("events_unnamed_blocks_total")
        for name in (None, *paths):
            stored = manager.number("published_blocks_total", 'disposition="write"')
            wait_until(manager.quiet, "nothing else is stored")
            got = self.say(p, adapter=name)
            self.assertEqual(got.cached, 0, "another's pages")
            want[name] = got.ids
            pages = (1000 + ANSWER - 1) // PAGE
            wait_until(lambda: manager.number("published_blocks_total", 'disposition="write"') - stored == pages and manager.quiet(), f"{pages} pages of its own are stored")
        self.assertEqual(len({tuple(ids) for ids in want.values()}), 3, "an adapter changes nothing: the check is worth nothing")
        self.assertEqual(manager.number("events_unnamed_blocks_total"), unnamed)
        self.empty()
        for name in ("two", None, "one"):
            self.restored(self.say(p, adapter=name), want[name])
        results.append(f"two adapters and the model itself: {restorable(1000)} of 1000 tokens of each restored, nothing in common, answers equal")


def adapter(path, seed):
    """Makes a LoRA adapter with random weights for the model of scripts/vllm/model.py."""
    import torch
    from safetensors.torch import save_file
    path.mkdir()
    g, weights, model = torch.Generator().manual_seed(seed), {}, json.loads((ROOT / ".cache/sglang/model/config.json").read_text())
    wide, rank = model["hidden_size"], 8
    for i in range(model["num_hidden_layers"]):
        for part, heads in (("q", model["num_attention_heads"]), ("k", model["num_key_value_heads"]), ("v", model["num_key_value_heads"])):
            for side, shape in (("A", (rank, wide)), ("B", (heads * model["head_dim"], rank))):
                weights[f"base_model.model.model.layers.{i}.self_attn.{part}_proj.lora_{side}.weight"] = torch.randn(*shape, generator=g) * 0.1
    save_file(weights, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": rank, "lora_alpha": 16, "target_modules": ["q_proj", "k_proj", "v_proj"], "bias": "none", "task_type": "CAUSAL_LM"}))
    return path


class Linked(Case):
    """The linker: pages go to the device pool without the host pool, and requests are passed over until theirs are here."""

    own = True

    @classmethod
    def setUpClass(cls):
        leave()
        engine.start_linked()
        wait_until(manager.registered, "it has registered")

    def empty(self):
        """The device cache is empty, and its first slots, which the next prompts get, have something else in them."""
        engine.flush()
        self.computed(tokens(f"between {next(salts)}", 4096), 1)
        engine.flush()
        self.at_rest()

    def restored(self, got, want):
        self.assertEqual((got.of, got.ids), ({"host": restorable(len(got.prompt))}, want), len(got.prompt))

    def prompts(self, name):
        """Eight, which were stored, and their answers; they and their staging memory fit in at once."""
        prompts = [tokens(f"linked {name} {i}", 300 + 47 * i) for i in range(8)]
        return prompts, [a.ids for a in self.store(prompts)]

    def say_all(self, prompts):
        return at_once([lambda p=p: self.say(p) for p in prompts])

    def test_at_once(self):
        prompts, want = self.prompts("at once")
        self.assertEqual(manager.number("events_unnamed_blocks_total"), 0)
        for n in (1, 4, 8):
            with self.subTest(concurrency=n):
                self.empty()
                for first in range(0, 8, n):
                    for got, w in zip(self.say_all(prompts[first:first + n]), want[first:first + n]):
                        self.restored(got, w)

    def test_one_prompt_eight_times_at_once(self):
        p = tokens("eight times, linked", 600)
        cold = at_once([lambda: self.say(p)] * 8)  # one computes, and the device cache overtakes the others' lookups
        wait_until(manager.quiet, "it is stored")
        self.empty()
        warm = at_once([lambda: self.say(p)] * 8)
        self.assertEqual(len({tuple(a.ids) for a in cold + warm}), 1)
        self.assertEqual({a.cached for a in warm}, {restorable(600)})
        engine.flush()
        self.at_rest()

    def test_aborted_while_it_is_looked_up(self):
        """So often that staging memory would be used up if it were not given back."""
        p = tokens("left, linked", 1500)
        (want,) = self.store([p])
        self.empty()
        for i in range(STAGED // (1500 // PAGE) + 1):
            name = f"aborted-{i}"
            with engine.slowed():
                body = {"rid": name, "input_ids": p, "sampling_params": {"max_new_tokens": ANSWER, "temperature": 0}}
                answer = self.later(fetch, engine.url + "/generate", body)
                wait_until(manager.leased, "pages are leased: it is looked up")
                fetch(engine.url + "/abort_request", {"rid": name})
                self.let_go()
                self.assertGreater(manager.leased(), 0, "the lookup is over, so that nothing was aborted in it")
            self.assertIn("abort", answer.result()[1].lower())
            self.at_rest()
        self.restored(self.say(p), want.ids)

    def test_its_time_is_up(self):
        """A lookup that takes too long: the request computes, and what comes for it is given back."""
        p = tokens("too long, linked", 1500)
        (want,) = self.store([p])
        self.empty()
        with engine.slowed():
            began = time.monotonic()
            got = self.say(p)
            self.assertGreaterEqual(time.monotonic() - began, WAIT_S)
            self.assertGreater(manager.leased(), 0)
            self.assertEqual((got.cached, got.ids), (0, want.ids))
        self.at_rest()
        self.empty()
        self.restored(self.say(p), want.ids)

    def test_a_manager_that_hangs(self):
        """It stands still in a restore, which has no bound. Requests go on, and do not wait for it one by one; the caches are flushed."""
        prompts, want = self.prompts("hangs")
        self.empty()
        with engine.slowed() as end:
            first = self.later(self.say, prompts[7])
            wait_until(manager.leased, "a restore is under way")
            try:
                manager.stand_still()
                end()
                got = first.result()
                self.assertEqual((got.cached, got.ids), (0, want[7]), "it computes")
                engine.flush()
                began = time.monotonic()
                self.assertEqual(self.say(tokens("short, beside one that hangs", 100)).cached, 0)
                took = time.monotonic() - began
                self.assertLess(took, WAIT_S, "it has waited for its whole budget")
                self.assertEqual([(a.cached, a.ids) for a in self.say_all(prompts)], [(0, w) for w in want])
            finally:
                self.goes_on(prompts[0])
        self.empty()
        for p, w in zip(prompts, want):
            self.restored(self.say(p), w)
        results.append(f"the linker beside a Manager that hangs: a request of 100 tokens took {took:.1f} s, of a budget of {WAIT_S}")

    def test_a_manager_that_is_killed(self):
        """While it restores; and back."""
        prompts, want = self.prompts("killed")
        self.empty()
        with engine.slowed() as end:
            first = self.later(self.say, prompts[7])
            wait_until(manager.leased, "a restore is under way")
            manager.kill()
            end()
            got = first.result()
            self.assertEqual((got.cached, got.ids), (0, want[7]), "it computes")
        engine.flush()
        self.assertEqual([(a.cached, a.ids) for a in self.say_all(prompts)], [(0, w) for w in want])
        manager.start()
        wait_until(manager.registered, "it has registered again")
        engine.flush()
        prompts, want = self.prompts("back")
        self.empty()
        for got, w in zip(self.say_all(prompts), want):
            self.restored(got, w)


def all_named(what):
    """Waits until gateways were told of all pages that came without a name, and returns how many these were."""
    def known():
        n = manager.number("events_unnamed_blocks_total")
        return manager.quiet() and manager.published() > 0 and manager.number("events_names") > 0 and n == manager.number("events_named_late_blocks_total")

    wait_until(known, what + " is named")
    return manager.number("events_named_late_blocks_total")


def leave():
    """The engine ends."""
    engine.stop()
    wait_until(lambda: manager.number("sessions") == 0, "the engine has gone")


def another(*flags, **settings):
    """Another engine in the place of the one that runs."""
    leave()
    engine.start(*flags, **settings)
    wait_until(lambda: manager.registered(2 if "--tp-size" in flags else 1), "it has registered")


folder = tempfile.TemporaryDirectory()
manager = Manager("qualify-manager", folder.name, LOGS, SLOTS * BYTES, instances=2, events=True)
engine = Engine(manager, folder.name)


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
    unittest.addModuleCleanup(engine.stop)


ORDER = [Restored, Times, Aborted, Gateway, Told, Flipped, Both, Lost, Fresh, Ranks, Adapters, Linked]


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
