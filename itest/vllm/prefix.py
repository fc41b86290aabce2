"""The checks of the prefix index against two real engines. They need what the gateway has not yet; see NOT_YET.

Each is written against the few things that it needs from the gateway, which are the functions below: the policy, what it believed an engine
to hold when it chose, and whether it follows an engine. The other side of every comparison is the engines' own: cached_tokens
in the usage, and their counters. None has run yet. Where those functions are right, set PrefixCase.engines and add CASES to ORDER in qualify.py.
"""

import time
import unittest

import openai

from fleet import BLOCK, BLOCKS, MODEL, Gateway, ask, at_once, fetch, picked, wait_until

NOT_YET = [
    "prefix.py (families, evictions, resets, a restart, salts): needs policy cache_aware with an index that follows the engines' KV events",
]

EVENTS_S = 1.0  # from an engine's step to the index, and the bound for repair or withdrawal after a loss


def policy():
    """A cache_aware policy in which a prefix of one block decides. Where the events come from is left to the engines to tell."""
    return {"name": "cache_aware", "min_matched_tokens": BLOCK}


def predicted(decision, engine):
    """The tokens of the prompt that the index took the engine to hold as the decision was made, None if it was blind for it."""
    considered = decision["attempts"][-1]["tries"][-1]["considered"]
    return next(c for c in considered if c["engine"] == engine.name)["prefix"]["device"]


def believed(gateway, engine):
    """"exact", "repairing" or "blind": the state of the index for an engine."""
    return gateway.worker(engine)["events"]["state"]


def hit(prompt_tokens, held):
    """What an engine can use of what it holds: whole blocks, and one token at least is always computed."""
    return min(held, (prompt_tokens - 1) // BLOCK * BLOCK)


class PrefixCase(unittest.TestCase):
    """Two engines with empty caches and a gateway that follows them. engines is set by qualify.py."""

    engines = ()
    seed = 0

    def setUp(self):
        self.a, self.b = self.engines
        for e in self.engines:
            e.reset()
        self.g = Gateway(policy(), self.engines)
        self.addCleanup(lambda: self.assertEqual(self.g.stop(), 0))
        self.g.ready()
        self.client = openai.OpenAI(base_url=self.g.url + "/v1", api_key="sk-itest", max_retries=0, timeout=120)
        self.addCleanup(self.client.close)
        for e in self.engines:
            # A reset is published with the next step, so let there be one.
            ask(e.url + "/v1/completions", {"model": MODEL, "prompt": [1], "max_tokens": 1})
            wait_until(lambda: believed(self.g, e) == "exact", f"the index follows {e.name}")

    def fresh(self, n):
        """A prompt of n tokens that shares no block with any other."""
        PrefixCase.seed += 1
        return [(PrefixCase.seed * 7919 + i * 104729) % 140000 for i in range(n)]

    def complete(self, prompt, n=1, **more):
        """(engine, predicted, cached): who got it, what the index believed, what the engine used. And the engine's counters agree."""
        rid = f"prefix-{time.monotonic_ns()}"
        before = {e.name: e.prefix_tokens() for e in self.engines}
        r = self.client.completions.create(model=MODEL, prompt=prompt, max_tokens=n, temperature=0,
                                           extra_headers={"x-request-id": rid}, extra_body=more or None)
        d = self.g.decision(rid)
        engine = next(e for e in self.engines if e.name == picked(d))
        cached = (r.usage.prompt_tokens_details and r.usage.prompt_tokens_details.cached_tokens) or 0
        for e in self.engines:
            asked, found = (x - y for x, y in zip(e.prefix_tokens(), before[e.name]))
            self.assertEqual((asked, found), (len(prompt), cached) if e is engine else (0, 0), f"counters of {e.name}")
        return engine, predicted(d, engine), cached

    def settle(self):
        time.sleep(EVENTS_S)


class Families(PrefixCase):
    def test_land_where_their_prefix_is(self):
        """Families of 500 to 2,000 tokens: the first member may go anywhere, the others follow it; prediction and counters agree."""
        lengths = [512, 1024, 1536, 520, 777, 1999]
        families = [self.fresh(n) for n in lengths[:3]]
        homes = []
        for f in families:
            engine, believed_, cached = self.complete(f + self.fresh(40))
            self.assertEqual((believed_, cached), (0, 0))
            homes.append(engine)
        self.settle()
        for round_ in range(3):
            for f, home in zip(families, homes):
                prompt = f + self.fresh(40)
                engine, held, cached = self.complete(prompt)
                self.assertIs(engine, home)
                self.assertEqual(held, len(f) // BLOCK * BLOCK)
                self.assertEqual(cached, hit(len(prompt), held))

    def test_not_whole_blocks(self):
        for n in (777, 1999):
            f = self.fresh(n)
            home, *_ = self.complete(f)
            self.settle()
            for extra in (1, 31, 200):
                engine, held, cached = self.complete(f + self.fresh(extra))
                self.assertIs(engine, home)
                self.assertEqual((held, cached), (n // BLOCK * BLOCK,) * 2)

    def test_the_same_prompt(self):
        """A prompt of whole blocks: all of it is held, and the engine computes its last block again."""
        p = self.fresh(640)
        home, *_ = self.complete(p)
        self.settle()
        engine, held, cached = self.complete(p)
        self.assertIs(engine, home)
        self.assertEqual((min(held, 640), cached), (640, 608))

    def test_what_was_said_is_held_too(self):
        """A conversation's next turn: the blocks that decoding filled count."""
        p = self.fresh(500)
        r = ask(self.g.url + "/v1/completions", {"model": MODEL, "prompt": p, "max_tokens": 100, "temperature": 0, "ignore_eos": True, "return_token_ids": True})
        self.settle()
        _, held, cached = self.complete(p + r["choices"][0]["token_ids"] + self.fresh(20))
        # The last token was sampled, and its KV never computed.
        self.assertEqual((held, cached), (599 // BLOCK * BLOCK,) * 2)

    def test_salts_are_apart(self):
        p = self.fresh(640)
        home, *_ = self.complete(p, cache_salt="tenant-a")
        self.settle()
        self.assertEqual(self.complete(p, cache_salt="tenant-a"), (home, 640, 608))
        for other in ({}, {"cache_salt": "tenant-b"}):
            _, held, cached = self.complete(p, **other)
            self.assertEqual((held, cached), (0, 0))

    def test_many_at_once(self):
        families = [self.fresh(512) for _ in range(4)]
        homes = [self.complete(f)[0] for f in families]
        self.settle()

        def one(i):
            rid = f"prefix-many-{self.seed}-{i}"
            r = self.client.completions.create(model=MODEL, prompt=families[i % 4] + [i] * 20, max_tokens=2, extra_headers={"x-request-id": rid})
            return picked(self.g.decision(rid)), (r.usage.prompt_tokens_details and r.usage.prompt_tokens_details.cached_tokens) or 0

        got = at_once([lambda i=i: one(i) for i in range(16)])
        self.assertEqual(got, [(homes[i % 4].name, 512) for i in range(16)])


class Changes(PrefixCase):
    def test_evictions_are_followed(self):
        """Prompts that are more than an engine holds: what it evicted is believed of it no longer, block by block."""
        p = self.fresh(1024)
        home, *_ = self.complete(p)
        self.settle()
        others = [self.fresh(1500) for _ in range(3)]
        for q in others:  # directly, so that they land there
            ask(home.url + "/v1/completions", {"model": MODEL, "prompt": q, "max_tokens": 1})
        self.settle()
        self.assertGreater(1024 + 3 * 1500, BLOCKS * BLOCK, "else nothing has to go")
        for q in (p, *others):
            engine, held, cached = self.complete(q)
            self.assertEqual(hit(len(q), held), cached, f"at {engine.name}")
            self.settle()

    def test_a_reset_is_followed(self):
        p = self.fresh(640)
        home, *_ = self.complete(p)
        self.settle()
        home.reset()
        # vLLM says so with its next step; until then nobody can know.
        ask(home.url + "/v1/completions", {"model": MODEL, "prompt": self.fresh(40), "max_tokens": 1})
        self.settle()
        _, held, cached = self.complete(p)
        self.assertEqual((held, cached), (0, 0))

    def test_a_gateway_that_comes_late_asks_for_what_it_missed(self):
        p = self.fresh(640)
        home, *_ = self.complete(p)
        late = Gateway(policy(), self.engines)
        self.addCleanup(late.stop)
        late.ready()
        wait_until(lambda: believed(late, home) == "exact", "the late one has replayed")
        rid = f"prefix-late-{self.seed}"
        fetch(late.url + "/v1/completions", {"model": MODEL, "prompt": p, "max_tokens": 1}, {"x-request-id": rid})
        self.assertEqual(predicted(late.decision(rid), home), 640)

    def test_killed_and_restarted(self):
        """A dead engine's claims are withdrawn within the bound; started again it holds nothing, and is followed from its first event on."""
        p = self.fresh(640)
        home, *_ = self.complete(p)
        self.settle()
        home.kill()
        engine, held, cached = self.complete(p)
        self.assertIsNot(engine, home)
        self.assertEqual((held, cached), (0, 0))
        home.begin()
        home.ready()
        wait_until(lambda: believed(self.g, home) == "exact", "the index follows it again")
        q = self.fresh(640)
        ask(home.url + "/v1/completions", {"model": MODEL, "prompt": q, "max_tokens": 1})
        self.settle()
        self.assertEqual(self.complete(q + [1]), (home, 640, 640))
        engine, held, cached = self.complete(p)
        self.assertIsNot(engine, home)  # the other has it since


CASES = [Families, Changes]
