"""Child processes, requests to them and waiting for them, for the checks with real engines. Nothing of one engine; no test."""

import contextlib
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = os.environ.get("PERIGEE_BIN", str(ROOT / "bin/perigee"))
# What a busy machine gets before we call it a failure: an engine step, a load poll and a breaker's probe are all below two seconds.
# Both engines were seen to answer nothing for 30 seconds, at a load average of 40 on two cores.
SOON_S = 90


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_until(condition, what, seconds=SOON_S):
    """Returns what condition gives once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.05)
    return found


def fetch(url, body=None, headers=None):
    """GET, or POST of JSON. Returns (status, text)."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"} | (headers or {}))
    try:
        with urllib.request.urlopen(request, timeout=120) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def ask(url, body=None, headers=None):
    """The JSON of a 200."""
    status, text = fetch(url, body, headers)
    if status != 200:
        raise AssertionError(f"{url}: {status} {text[:500]}")
    return json.loads(text)


def series(url):
    """A page of metrics: {name: {labels: value}}."""
    out = {}
    for name, labels, value in re.findall(r"^([a-z_:]+)(?:\{([^}]*)\})? (\S+)$", fetch(url + "/metrics")[1], re.M):
        out.setdefault(name, {})[labels] = float(value)
    return out


# Whatever ends this process, SIGKILL too, its children are told to end. The kernel goes by the thread that started them: that has to be the main one.
DIES_WITH_US = ("setpriv", "--pdeathsig", "TERM")


class Server:
    """A child in the foreground, and no longer than this process. Its first line on stdout says that it is ready."""

    def __init__(self, name, logs, command):
        """logs is the folder of NAME.err, where what it writes to stderr goes on."""
        self.name = name
        logs.mkdir(parents=True, exist_ok=True)
        self.log = logs / f"{name}.err"
        with open(self.log, "ab") as log:
            self.child = subprocess.Popen([*DIES_WITH_US, *map(str, command)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)

    def ready(self):
        line = self.child.stdout.readline()
        if not line:
            raise AssertionError(f"{self.name} did not start:\n{self.log.read_text()[-3000:]}")
        return line

    def stop(self):
        """SIGTERM, and the exit code."""
        self.child.send_signal(signal.SIGTERM)
        try:
            return self.child.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
            raise AssertionError(f"{self.name} did not end within 60 s of SIGTERM") from None
        finally:
            self.child.stdout.close()


class Stopwatch:
    """Seconds by what was done in them, in order."""

    def __init__(self):
        self.rows = []

    @contextlib.contextmanager
    def row(self, name):
        t0 = time.monotonic()
        try:
            yield
        finally:
            self.rows.append((name, time.monotonic() - t0))

    def print(self):
        for name, s in self.rows:
            print(f"    {name:<44} {s:7.1f} s")


def at_once(calls):
    """Runs functions in threads of their own and returns what they gave, or raises what the first that failed raised."""
    results, threads = [None] * len(calls), []

    def run(i):
        try:
            results[i] = (True, calls[i]())
        except BaseException as e:
            results[i] = (False, e)

    for i in range(len(calls)):
        threads.append(threading.Thread(target=run, args=(i,), daemon=True))  # an interrupt does not wait for what they ask
        threads[-1].start()
    for t in threads:
        t.join()
    for ok, value in results:
        if not ok:
            raise value
    return [value for _, value in results]


def tokens(seed, n):
    """A prompt of n ids of ordinary tokens, of the vocabulary that scripts/vllm/model.py gives its model."""
    r = random.Random(seed)
    return [r.randrange(1000, 150000) for _ in range(n)]
