"""Two real vLLM engines and the gateways before them, for qualify.py. Only servers, addresses and numbers; no test.

Everything is on loopback, and its logs are in .cache/vllm/log/qualify-*.
"""

import contextlib
import itertools
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LOGS = ROOT / ".cache/vllm/log"
BIN = os.environ.get("PERIGEE_BIN", str(ROOT / "bin/perigee"))
MODEL = "tiny"
BLOCK = 32  # tokens of a KV block, the smallest that vLLM's CPU kernels take
BLOCKS = 128  # of an engine: so few that some thousand tokens of prompts evict
MAX_LEN = 4000  # tokens of prompt and answer; at most what BLOCKS hold
# What a busy machine gets before we call it a failure: an engine step, a load poll and a breaker's probe are all below two seconds.
# Both engines were seen to answer nothing for 30 seconds, at a load average of 40 on two cores.
SOON_S = 90
gateways = itertools.count(1)  # for the names of their logs


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

    def __init__(self, name, command):
        self.name = name
        LOGS.mkdir(parents=True, exist_ok=True)
        self.log = LOGS / f"{name}.err"
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


class Engine:
    """One vLLM, by scripts/vllm/serve.sh. It keeps its ports over restarts."""

    def __init__(self, name, cpus):
        self.name, self.cpus = name, cpus
        self.port, self.events_port, self.replay_port = free_port(), free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.starts = []  # seconds that each start took
        self.server = None

    def begin(self):
        self.began = time.monotonic()
        self.server = Server(f"qualify-{self.name}", [
            ROOT / "scripts/vllm/serve.sh", "--name", f"qualify-{self.name}", "--port", self.port, "--events-port", self.events_port,
            "--replay-port", self.replay_port, "--served-name", MODEL, "--blocks", BLOCKS, "--block-size", BLOCK, "--max-len", MAX_LEN,
            "--cpus", self.cpus, "--dev"])

    def ready(self):
        self.server.ready()
        self.starts.append(time.monotonic() - self.began)

    def group(self):
        return int((LOGS / f"qualify-{self.name}.pgid").read_text())

    def kill(self, then=lambda: None):
        """SIGKILL to all of its processes at once, as when memory runs out; calls then, and waits for them to be gone."""
        os.killpg(self.group(), signal.SIGKILL)
        then()
        self.server.child.wait()
        self.server.child.stdout.close()

    def alive(self):
        return self.server.child.poll() is None

    def stop(self):
        """Ends it, and tells what it left behind: the exit code of serve.sh, and whether a process of its group is still there."""
        group = self.group()
        code = self.server.stop()
        for _ in range(100):  # one that was killed may still be on its way out
            try:
                os.killpg(group, 0)
            except ProcessLookupError:
                return code, False
            time.sleep(0.1)
        return code, True

    def number(self, name):
        """The sum of a metric's series."""
        found = series(self.url).get(name)
        if found is None:
            raise AssertionError(f"{self.name} has no {name}")
        return sum(found.values())

    def running(self):
        return self.number("vllm:num_requests_running") + self.number("vllm:num_requests_waiting")

    def prefix_tokens(self):
        """(tokens looked up in the prefix cache, tokens found there), since the engine started."""
        return self.number("vllm:prefix_cache_queries_total"), self.number("vllm:prefix_cache_hits_total")

    def reset(self):
        """Empties the prefix cache."""
        status, text = fetch(self.url + "/reset_prefix_cache", {})
        if status != 200:
            raise AssertionError(f"/reset_prefix_cache of {self.name}: {status} {text}")


class Gateway:
    """perigee serve with one policy before the engines."""

    def __init__(self, policy, engines):
        self.policy = policy
        port, admin = free_port(), free_port()
        self.url, self.admin = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin}"
        # JSON is YAML too.
        config = {
            "models": [{"id": MODEL, "policy": policy, "tokenizer": str(ROOT / ".cache/vllm/model")}],
            "discovery": {"static": {"workers": [{"id": e.name, "url": e.url} for e in engines]}},
            "server": {"port": port, "admin": {"port": admin}, "shutdown_drain": "0s"},
            # Salts are used here to tell prompts apart, and there is one client only.
            "client_fields": {"allow": ["cache_salt"]},
        }
        name = f"qualify-{next(gateways):02}-{policy if isinstance(policy, str) else policy['name']}"
        LOGS.mkdir(parents=True, exist_ok=True)
        file = LOGS / f"{name}.yaml"
        file.write_text(json.dumps(config, indent=1))
        self.server = Server(name, [BIN, "serve", "--config", file])

    def ready(self):
        self.server.ready()
        wait_until(lambda: fetch(self.url + "/readyz")[0] == 200, "the gateway serves the model")

    def stop(self):
        return self.server.stop()

    def worker(self, engine):
        """What the gateway knows of an engine."""
        return next(w for w in ask(self.admin + "/debug/workers")["workers"] if w["id"] == engine.name)

    def decision(self, request_id):
        """The one decision with that id, once it is done."""
        def done():
            found = ask(f"{self.admin}/debug/decisions?request={request_id}")["decisions"]
            return found[0] if len(found) == 1 and found[0]["done"] else None

        return wait_until(done, f"the decision on {request_id} is in the log")

    def number(self, name, labels=""):
        """The sum of those series of a metric whose labels contain a text."""
        return sum(v for k, v in series(self.admin).get(name, {}).items() if labels in k)


def picked(decision):
    """The engine of the last attempt."""
    return decision["attempts"][-1]["tries"][-1]["picked"]


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
