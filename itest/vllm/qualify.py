"""Perigee before two real vLLM engines: what its engines, its clients and its own pages say of the same requests must agree.

Run by scripts/vllm/qualify.sh (make qualify-vllm). Starting an engine takes most of the time, so all checks share two, and the order of
ORDER at the end matters: what disturbs the engines comes last. What is checked here needs no prefix index; prefix.py has the checks that do.
"""

import gzip
import json
import os
import random
import signal
import sys
import time
import unittest

import openai

import prefix
from fleet import BLOCK, BLOCKS, MAX_LEN, MODEL, Engine, Gateway, picked
from servers import BIN, ROOT, Stopwatch, ask, at_once, fetch, wait_until

POLICIES = ("power_of_two", "load_based")
a, b = engines = [Engine("a", 0), Engine("b", 1)]
gateways = {}  # by policy
watch = Stopwatch()
numbers = iter(range(1, 1 << 30))


def setUpModule():
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the one exception that unittest lets through
    with watch.row("both engines, from nothing to ready"):
        for e in engines:
            e.begin()
            unittest.addModuleCleanup(end_engine, e)
        for e in engines:
            e.ready()
    prefix.PrefixCase.engines = engines
    for policy in POLICIES:
        g = gateways[policy] = Gateway(policy, engines)
        unittest.addModuleCleanup(end_gateway, g)
        g.ready()


def end_engine(e):
    if e.server is None or e.server.child.poll() is not None:
        return
    code, left = e.stop()
    if code != 0 or left:
        raise AssertionError(f"engine {e.name}: exit code {code} of serve.sh, processes left: {left}")


def end_gateway(g):
    if (code := g.stop()) != 0:
        raise AssertionError(f"perigee serve, {g.policy}: exit code {code} after SIGTERM:\n{g.server.log.read_text()[-2000:]}")


def client_of(g):
    # Retries of the client would hide a failure of the gateway.
    return openai.OpenAI(base_url=g.url + "/v1", api_key="sk-itest", max_retries=0, timeout=120)


class Case(unittest.TestCase):
    """Each test once for each policy, with a client of that gateway."""

    policy = None

    def setUp(self):
        self.g = gateways[self.policy or POLICIES[0]]
        self.client = client_of(self.g)
        self.addCleanup(self.client.close)
        began = time.monotonic()
        self.addCleanup(lambda: watch.rows.append((self.id().removeprefix("__main__."), time.monotonic() - began)))

    def chat(self, messages, n=8, **more):
        """(answer, id of the request)"""
        rid = f"qualify-{next(numbers)}"
        r = self.client.chat.completions.create(model=MODEL, messages=messages, max_tokens=n, temperature=0,
                                                extra_headers={"x-request-id": rid}, **more)
        return r, rid


def user(text):
    return [{"role": "user", "content": text}]


class Surface(Case):
    """What a client sees is what the engine said."""

    messages = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "Name a moon of Saturn. ☾"}]

    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], [MODEL])

    def test_engines_are_known(self):
        for e in engines:
            w = self.g.worker(e)
            self.assertEqual((w["kind"], w["models"], w["max_context_tokens"], w["ranks"]), ("vllm", [MODEL], MAX_LEN, 1))
            self.assertEqual(w["version"], ask(e.url + "/version")["version"])

    def test_chat(self):
        got, _ = self.chat(self.messages)
        for e in engines:
            want = ask(e.url + "/v1/chat/completions", {"model": MODEL, "messages": self.messages, "max_tokens": 8, "temperature": 0})
            self.assertEqual(got.choices[0].message.content, want["choices"][0]["message"]["content"])
            self.assertEqual(got.choices[0].finish_reason, want["choices"][0]["finish_reason"])
            self.assertEqual((got.usage.prompt_tokens, got.usage.completion_tokens),
                             (want["usage"]["prompt_tokens"], want["usage"]["completion_tokens"]))

    def test_the_answer_depends_on_the_prompt(self):
        """Else the comparisons of answers here would compare nothing."""
        texts = {self.chat(user(f"Question {i}"))[0].choices[0].message.content for i in range(4)}
        self.assertEqual(len(texts), 4)

    def test_stream(self):
        whole, _ = self.chat(self.messages, 16)
        with self.client.chat.completions.create(model=MODEL, messages=self.messages, max_tokens=16, temperature=0, stream=True,
                                                 stream_options={"include_usage": True}) as stream:
            chunks = list(stream)
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), whole.choices[0].message.content)
        self.assertEqual(len({c.id for c in chunks}), 1)
        self.assertGreater(len(chunks), 4, "it comes in parts")
        usage = [c.usage for c in chunks if c.usage and not c.choices]
        self.assertEqual([(u.prompt_tokens, u.completion_tokens) for u in usage], [(whole.usage.prompt_tokens, whole.usage.completion_tokens)])

    def test_no_usage_unless_asked_for(self):
        with self.client.chat.completions.create(model=MODEL, messages=self.messages, max_tokens=4, stream=True) as stream:
            self.assertEqual([c for c in stream if c.usage or not c.choices], [])

    def test_completion(self):
        for prompt in ("The moons of Saturn are", list(range(1000, 1100))):
            r = self.client.completions.create(model=MODEL, prompt=prompt, max_tokens=6, temperature=0)
            want = ask(a.url + "/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": 6, "temperature": 0})
            self.assertEqual(r.choices[0].text, want["choices"][0]["text"])
            self.assertEqual(r.usage.prompt_tokens, want["usage"]["prompt_tokens"])
        with self.client.completions.create(model=MODEL, prompt=prompt, max_tokens=6, temperature=0, stream=True) as stream:
            self.assertEqual("".join(c.choices[0].text for c in stream if c.choices), r.choices[0].text)

    def test_logprobs_and_several_choices_pass(self):
        r, _ = self.chat(self.messages, 3, logprobs=True, top_logprobs=2)
        self.assertEqual(len(r.choices[0].logprobs.content), 3)
        r = self.client.completions.create(model=MODEL, prompt="Titan,", max_tokens=2, n=3, temperature=1, seed=5)
        self.assertEqual([c.index for c in r.choices], [0, 1, 2])

    def test_the_engines_own_errors_pass(self):
        """A 400 of the engine is the client's to read, and no failure of the engine."""
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(self.messages, MAX_LEN + 1)
        self.assertIn(str(MAX_LEN), caught.exception.message)
        with self.assertRaises(openai.BadRequestError):
            self.chat(self.messages, extra_body={"temperature": -1})
        for e in engines:
            self.assertEqual(self.g.worker(e)["failures_in_a_row"], 0)

    def test_unknown_model(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="no-such-model", messages=self.messages)


class SurfaceByLoad(Surface):
    policy = "load_based"


class Lengths(Case):
    """Our tokenizer and template against the engine's, token by token."""

    def same(self, body):
        """One body for both /tokenize endpoints."""
        ours = ask(self.g.url + "/tokenize", {"model": MODEL} | body)["tokens"]
        theirs = ask(a.url + "/tokenize", {"model": MODEL} | body)["tokens"]
        self.assertEqual(ours, theirs, body)
        return len(ours)

    def test_texts(self):
        texts = json.load(gzip.open(ROOT / "internal/gateway/tokens/bpe/testdata/texts.json.gz"))
        chosen = random.Random(1).sample([t for t in texts if isinstance(t, str) and len(t) < 2000], 300)
        total = sum(self.same({"prompt": t}) for t in chosen)
        self.assertGreater(total, 3000)

    def conversations(self):
        """Those of the template's golden suite that are all text."""
        for c in json.loads((ROOT / "internal/gateway/tokens/template/testdata/conversations.json").read_text()):
            keys = {"name", "messages", "tools", "add_generation_prompt"}
            if set(c) <= keys and all(isinstance(m.get("content"), str) for m in c["messages"]):
                yield c["name"], {k: v for k, v in c.items() if k != "name"}

    def test_conversations(self):
        compared = []
        for name, body in self.conversations():
            with self.subTest(name):
                # vLLM takes the arguments of a call as a text only, and makes system turns of developer's; then our length is not called exact.
                roles = {m.get("role") for m in body["messages"]}
                if "developer" in roles or fetch(a.url + "/tokenize", {"model": MODEL} | body)[0] != 200:
                    continue
                self.same(body)
                compared.append(name)
        self.assertGreaterEqual(len(compared), 10)

    def test_usage(self):
        """What chose the bucket is what the engine computed."""
        exact = 0
        for name, body in self.conversations():
            if body.get("add_generation_prompt") is False:
                continue
            with self.subTest(name):
                more = {"tools": body["tools"]} if body.get("tools") else {}
                try:
                    r, rid = self.chat(body["messages"], 1, **more)
                except openai.BadRequestError:
                    continue
                d = self.g.decision(rid)
                self.assertEqual(d["prompt_tokens"], r.usage.prompt_tokens)
                if d["input_exact"]:
                    exact += 1
                    self.assertEqual(d["input_tokens"], r.usage.prompt_tokens)
        self.assertGreaterEqual(exact, 5)

    def test_usage_of_completions(self):
        for prompt, source in (("Enceladus " * 300, "encoded"), ([7] * 333, "given")):
            rid = f"qualify-{next(numbers)}"
            r = self.client.completions.create(model=MODEL, prompt=prompt, max_tokens=1, extra_headers={"x-request-id": rid})
            d = self.g.decision(rid)
            self.assertEqual((d["input_source"], d["input_exact"], d["input_tokens"]), (source, True, r.usage.prompt_tokens))


class Load(Case):
    """The gateway's figures are the engines' own."""

    def test_capacity(self):
        for e in engines:
            report = wait_until(lambda: self.g.worker(e)["report"], "the load is known")
            self.assertEqual(report["capacity_tokens"], BLOCKS * BLOCK)
            self.assertLess(report["age_ms"], 5000)

    def test_running_and_used(self):
        """A request that lasts shows in the report of its engine, and the next goes to the other."""
        rid = f"qualify-{next(numbers)}"
        stream = self.client.completions.create(model=MODEL, prompt=list(range(2000, 2960)), max_tokens=2000, stream=True,
                                                extra_body={"ignore_eos": True}, extra_headers={"x-request-id": rid})
        with stream:
            next(iter(stream))
            busy = next(e for e in engines if e.running() == 1)
            idle = b if busy is a else a
            report = wait_until(lambda: (r := self.g.worker(busy)["report"]) and r["running"] == 1 and r["used_tokens"] >= 960 and r, "the poll sees it")
            self.assertLessEqual(report["used_tokens"], report["capacity_tokens"])
            self.assertEqual(self.g.worker(busy)["in_flight"], 1)
            for _ in range(4):
                _, other = self.chat(user("short"), 1)
                self.assertEqual(picked(self.g.decision(other)), idle.name)
        wait_until(lambda: busy.running() == 0, "the engine has let go of the request")
        wait_until(lambda: (r := self.g.worker(busy)["report"]) and r["running"] == 0, "the poll sees that")
        wait_until(lambda: self.g.number("perigee_guards") == 0, "nothing is in flight")

    def test_many_at_once(self):
        """Both engines work, and every answer is that of its own prompt."""
        prompts = [[5000 + i] * (40 + 7 * i) for i in range(32)]
        def one(i):
            r = self.client.completions.create(model=MODEL, prompt=prompts[i], max_tokens=6, temperature=0)
            return r.choices[0].text, r.usage.prompt_tokens

        before = {e: self.g.number("perigee_worker_requests_total", f'worker="{e.name}"') for e in engines}
        got = at_once([lambda i=i: one(i) for i in range(32)])
        for i in (0, 9, 31):
            want = ask(a.url + "/v1/completions", {"model": MODEL, "prompt": prompts[i], "max_tokens": 6, "temperature": 0})
            self.assertEqual(got[i], (want["choices"][0]["text"], len(prompts[i])))
        self.assertEqual([n for _, n in got], [len(p) for p in prompts])
        for e in engines:
            self.assertGreater(self.g.number("perigee_worker_requests_total", f'worker="{e.name}"'), before[e], f"engine {e.name} got none")


class LoadByLoad(Load):
    policy = "load_based"


class Cached(Case):
    """What an engine says of its prefix cache, in its usage and its counters, and what the gateway says of that. prefix.py builds on it."""

    def complete(self, url, prompt):
        """(cached tokens, id of the request)"""
        rid = f"qualify-{next(numbers)}"
        usage = ask(url + "/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": 1}, {"x-request-id": rid})["usage"]
        return (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0), rid

    def counted(self, e, prompt):
        """Cached tokens of a prompt sent to the engine itself. Its counters must have gone up by the same."""
        queries, hits = e.prefix_tokens()
        cached, _ = self.complete(e.url, prompt)
        self.assertEqual(e.prefix_tokens(), (queries + len(prompt), hits + cached))
        return cached

    def test_hits_resets_and_evictions(self):
        p = [6000 + 3 * i for i in range(640)]
        self.assertEqual(self.counted(a, p), 0)
        self.assertEqual(self.counted(a, p), 608, "all blocks but the last, which gives the first token of the answer")
        self.assertEqual(self.counted(a, p + [1]), 640)
        self.assertEqual(self.counted(a, p[:333] + [1]), 320)
        a.reset()
        self.assertEqual(self.counted(a, p), 0)
        for i in range(3):
            self.counted(a, [20000 * (i + 1) + j for j in range(1300)])
        self.assertLess(BLOCKS * BLOCK - 3 * 1300, 640, "else nothing has to go")
        left = self.counted(a, p)
        self.assertLess(left, 608)
        self.assertEqual(left % BLOCK, 0)

    def test_the_gateway_passes_it_on(self):
        p = [9000 + 3 * i for i in range(500)]
        before = self.g.number("perigee_cached_prompt_tokens_total")
        total, seen = 0, set()
        while seen != {"a", "b"}:  # each engine at least once, and at least one of them twice
            cached, rid = self.complete(self.g.url, p)
            d = self.g.decision(rid)
            self.assertEqual(d["cached_tokens"], cached)
            self.assertEqual(cached, 480 if picked(d) in seen else 0)
            seen.add(picked(d))
            total += cached
        cached, _ = self.complete(self.g.url, p)
        self.assertEqual(cached, 480)
        wait_until(lambda: self.g.number("perigee_cached_prompt_tokens_total") - before == total + cached, "the metric has them all")


class Leaving(Case):
    """A client that leaves frees the engine."""

    def test_stream(self):
        self.leave(stream=True)

    def test_not_a_stream(self):
        self.leave(stream=False)

    def leave(self, stream):
        rid = f"qualify-{next(numbers)}"
        before = sum(e.number("vllm:generation_tokens_total") for e in engines)
        impatient = self.client.with_options(timeout=120 if stream else 1.5)
        request = dict(model=MODEL, prompt=list(range(3000, 3100)), max_tokens=3500, extra_body={"ignore_eos": True}, extra_headers={"x-request-id": rid})
        if stream:
            with impatient.completions.create(**request, stream=True) as s:
                next(iter(s))
                self.assertEqual(sum(e.running() for e in engines), 1)
        else:
            with self.assertRaises(openai.APITimeoutError):
                impatient.completions.create(**request)
        wait_until(lambda: sum(e.running() for e in engines) == 0, "the engine has let go of the request")
        self.assertLess(sum(e.number("vllm:generation_tokens_total") for e in engines) - before, 3500, "it just came to its end")
        self.assertLess(self.g.decision(rid)["completion_tokens"] or 0, 3500)
        wait_until(lambda: self.g.number("perigee_guards") == 0, "nothing is in flight")
        for e in engines:
            self.assertEqual(self.g.worker(e)["failures_in_a_row"], 0)


class Death(Case):
    """An engine is killed, and comes back at the same address. Clients notice nothing but streams that were under way."""

    def test_killed_and_restarted(self):
        endings = []

        def stream_of(e):
            """A stream that runs at e."""
            while True:
                s = self.client.completions.create(model=MODEL, prompt=list(range(100)), max_tokens=3500, stream=True, extra_body={"ignore_eos": True})
                next(iter(s))
                if e.running() == 1:
                    return s
                s.close()
                wait_until(lambda: sum(x.running() for x in engines) == 0, "the engine has let go of the request")

        follows = prefix.Killed()
        follows.setUp()
        self.addCleanup(lambda: self.assertTrue(follows.doCleanups()))
        follows.before(b)
        broken = stream_of(b)
        b.kill(follows.killed)
        # The client must not take the half of an answer for the whole.
        with self.assertRaises(Exception) as caught:
            for chunk in broken:
                endings += [c.finish_reason for c in chunk.choices]
        self.assertNotIn("length", endings)
        self.assertNotIsInstance(caught.exception, AssertionError)

        follows.away()
        for i in range(12):
            r, rid = self.chat(user(f"while one engine is away, {i}"), 2)
            self.assertEqual(picked(self.g.decision(rid)), "a")
        wait_until(lambda: self.g.worker(b)["report"] is None, "its last report counts no longer")

        with watch.row("one engine again, killed to ready"):
            b.begin()
            b.ready()
        back = time.monotonic()
        follows.followed_again()

        def at_b():
            _, rid = self.chat(user("is it back?"), 1)
            return picked(self.g.decision(rid)) == "b"

        wait_until(at_b, "the engine gets requests again")
        watch.rows.append(("ready to its first request", time.monotonic() - back))
        follows.again()
        self.assertEqual(self.g.worker(b)["breaker"], "closed")
        self.assertEqual(self.chat(user("Question 1"))[0].choices[0].message.content,
                         ask(b.url + "/v1/chat/completions", {"model": MODEL, "messages": user("Question 1"), "max_tokens": 8, "temperature": 0})
                         ["choices"][0]["message"]["content"], "a restarted engine says the same as before")


ORDER = [Surface, SurfaceByLoad, Lengths, Load, LoadByLoad, Cached, Leaving, *prefix.CASES, Death]

for case in prefix.CASES:
    case.__module__ = __name__  # unittest would end this module's engines before another module's first test


def load_tests(loader, *_):
    return unittest.TestSuite(loader.loadTestsFromTestCase(c) for c in ORDER)


if __name__ == "__main__":
    if not os.access(BIN, os.X_OK):
        sys.exit(f"{BIN}: missing; run: make build")
    began = time.monotonic()
    done = unittest.main(exit=False, verbosity=2).result
    watch.rows.append(("all", time.monotonic() - began))
    print("==> seconds")
    watch.print()
    prefix.report()
    sys.exit(not done.wasSuccessful())
