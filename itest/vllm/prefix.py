"""The checks of the prefix index against two real engines: what the gateway believed an engine to hold as it chose (the decision log), what
the engine then used (cached_tokens of the usage, and its counters), and what a subscriber of our own makes of the same events.

Run by qualify.py. Each test has a gateway of its own, and engines whose caches are empty.
"""

import collections
import datetime
import random
import statistics
import threading
import time
import unittest

import msgspec
import openai
import zmq

from fleet import BLOCK, BLOCKS, MODEL, Gateway, picked
from servers import ask, at_once, wait_until

# From an engine's step to the index, and the bound for repair or withdrawal after a loss: what has become wrong counts no longer than this.
BOUND_S = 1.0


def cache_aware():
    """A policy in which a prefix of one block decides. Where the events come from is left to the engines to tell."""
    return {"name": "cache_aware", "min_matched_tokens": BLOCK}


def predicted(decision, engine):
    """The tokens of the prompt that the index took the engine to hold as the decision was made, None if it was blind for it."""
    t = decision["attempts"][-1]["tries"][-1]
    if t.get("prefix_source_error") or t.get("prefix_source") != "local":
        raise AssertionError(f"no answer of the index: {t}")
    return next(c for c in t["considered"] if c["engine"] == engine.name).get("matched_tokens")


def stream(gateway, engine):
    """How the gateway follows an engine, as GET /debug/prefixes tells it; {} if it does not."""
    return next((s for s in ask(gateway.admin + "/debug/prefixes")["streams"] if s["worker"] == engine.name), {})


def state(gateway, engine):
    """"exact", "partial", "repairing" or "blind"."""
    return stream(gateway, engine).get("state")


def usable(prompt_tokens, held):
    """What an engine can use of what it holds: whole blocks, and one token at least is always computed."""
    return min(held, (prompt_tokens - 1) // BLOCK * BLOCK)


def cached_tokens(usage):
    return (usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens) or 0


class Witness:
    """Follows an engine's events by libzmq and msgspec, which the engine itself publishes with, and shares nothing with the gateway.

    It keeps a set of the blocks, which must say what the gateway's index says, and counts their copies, which must say what the engine does.
    """

    def __init__(self, engine):
        self.copies = collections.Counter()  # by the engine's own hashes
        self.there = set()
        self.names = {}  # (hash of the parent, tokens, extra keys) of a block: its hash
        self.stored, self.removed = collections.defaultdict(list), collections.defaultdict(list)  # when, by hash
        self.mutex = threading.Lock()
        self.cleared = self.next = 0
        self.wrong = []
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.setsockopt(zmq.SUBSCRIBE, b"")
        self.socket.connect(f"tcp://127.0.0.1:{engine.events_port}")
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)  # an interrupt does not come by end()
        self.thread.start()

    def run(self):
        while not self.ended.is_set():
            if self.socket.poll(100):
                _, number, payload = self.socket.recv_multipart()
                batch = msgspec.msgpack.decode(payload)
                with self.mutex:
                    for e in batch[1]:
                        self.apply(e)
                    self.next = int.from_bytes(number, "big") + 1
        self.socket.close()

    def apply(self, e):
        now = time.time()
        match e["type"]:
            case "AllBlocksCleared":
                self.copies.clear()
                self.there.clear()
                self.cleared += 1
            case "BlockRemoved":
                self.copies.subtract(e["block_hashes"])
                self.there.difference_update(e["block_hashes"])
                for h in e["block_hashes"]:
                    self.removed[h].append(now)
            case "BlockStored":
                parent, extras = e["parent_block_hash"], e.get("extra_keys") or [None] * len(e["block_hashes"])
                self.copies.update(e["block_hashes"])
                self.there.update(e["block_hashes"])
                for i, h in enumerate(e["block_hashes"]):
                    self.names[parent, tuple(e["token_ids"][i * BLOCK:(i + 1) * BLOCK]), tuple(extras[i] or ())] = h
                    self.stored[h].append(now)
                    parent = h
            case other:
                self.wrong.append(other)

    def blocks(self, prompt, salt):
        """The engine's names of the prompt's full blocks, as far as it ever had them."""
        parent, out = None, []
        for n in range(0, len(prompt) - BLOCK + 1, BLOCK):
            parent = self.names.get((parent, tuple(prompt[n:n + BLOCK]), (salt,) if salt and n == 0 else ()))
            if parent is None:
                break
            out.append(parent)
        return out

    def holds(self, prompt, salt=None):
        """(tokens of the prompt that are there by the set, by counting copies)"""
        with self.mutex:
            names = self.blocks(prompt, salt)
            depth = lambda held: BLOCK * next((i for i, h in enumerate(names) if not held(h)), len(names))
            return depth(self.there.__contains__), depth(lambda h: self.copies[h] > 0)

    def explains(self, prompt, salt, foreseen, cached, begin, end):
        """Whether events explain the difference of a request that was chosen for and answered in a time: its first block that is in question was
        stored, or removed, in that time, give or take the bound, or one copy of it had been removed and another was left."""
        with self.mutex:
            h = self.blocks(prompt, salt)[min(foreseen, cached) // BLOCK]
            stored, removed = self.stored[h], self.removed[h]
            near = lambda times: any(begin - BOUND_S <= t <= end + BOUND_S for t in times)
            if foreseen > cached:
                return near(removed)
            before = [t for t in removed if t < end]
            return near(stored) or bool(before) and len([t for t in stored if t < end]) > len(before)

    def end(self):
        self.ended.set()
        self.thread.join()


class Tally:
    """Requests by what was foreseen of them and what the engine used."""

    def __init__(self):
        self.requests = collections.Counter()
        self.tokens = collections.Counter()

    def add(self, foreseen, cached):
        how = "exact" if foreseen == cached else "too little" if foreseen < cached else "too much"
        self.requests[how] += 1
        self.tokens["prompt tokens foreseen"] += foreseen
        self.tokens["and used"] += cached
        return how

    def share(self, how):
        return self.requests[how] / max(self.requests.total(), 1)

    def __str__(self):
        return ", ".join(f"{k} {v:g}" for k, v in (self.requests + self.tokens).items())


tallies = collections.defaultdict(Tally)  # by what was done; printed at the end of the run
measured = []  # (what, seconds)
lags = []  # ms from an engine's making a batch to its being applied


class PrefixCase(unittest.TestCase):
    """Two engines with empty caches and a gateway that follows them. engines is set by qualify.py."""

    engines = ()
    policy = staticmethod(cache_aware)
    seed = 0

    def setUp(self):
        began = time.monotonic()
        self.addCleanup(lambda: measured.append((self.id().split(".", 1)[1], time.monotonic() - began)))
        self.a, self.b = self.engines
        self.witnesses = {}
        for e in self.engines:
            self.reset(e)
        self.g = self.gateway()
        self.followed = {e.name: stream(self.g, e)["next_batch"] for e in self.engines}
        self.client = openai.OpenAI(base_url=self.g.url + "/v1", api_key="sk-itest", max_retries=0, timeout=120)
        self.addCleanup(self.client.close)

    def gateway(self):
        """One more, that follows both engines."""
        g = Gateway(self.policy(), self.engines)
        self.addCleanup(lambda: self.assertEqual(g.stop(), 0))
        g.ready()
        for e in self.engines:
            began = time.monotonic()
            wait_until(lambda: state(g, e) == "exact", f"the index follows {e.name}")
        measured.append(("a gateway, from ready to exact", time.monotonic() - began))
        return g

    def reset(self, e):
        """Empties an engine, which tells of it with its next step; so let there be one."""
        w = Witness(e)
        self.addCleanup(w.end)
        self.witnesses[e.name] = w

        def told():
            e.reset()
            self.direct(e, [1])
            return w.cleared

        wait_until(told, f"{e.name} tells that it is empty")

    def direct(self, e, prompt, n=1, **more):
        """Past the gateway."""
        return ask(e.url + "/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": n, "temperature": 0} | more)

    def fresh(self, n):
        """A prompt of n tokens that shares no block with any other."""
        PrefixCase.seed += 1
        return [(PrefixCase.seed * 7919 + i * 104729) % 140000 for i in range(n)]

    def ask_once(self, prompt, n=1, **more):
        """(engine, foreseen, cached, time): who got it, what the index believed, as much as can be used of it, what the engine used, when."""
        PrefixCase.seed += 1
        rid = f"prefix-{PrefixCase.seed}-{time.monotonic_ns()}"
        r = self.client.completions.create(model=MODEL, prompt=prompt, max_tokens=n, temperature=0, extra_headers={"x-request-id": rid}, extra_body=more or None)
        d = self.g.decision(rid)
        engine = next(e for e in self.engines if e.name == picked(d))
        cached = cached_tokens(r.usage)
        self.assertEqual((d["input_tokens"], d["input_exact"], d["prompt_tokens"], d["cached_tokens"]), (len(prompt), True, len(prompt), cached))
        held = predicted(d, engine)
        self.assertIsNotNone(held, f"the index is blind for {engine.name}")
        self.said = r.choices[0].model_extra.get("token_ids") or []
        return engine, usable(len(prompt), held), cached, datetime.datetime.fromisoformat(d["time"]).timestamp()

    def complete(self, prompt, n=1, tally="one by one", **more):
        """The first three of ask_once, and the engines' counters agree."""
        alive = [e for e in self.engines if e.alive()]
        before = {e.name: e.prefix_tokens() for e in alive}
        engine, foreseen, cached = self.ask_once(prompt, n, **more)[:3]
        for e in alive:
            asked, found = (x - y for x, y in zip(e.prefix_tokens(), before[e.name]))
            self.assertEqual((asked, found), (len(prompt), cached) if e is engine else (0, 0), f"counters of {e.name}")
        tallies[tally].add(foreseen, cached)
        return engine, foreseen, cached

    def settle(self):
        """Lets the bound pass, and longer if the gateway has not applied by then what the witnesses have."""
        time.sleep(BOUND_S)
        self.up_to_date()

    def note_lags(self):
        for e in self.engines:
            now = stream(self.g, e)
            # A batch that was replayed has none: its age is no lag. A quiet engine's may come by a replay first, since it is asked all the time.
            if now and now["next_batch"] > self.followed[e.name]:
                self.followed[e.name] = now["next_batch"]
                if "lag_ms" in now:
                    lags.append(now["lag_ms"])

    def up_to_date(self):
        """Waits until nothing more comes from the engines, and the gateway has applied what did. That takes less than the bound, on a machine that has time for it."""
        def batches():
            return {e.name: self.witnesses[e.name].next for e in self.engines}

        def applied(e):
            now = stream(self.g, e)
            # On a machine that has no time a connection's heartbeat is late, too, and the gateway blind for a moment.
            return now["next_batch"] >= seen[e.name] and (now["state"] != "blind" or not e.alive())

        seen, quiet = None, 0
        while quiet < 5:  # 0.1 s: an engine's last batch leaves it when its answer may be here already
            time.sleep(0.02)
            now = batches()
            quiet, seen = quiet + 1 if now == seen else 0, now
            if quiet == 5:
                wait_until(lambda: all(map(applied, self.engines)), "the gateway has applied it")
                quiet = 5 if batches() == seen else 0
        self.note_lags()


class Families(PrefixCase):
    def test_land_where_their_prefix_is(self):
        """The first member of a family may go anywhere, the others follow it; prediction and counters agree."""
        families = [self.fresh(n) for n in (512, 1024, 1536)]
        homes = []
        for f in families:
            engine, *got = self.complete(f + self.fresh(40))
            self.assertEqual(got, [0, 0])
            homes.append(engine)
        self.settle()
        for _ in range(3):
            for f, home in zip(families, homes):
                self.assertEqual(self.complete(f + self.fresh(40)), (home, len(f), len(f)))

    def test_not_whole_blocks(self):
        for n in (500, 777, 1999):
            f = self.fresh(n)
            home, *_ = self.complete(f)
            self.settle()
            for extra in (1, 31, 200):
                self.assertEqual(self.complete(f + self.fresh(extra)), (home, n // BLOCK * BLOCK, n // BLOCK * BLOCK))

    def test_the_same_prompt(self):
        """A prompt of whole blocks: all of it is held, and the engine computes its last block again."""
        p = self.fresh(640)
        home, *_ = self.complete(p)
        for _ in range(3):
            self.settle()
            self.assertEqual(self.complete(p), (home, 608, 608))

    def test_what_was_said_is_held_too(self):
        """A conversation's next turn: the blocks that decoding filled count."""
        p = self.fresh(500)
        r = ask(self.g.url + "/v1/completions", {"model": MODEL, "prompt": p, "max_tokens": 100, "temperature": 0, "ignore_eos": True, "return_token_ids": True})
        self.settle()
        said = r["choices"][0]["token_ids"]
        self.assertEqual(len(said), 100)
        # The last token was sampled, and its KV never computed.
        self.assertEqual(self.complete(p + said + self.fresh(20))[1:], (576, 576))

    def test_a_conversation(self):
        """Text that the gateway has to template and encode itself: each turn finds the one before."""
        messages, home, last = [{"role": "system", "content": "Moons. " * 100}], None, 0
        for turn in range(5):
            messages.append({"role": "user", "content": f"Turn {turn}: name a moon of Saturn, and {'why ' * 30}"})
            rid = f"prefix-chat-{time.monotonic_ns()}"
            r = self.client.chat.completions.create(model=MODEL, messages=messages, max_tokens=40, temperature=0, extra_headers={"x-request-id": rid})
            d = self.g.decision(rid)
            engine = next(e for e in self.engines if e.name == picked(d))
            cached = cached_tokens(r.usage)
            self.assertEqual(usable(r.usage.prompt_tokens, predicted(d, engine)), cached)
            tallies["one by one"].add(cached, cached)
            if home:
                self.assertIs(engine, home)
                self.assertGreaterEqual(cached, last // BLOCK * BLOCK - BLOCK)
            home, last = engine, r.usage.prompt_tokens
            messages.append({"role": "assistant", "content": r.choices[0].message.content})
            self.settle()

    def test_salts_are_apart(self):
        p = self.fresh(640)
        home, *_ = self.complete(p, cache_salt="tenant-a")
        self.settle()
        self.assertEqual(self.complete(p, cache_salt="tenant-a"), (home, 608, 608))
        for other in ({}, {"cache_salt": "tenant-b"}):
            self.assertEqual(self.complete(p, **other)[1:], (0, 0))
            self.settle()
            self.assertEqual(self.complete(p, **other)[1:], (608, 608))

    def test_clients_see_nothing_of_it(self):
        """An answer that used a prefix is the one that did not, and the one of the engine itself; nothing tells of engines or of caches but the usage."""
        p = self.fresh(640)

        def answer(url, headers=None):
            r = openai.OpenAI(base_url=url + "/v1", api_key="sk-itest", max_retries=0).completions.with_raw_response.create(
                model=MODEL, prompt=p, max_tokens=12, temperature=0, extra_headers=headers)
            body = msgspec.json.decode(r.content)
            cached = (body["usage"].pop("prompt_tokens_details") or {}).get("cached_tokens", 0)
            return {k: v for k, v in body.items() if k not in ("id", "created")}, cached, {k.lower() for k in r.headers}

        cold, none, _ = answer(self.g.url)
        self.settle()
        warm, some, headers = answer(self.g.url)
        home = next(e for e in self.engines if self.witnesses[e.name].holds(p)[0])
        itself, same, its_headers = answer(home.url)
        self.assertEqual((none, some, same), (0, 608, 608))
        self.assertEqual(warm, cold)
        self.assertEqual(warm, itself)
        self.assertLessEqual(headers - its_headers, {"x-request-id"})

    def test_many_at_once(self):
        families = [self.fresh(512) for _ in range(4)]
        homes = [self.complete(f)[0] for f in families]
        self.settle()
        got = at_once([lambda i=i: self.ask_once(families[i % 4] + [i] * 20, 2) for i in range(16)])
        self.assertEqual([g[:3] for g in got], [(homes[i % 4], 512, 512) for i in range(16)])


class Cost(PrefixCase):
    """The same by the policy cost: engines that are idle, so that prefixes decide."""

    policy = staticmethod(lambda: {"name": "cost"})
    test_land_where_their_prefix_is = Families.test_land_where_their_prefix_is
    test_salts_are_apart = Families.test_salts_are_apart


class Traffic(PrefixCase):
    """Seeded random prompts: of families, some of tenants with salts, some asked again, some going on from an answer; twice what both engines hold."""

    def setUp(self):
        super().setUp()
        self.random = random.Random(1)
        families = [(self.fresh(self.random.randrange(300, 1500)), self.random.choice(["", "", "", "tenant-a"])) for _ in range(8)]
        self.families, self.earlier = families, []

    def prompt(self):
        """(tokens, salt, tokens of its answer)"""
        r = self.random
        if self.earlier and (how := r.random()) < 0.5:
            prompt, salt, said, n = r.choice(self.earlier)
            if how < 0.25:
                return prompt, salt, n
            return (prompt + said + self.fresh(r.randrange(1, 100)))[:2000], salt, 2
        f, salt = r.choice(self.families)
        return f[:r.randrange(100, len(f))] + self.fresh(r.randrange(1, 300)), salt, r.choice([1, 2, 40])

    def more(self, salt):
        return {"ignore_eos": True, "return_token_ids": True} | ({"cache_salt": salt} if salt else {})

    def test_one_after_the_other(self):
        """The index has exactly the set of what was announced: never too much, and too little only where one copy of several was removed."""
        what = "traffic, one after the other"
        for _ in range(120):
            prompt, salt, n = self.prompt()
            self.up_to_date()
            known = {e.name: [usable(len(prompt), h) for h in self.witnesses[e.name].holds(prompt, salt)] for e in self.engines}
            engine, foreseen, cached = self.complete(prompt, n, what, **self.more(salt))
            self.earlier.append((prompt, salt, self.said, n))
            self.assertEqual([foreseen, cached], known[engine.name], "the witness, by its set and by counting copies")
            self.assertLessEqual(foreseen, cached)
        self.assertGreaterEqual(tallies[what].share("exact"), 0.9, tallies[what])
        self.assertEqual([w.wrong for w in self.witnesses.values()], [[], []])

    def test_at_once(self):
        """Four clients that wait for nothing: between a choice and the engine's step others change what it holds, and nothing else makes a difference."""
        what = "traffic, four at once"
        mutex, t, odd = threading.Lock(), tallies[what], []
        left = iter(range(120))

        def client():
            while True:
                with mutex:
                    if next(left, None) is None:
                        return
                    prompt, salt, n = self.prompt()
                    self.earlier.append((prompt, salt, [], n))
                engine, foreseen, cached, at = self.ask_once(prompt, n, **self.more(salt))
                with mutex:
                    if t.add(foreseen, cached) != "exact":
                        odd.append((engine.name, prompt, salt, foreseen, cached, at, time.time()))

        at_once([client] * 4)
        time.sleep(BOUND_S)
        for engine, prompt, salt, foreseen, cached, begin, end in odd:
            self.assertTrue(self.witnesses[engine].explains(prompt, salt, foreseen, cached, begin, end),
                            f"{engine}: {len(prompt)} tokens, foreseen {foreseen}, used {cached}, and nothing changed")
        self.assertGreaterEqual(t.share("exact"), 0.8, t)


class Changes(PrefixCase):
    def test_evictions_are_followed(self):
        """Prompts that are more than an engine holds: what it evicted is believed of it no longer, block by block."""
        p = self.fresh(1024)
        home, *_ = self.complete(p)
        others = [self.fresh(1500) for _ in range(3)]
        self.assertGreater(1024 + 3 * 1500, BLOCKS * BLOCK, "else nothing has to go")
        for q in others:  # directly, so that they land there
            self.direct(home, q)
        seen = []
        for q in (p, *others):
            self.settle()
            _, foreseen, cached = self.complete(q)
            self.assertEqual(foreseen, cached)
            seen.append(cached - usable(len(q), len(q)))
        self.assertTrue(any(-1472 < s < 0 for s in seen), f"none was held in part: {seen}")

    def test_a_removed_copy(self):
        """The one difference that the events leave open. The engine computes a prompt's last block again and has it twice; when it evicts the older
        copy it says that the block is gone, and who keeps a set believes it."""
        p = self.fresh(640)
        home, w = self.a, self.witnesses[self.a.name]
        for _ in range(2):
            self.direct(home, p)
        for _ in range(BLOCKS):  # of one block each, until the oldest of p's is evicted
            q = self.fresh(BLOCK)
            self.direct(home, q)
            wait_until(lambda: w.holds(q) == (BLOCK, BLOCK), "the events have come")
            if w.holds(p) != (640, 640):
                break
        self.assertEqual(w.holds(p), (608, 640))
        self.settle()
        self.assertEqual(self.complete(p + [1], tally="a removed copy"), (home, 608, 640))

    def test_a_reset_is_followed(self):
        p = self.fresh(640)
        home, *_ = self.complete(p)
        self.settle()
        home.reset()
        # vLLM says so with its next step; until then nobody can know.
        self.direct(home, self.fresh(40))
        self.settle()
        self.assertEqual(self.complete(p)[1:], (0, 0))

    def test_a_gateway_that_comes_late_asks_for_what_it_missed(self):
        p = self.fresh(640)
        home, *_ = self.complete(p)
        late = self.gateway()
        rid = f"prefix-late-{time.monotonic_ns()}"
        usage = ask(late.url + "/v1/completions", {"model": MODEL, "prompt": p, "max_tokens": 1}, {"x-request-id": rid})["usage"]
        d = late.decision(rid)
        self.assertEqual((picked(d), predicted(d, home), usage["prompt_tokens_details"]["cached_tokens"]), (home.name, 640, 608))
        self.assertEqual(stream(late, home)["blocks"], stream(self.g, home)["blocks"])


class Killed(PrefixCase):
    """A dead engine's claims are withdrawn within the bound; started again it holds nothing, and is followed from its first event on.

    The parts of a test of qualify.py that kills an engine, since it takes minutes to start one.
    """

    def runTest(self):
        raise NotImplementedError

    def up_to_date(self):
        """An engine that was started again counts from the beginning, and its witness may have missed that."""

    def before(self, home):
        self.home, self.p = home, self.fresh(640)
        self.direct(home, self.p)
        self.settle()
        self.assertEqual(self.complete(self.p), (home, 608, 608))

    def killed(self):
        """Right after the signal."""
        began = time.monotonic()
        wait_until(lambda: state(self.g, self.home) == "blind", "its claims are withdrawn")  # within the bound: what it took is printed
        measured.append(("SIGKILL to the end of the belief", time.monotonic() - began))

    def away(self):
        other = self.a if self.home is self.b else self.b
        self.assertEqual(self.complete(self.p), (other, 0, 0))

    def followed_again(self):
        began = time.monotonic()
        wait_until(lambda: state(self.g, self.home) == "exact", "the index follows it again")
        measured.append(("ready again to exact", time.monotonic() - began))
        self.assertEqual(stream(self.g, self.home)["blocks"], 0, "what it held before")

    def again(self):
        q = self.fresh(640)
        self.direct(self.home, q)
        self.settle()
        wait_until(lambda: self.g.worker(self.home)["breaker"] == "closed", "it may get requests")
        self.assertEqual(self.complete(q + [1]), (self.home, 640, 640))
        engine, *got = self.complete(self.p)
        self.assertIsNot(engine, self.home)  # the other has it since
        self.assertEqual(got, [608, 608])


CASES = [Families, Cost, Traffic, Changes]


def report():
    print("==> seconds of the prefix checks")
    for what, s in measured:
        print(f"    {what:<70} {s:7.2f} s")
    print("==> foreseen and used")
    for what, t in tallies.items():
        print(f"    {what}: {t}")
    if lags:
        print(f"    {len(lags)} batches, applied {statistics.median(lags):.1f} ms after they were made by the median, {max(lags):.1f} ms at most")
