"""The real openai client, and curl, against perigee serve in front of two simulated engines, once of each family, and the
client against what perigee demo --keep leaves running.

Run by scripts/openai-client.sh. Environment: PERIGEE_BIN, the binary (default bin/perigee). Everything is on loopback;
the servers' logs go to .cache/itest/ and are printed when a test fails.
"""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
import urllib.error
import urllib.request

import openai

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = os.environ.get("PERIGEE_BIN", str(ROOT / "bin" / "perigee"))
LOGS = ROOT / ".cache" / "itest"
MODEL = "itest-model"
ENGINES = 2
# Starting takes well under a second; a busy CI machine gets this long before we call it a failure.
START_S = 30

base = {}  # by the family of its engines, http://127.0.0.1:PORT of a gateway, set by setUpModule
engines = {}  # by their family, the same of the engines
processes = []  # whose logs are of interest when something fails


class Process:
    """A server in the foreground. Its stdout lines can be waited for; its stderr is a log file."""

    def __init__(self, name, *args):
        self.name = name
        self.log = LOGS / f"{name}.log"
        self.lines = queue.Queue()
        with open(self.log, "wb") as log:
            self.child = subprocess.Popen([BIN, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.child.stdout:
            self.lines.put(line.decode())
        self.lines.put(None)

    def wait_for(self, what, enough):
        """Collects stdout until enough(text) gives something, and returns that."""
        text, deadline = "", time.monotonic() + START_S
        while True:
            try:
                line = self.lines.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            if line is None:
                raise AssertionError(f"{self.name} did not print {what} within {START_S} s; stdout {text!r}, log:\n{self.log.read_text()}")
            text += line
            if found := enough(text):
                return found

    def stop(self):
        self.child.send_signal(signal.SIGTERM)
        try:
            code = self.child.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
            raise AssertionError(f"{self.name} did not end within 20 s of SIGTERM; log:\n{self.log.read_text()}") from None
        finally:
            self.reader.join(timeout=5)
            self.child.stdout.close()
        return code


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def urls(text):
    found = list(dict.fromkeys(re.findall(r"http://127\.0\.0\.1:\d+", text)))
    return found if len(found) >= ENGINES else None


def start(name, *args):
    """Starts a server that ends, cleanly, after the last test, or when setUpModule fails."""
    process = Process(name, *args)
    processes.append(process)

    def end():
        if (code := process.stop()) != 0:
            raise AssertionError(f"{name}: exit code {code} after SIGTERM, want 0; log:\n{process.log.read_text()}")

    unittest.addModuleCleanup(end)
    return process


def setUpModule():
    LOGS.mkdir(parents=True, exist_ok=True)
    for flavor in ("vllm", "sglang"):
        engine = start(f"engine-{flavor}", "engine", "--flavor", flavor, "--count", str(ENGINES), "--port", "0", "--model", MODEL, "--json")
        engines[flavor] = engine.wait_for(f"{ENGINES} addresses", urls)
        port = free_port()
        base[flavor] = url = f"http://127.0.0.1:{port}"
        # No request is in flight when the tests end, so the pause before the listener closes would only cost time.
        serve = start(f"serve-{flavor}", "serve", "--host", "127.0.0.1", "--port", str(port), "--model-id", MODEL,
                      "--shutdown-drain-secs", "0", "--worker-urls", *engines[flavor])
        serve.wait_for("a line", lambda text: text)
        # The line says that it accepts requests; the engines may still be introduced.
        wait_until(lambda: get(url + "/readyz")[0] == 200, "readyz is 200")
        wait_until(lambda: MODEL in get(url + "/v1/models")[1], "the model is listed")


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def wait_until(condition, what, seconds=START_S):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            logs = "\n".join(f"--- {p.name}\n{p.log.read_text()[-4000:]}" for p in processes)
            raise AssertionError(f"not within {seconds} s: {what}\n{logs}")
        time.sleep(0.02)


def running(flavor):
    """How many requests the family's engines have in their batch or queue, by their own metrics."""
    total = 0
    for e in engines[flavor]:
        text = get(e + "/metrics")[1]
        found = re.findall(r"^(?:vllm:num_requests_(?:running|waiting)|sglang:num_(?:running|queue)_reqs)\{[^}]*\} (\S+)$", text, re.M)
        if not found:
            raise AssertionError(f"{e}/metrics does not tell the requests in hand:\n{text[:2000]}")
        total += sum(float(n) for n in found)
    return total


class OpenAIClient(unittest.TestCase):
    flavor = "vllm"

    def setUp(self):
        # Retries of the client would hide a failure of the gateway.
        self.client = openai.OpenAI(base_url=base[self.flavor] + "/v1", api_key="sk-itest", max_retries=0, timeout=60)
        self.addCleanup(self.client.close)

    messages = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "Name a moon of Saturn. ☾"}]

    def test_models(self):
        models = list(self.client.models.list())
        self.assertEqual([m.id for m in models], [MODEL])
        self.assertEqual(models[0].object, "model")

    def test_chat(self):
        r = self.client.chat.completions.create(model=MODEL, messages=self.messages, max_tokens=8)
        self.assertEqual(r.object, "chat.completion")
        self.assertEqual(r.model, MODEL)
        self.assertTrue(r.choices[0].message.content)
        self.assertEqual(r.choices[0].message.role, "assistant")
        self.assertEqual(r.choices[0].finish_reason, "length")
        self.assertEqual(r.usage.completion_tokens, 8)
        self.assertEqual(r.usage.total_tokens, r.usage.prompt_tokens + 8)

    def test_chat_stream(self):
        with self.client.chat.completions.create(model=MODEL, messages=self.messages, max_tokens=8, stream=True,
                                                 stream_options={"include_usage": True}) as stream:
            chunks = list(stream)
        self.assertTrue(all(c.object == "chat.completion.chunk" for c in chunks))
        self.assertEqual(len({c.id for c in chunks}), 1)
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertTrue(text)
        self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason], ["length"])
        self.assertEqual([c.usage.completion_tokens for c in chunks if c.usage and not c.choices], [8])

    def test_stream_and_whole_answer_are_the_same_text(self):
        ask = dict(model=MODEL, messages=self.messages, max_tokens=12, temperature=0, seed=1)
        whole = self.client.chat.completions.create(**ask).choices[0].message.content
        with self.client.chat.completions.create(**ask, stream=True) as stream:
            parts = [c.choices[0].delta.content or "" for c in stream if c.choices]
        self.assertEqual("".join(parts), whole)

    def test_no_usage_unless_asked_for(self):
        """A gateway that asks the engine for usage on its own account keeps it to itself."""
        with self.client.chat.completions.create(model=MODEL, messages=self.messages, max_tokens=4, stream=True) as stream:
            self.assertEqual([c for c in stream if c.usage or not c.choices], [])

    def test_completion(self):
        r = self.client.completions.create(model=MODEL, prompt="The moons of Saturn are", max_tokens=6)
        self.assertEqual(r.object, "text_completion")
        self.assertTrue(r.choices[0].text)
        self.assertEqual(r.usage.completion_tokens, 6)

    def test_completion_of_token_ids(self):
        r = self.client.completions.create(model=MODEL, prompt=list(range(100, 164)), max_tokens=2)
        self.assertEqual(r.usage.prompt_tokens, 64)

    def test_completion_stream(self):
        with self.client.completions.create(model=MODEL, prompt="Titan,", max_tokens=6, stream=True) as stream:
            chunks = list(stream)
        self.assertTrue("".join(c.choices[0].text for c in chunks if c.choices))
        self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason], ["length"])

    def test_unknown_model(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.chat.completions.create(model="no-such-model", messages=self.messages)
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_bad_request(self):
        with self.assertRaises(openai.BadRequestError):
            self.client.chat.completions.create(model=MODEL, messages="not a list")

    def test_request_id_comes_back(self):
        r = self.client.chat.completions.with_raw_response.create(
            model=MODEL, messages=self.messages, max_tokens=1, extra_headers={"x-request-id": "itest-42"})
        self.assertEqual(r.headers.get("x-request-id"), "itest-42")

    def test_leaving_a_stream_ends_it_at_the_engine(self):
        stream = self.client.chat.completions.create(model=MODEL, messages=self.messages, max_tokens=4000, stream=True)
        with contextlib.closing(stream):
            for _, _ in zip(range(2), stream):
                pass
            # Without this the next wait could pass because nothing was running in the first place.
            wait_until(lambda: running(self.flavor) == 1, "the stream runs at an engine", 5)
        wait_until(lambda: running(self.flavor) == 0, "the engine has let go of the request", 5)
        r = self.client.chat.completions.create(model=MODEL, messages=self.messages, max_tokens=1)
        self.assertEqual(r.usage.completion_tokens, 1)

    def test_many_at_once(self):
        def one(i):
            with self.client.chat.completions.create(model=MODEL, max_tokens=5, stream=True, stream_options={"include_usage": True},
                                                     messages=[{"role": "user", "content": f"Question {i}"}]) as stream:
                return [c.usage.completion_tokens for c in stream if c.usage and not c.choices]

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            self.assertEqual(list(pool.map(one, range(48))), [[5]] * 48)

    def test_async_client(self):
        import asyncio

        async def ask():
            async with openai.AsyncOpenAI(base_url=base[self.flavor] + "/v1", api_key="sk-itest", max_retries=0) as client:
                stream = await client.chat.completions.create(model=MODEL, messages=self.messages, max_tokens=3, stream=True)
                return [c async for c in stream]

        self.assertTrue(asyncio.run(ask()))


class OpenAIClientOfSGLang(OpenAIClient):
    flavor = "sglang"


def curl(*args, body=None):
    """Returns the status and the body of one curl call."""
    cmd = ["curl", "--silent", "--show-error", "--no-buffer", "--max-time", "60", "--write-out", "\n%{http_code}", *args]
    if body is not None:
        cmd += ["--header", "content-type: application/json", "--data-binary", "@-"]
    done = subprocess.run(cmd, input=None if body is None else body.encode(), capture_output=True, timeout=70)
    if done.returncode != 0:
        raise AssertionError(f"curl: exit code {done.returncode}: {done.stderr.decode()}")
    text, _, status = done.stdout.decode().rpartition("\n")
    return int(status), text


class Curl(unittest.TestCase):
    flavor = "vllm"
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}

    def events(self, text):
        found = [e.removeprefix("data: ") for e in text.strip().split("\n\n")]
        self.assertEqual(found[-1], "[DONE]")
        return [json.loads(e) for e in found[:-1]]

    def test_models(self):
        status, text = curl(base[self.flavor] + "/v1/models")
        self.assertEqual((status, [m["id"] for m in json.loads(text)["data"]]), (200, [MODEL]))

    def test_chat(self):
        status, text = curl(base[self.flavor] + "/v1/chat/completions", body=json.dumps(self.chat))
        self.assertEqual(status, 200, text)
        self.assertEqual(json.loads(text)["usage"]["completion_tokens"], 4)

    def test_chat_stream(self):
        status, text = curl(base[self.flavor] + "/v1/chat/completions", body=json.dumps(self.chat | {"stream": True}))
        self.assertEqual(status, 200, text)
        events = self.events(text)
        self.assertEqual([e["choices"][0]["finish_reason"] for e in events if e["choices"]][-1], "length")

    def test_completion(self):
        status, text = curl(base[self.flavor] + "/v1/completions", body=json.dumps({"model": MODEL, "prompt": "hello", "max_tokens": 3}))
        self.assertEqual(status, 200, text)
        self.assertEqual(json.loads(text)["object"], "text_completion")

    def test_completion_stream(self):
        status, text = curl(base[self.flavor] + "/v1/completions", body=json.dumps({"model": MODEL, "prompt": "hello", "max_tokens": 3, "stream": True}))
        self.assertEqual(status, 200, text)
        self.assertTrue(self.events(text))

    def test_unknown_model(self):
        status, text = curl(base[self.flavor] + "/v1/chat/completions", body=json.dumps(self.chat | {"model": "no-such-model"}))
        self.assertEqual((status, json.loads(text)["error"]["code"]), (404, "model_not_found"))

    def test_broken_json(self):
        status, text = curl(base[self.flavor] + "/v1/chat/completions", body='{"model": ')
        self.assertEqual(status, 400, text)
        self.assertTrue(json.loads(text)["error"]["message"])

    def test_repeated_key(self):
        status, text = curl(base[self.flavor] + "/v1/chat/completions", body='{"model": "a", "model": "%s", "messages": []}' % MODEL)
        self.assertEqual(status, 400, text)

    def test_health(self):
        self.assertEqual(curl(base[self.flavor] + "/healthz")[0], 200)
        self.assertEqual(curl(base[self.flavor] + "/readyz")[0], 200)


class CurlOfSGLang(Curl):
    flavor = "sglang"


class Demo(unittest.TestCase):
    """What perigee demo --keep leaves running is for people to try, with any client."""

    def test_what_is_kept_can_be_tried(self):
        # So few requests at such a speed measure nothing and take a second. Engines of both families are among them.
        demo = start("demo", "demo", "--keep", "--engines", "2", "--requests", "20", "--speed", "200", "--quiet")
        demo.wait_for("the report", lambda text: "round_robin" in text)
        log = demo.log.read_text
        wait_until(lambda: "--limit 3\n" in log(), "the demo tells what to try")
        public = re.search(r"(http://\S+)/v1/chat/completions", log())[1]
        admin = re.search(r"explain --url (\S+)", log())[1]
        with openai.OpenAI(base_url=public + "/v1", api_key="sk-itest", max_retries=0, timeout=60) as client:
            model = client.models.list().data[0].id
            ask = dict(model=model, messages=OpenAIClient.messages, max_tokens=8)
            for i in range(4):  # more than there are engines
                r = client.chat.completions.create(**ask, extra_headers={"x-request-id": f"mine-{i}"})
                self.assertEqual(r.usage.completion_tokens, 8)
            with client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}) as stream:
                self.assertEqual([c.usage.completion_tokens for c in stream if c.usage and not c.choices], [8])
        done = subprocess.run([BIN, "explain", "--url", admin, "--request", "mine-3"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("mine-3", done.stdout)


if __name__ == "__main__":
    if not os.access(BIN, os.X_OK):
        sys.exit(f"{BIN}: missing; run: make build")
    unittest.main()
