"""The driver without an engine: python3 bench/eval/drive_vllm_check.py. Standard library alone."""

import http.server
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import drive_vllm as driver  # noqa: E402


class Engine(http.server.BaseHTTPRequestHandler):
    """Says what it is told to."""

    says = (200, [])

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        status, events = self.says
        self.send_response(status)
        self.end_headers()
        for e in events:
            self.wfile.write(b"data: " + (e if isinstance(e, bytes) else json.dumps(e).encode()) + b"\n\n")

    def log_message(self, *_):
        pass


def token(*ids):
    return {"choices": [{"token_ids": list(ids)}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}}


class Streamed(unittest.TestCase):
    def setUp(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
        thread = threading.Thread(target=self.server.serve_forever)
        thread.start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(thread.join)
        self.addCleanup(self.server.shutdown)

    def ask(self, status, *events):
        Engine.says = status, events
        return driver.streamed(f"http://127.0.0.1:{self.server.server_port}", [1, 2, 3], 2, "eval-1", time.monotonic() - 1)

    def test_an_answer(self):
        a = self.ask(200, {"choices": [{"token_ids": []}]}, token(7), token(8), USAGE, b"[DONE]")
        self.assertEqual((a["tokens"], a["cached"], a["prompt_tokens"], "failed" in a), (2, 2, 3, False))
        self.assertGreaterEqual(a["ttft_ms"], 1000, "the second that it waited before it was sent is in it")
        self.assertGreaterEqual(a["total_ms"], a["ttft_ms"])
        self.assertNotEqual(a["answer"], self.ask(200, token(7, 9), USAGE, b"[DONE]")["answer"])
        self.assertEqual(a["answer"], self.ask(200, token(7, 8), USAGE, b"[DONE]")["answer"])

    def test_what_failed_is_kept(self):
        for why, (status, *events) in {
            "500": (500,), "1 of 2": (200, token(7), USAGE, b"[DONE]"), "no end": (200, token(7, 8), USAGE), "0 of 2": (200,), "JSONDecodeError": (200, b"{"),
        }.items():
            a = self.ask(status, *events)
            self.assertIn(why, a["failed"])
            self.assertEqual((a["ttft_ms"], a["total_ms"], a["prompt_tokens"]), (0, 0, 3))

    def test_nobody_there(self):
        a = driver.streamed("http://127.0.0.1:1", [1], 2, "eval-1", time.monotonic())
        self.assertIn("failed", a)


def bench(seed):
    plan = {"seed": seed, "arms": ["without", "perigee"], "setup": {"blocks": 1, "max_len": 1, "max_seqs": 1, "pool_bytes": 1}}
    return driver.Bench(plan, tempfile.gettempdir())


class Sleeper:
    """Stands for an engine's processes."""

    def __init__(self):
        self.child = subprocess.Popen([*driver.DIES_WITH_US, "sleep", "600"], start_new_session=True)

    def group(self):
        return self.child.pid

    def stands(self):
        return pathlib.Path(f"/proc/{self.child.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


@unittest.skipUnless(sys.platform == "linux" and shutil.which("setpriv"), "the driver runs on Linux, with util-linux")
class Alone(unittest.TestCase):
    def test_only_one_is_awake(self):
        b = bench(1)
        b.arms = {name: Sleeper() for name in ("without", "perigee")}
        for engine in b.arms.values():
            self.addCleanup(engine.child.wait)
            self.addCleanup(engine.child.kill)
        for arm, want in (("without", [False, True]), ("perigee", [True, False]), (None, [False, False])):
            b.alone(arm)
            driver.wait_until(lambda want=want: [e.stands() for e in b.arms.values()] == want, f"{arm}: who stands still is {want}")


class Order(unittest.TestCase):
    def test_each_order_once_in_two(self):
        seed = random.randrange(1 << 30)
        with self.subTest(seed=seed):
            got = bench(seed).order(21)
            self.assertEqual(len(got), 21)
            for i in range(0, 20, 2):
                self.assertEqual({tuple(got[i]), tuple(got[i + 1])}, {("without", "perigee"), ("perigee", "without")})
            self.assertEqual(got, bench(seed).order(21), "the seed says it all")
        self.assertGreater(len({tuple(map(tuple, bench(s).order(12))) for s in range(20)}), 5)


if __name__ == "__main__":
    unittest.main()
