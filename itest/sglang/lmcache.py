"""lmcache.py [ROUNDS]: time to the first token of prompts that an engine restores from the Cache Manager, that another restores from LMCache, and that each computes, in turns in one run.

Two engines of the same release with the same settings stand side by side, each with its own daemon; whoever is not asked stands still (SIGSTOP), so that the processors are the other's. In each round
both are asked, first the one and then the other by turns, for a prompt that they have stored, after a flush of their caches, and for one that nobody has seen. Answers to the first must be those that were
computed. Nothing else is judged. It takes a quarter of an hour; install what it needs first:

    scripts/build.sh && scripts/lmcache.sh sglang && .cache/sglang/venv/bin/python scripts/vllm/model.py .cache/sglang/model && .cache/sglang/venv/bin/python -P -B itest/sglang/lmcache.py 8
"""

import itertools
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "itest"))
from manager import Manager  # noqa: E402
from servers import DIES_WITH_US, Server, fetch, free_port, tokens, wait_until  # noqa: E402

LOGS = ROOT / ".cache/sglang/log"
HOME = ROOT / ".cache/sglang/lmcache"
POOL = 1 << 30  # bytes of either daemon
LENGTHS = (1000, 2000, 4000)
ANSWER = 6  # tokens
QUIET_S = 1  # after an answer, until pages are stored: no engine says when they are
PERIGEE, LMCACHE = "Perigee", "LMCache"


class Engine:
    def __init__(self, name, flags, python):
        self.name, self.port = name, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = Server(f"beside-{name}", LOGS, [
            "env", f"PYTHONPATH={python}", "LMCACHE_TRACK_USAGE=false", ROOT / "scripts/sglang/serve.sh", "--name", f"beside-{name}", "--port", self.port, "--", *flags])
        self.stopped = False

    def group(self, number):
        os.killpg(int((LOGS / f"beside-{self.name}.pgid").read_text()), number)
        self.stopped = number == signal.SIGSTOP

    def end(self):
        if self.stopped:
            self.group(signal.SIGCONT)
        self.server.stop()

    def flush(self):
        wait_until(lambda: fetch(self.url + "/flush_cache", {})[0] == 200, "its caches are flushed")

    def say(self, prompt):
        """(seconds to the first token, tokens that were not computed, answer)"""
        body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": ANSWER, "temperature": 0, "ignore_eos": True}, "stream": True}
        request = urllib.request.Request(self.url + "/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
        began = time.monotonic()
        with urllib.request.urlopen(request, timeout=300) as answer:
            took, events = None, []
            for line in answer:
                if line.startswith(b"data: {"):
                    took = took or time.monotonic() - began
                    events.append(json.loads(line[6:]))
        ids = events[-1]["output_ids"] if len(events[-1]["output_ids"]) == ANSWER else [i for e in events for i in e["output_ids"]]
        return took, events[0]["meta_info"]["cached_tokens"], ids


class Daemon:
    """LMCache's server."""

    def __init__(self, folder):
        self.port, self.http, self.log = free_port(), free_port(), LOGS / "beside-lmcache-server.err"
        self.file = pathlib.Path(folder, "lmcache.yaml")
        self.file.write_text(f"mp_host: 127.0.0.1\nmp_port: {self.port}\n")
        command = ["env", f"PYTHONPATH={HOME}", "LMCACHE_TRACK_USAGE=false", sys.executable, "-c", "from lmcache.cli.main import main; main()", "server", "--host", "127.0.0.1",
                   "--port", self.port, "--http-host", "127.0.0.1", "--http-port", self.http, "--prometheus-port", free_port(), "--l1-size-gb", POOL / (1 << 30), "--eviction-policy", "LRU",
                   "--supported-transfer-mode", "engine_driven", "--shm-name", f"perigee-beside-{os.getpid()}"]
        with open(self.log, "wb") as log:
            self.child = subprocess.Popen([*DIES_WITH_US, *map(str, command)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(self.answers, "LMCache's server answers", 300)

    def answers(self):
        if self.child.poll() is not None:
            raise AssertionError(f"LMCache's server has ended: {self.log}")
        try:
            return fetch(f"http://127.0.0.1:{self.http}/healthcheck")[0] < 500
        except OSError:
            return False

    def end(self):
        self.child.terminate()
        self.child.wait(timeout=60)


def perigee(manager):
    extra = {"backend_name": "perigee", "module_path": "perigee.sglang", "class_name": "PerigeeStorage", "interface_v1": 1, "allocator": "shm", "socket": manager.socket, "instance": "beside",
             "lookup_ms": 5000, "prefetch_timeout_base": 20}  # what a busy machine does not use up
    return Engine(PERIGEE, [
        "--enable-hierarchical-cache", "--hicache-ratio", "2", "--hicache-write-policy", "write_through", "--hicache-io-backend", "direct", "--hicache-mem-layout", "page_first_direct",
        "--hicache-storage-backend", "dynamic", "--hicache-storage-backend-extra-config", json.dumps(extra)], ROOT / "python")


def turns(engines, rounds):
    """{(engine, length, "restored" or "computed"): [seconds]}, and tokens that were restored by (engine, length)."""
    took, cached, fresh = {}, {}, itertools.count()
    want = {}
    for e in engines:
        awake(engines, e)
        for n in LENGTHS:
            want[e.name, n] = e.say(tokens(f"stored {n}", n))[2]
            time.sleep(QUIET_S)
    for i in range(rounds):
        for n in LENGTHS:
            for e in engines if i % 2 else engines[::-1]:
                awake(engines, e)
                e.flush()
                for what, prompt in (("restored", tokens(f"stored {n}", n)), ("computed", tokens(f"fresh {next(fresh)}", n))):
                    seconds, hit, ids = e.say(prompt)
                    took.setdefault((e.name, n, what), []).append(seconds)
                    time.sleep(QUIET_S)
                    if what == "restored":
                        cached.setdefault((e.name, n), []).append(hit)
                        if hit == 0 or ids != want[e.name, n]:
                            raise AssertionError(f"{e.name}, {n} tokens: {hit} restored, answer {ids}, want {want[e.name, n]}")
                    elif hit:
                        raise AssertionError(f"{e.name} found {hit} tokens of a prompt that nobody has seen")
    return took, cached


def awake(engines, one):
    for e in engines:
        if e is not one and not e.stopped:
            e.group(signal.SIGSTOP)
    if one.stopped:
        one.group(signal.SIGCONT)


def table(took, cached):
    show = lambda t: f"{1000 * statistics.median(t):,.0f} ({1000 * min(t):,.0f} to {1000 * max(t):,.0f})"
    out = ["| tokens | engine | restored tokens | restored, ms | computed, ms | restored / computed |", "|---|---|---|---|---|---|"]
    for n in LENGTHS:
        for name in (PERIGEE, LMCACHE):
            r, c = took[name, n, "restored"], took[name, n, "computed"]
            out.append(f"| {n:,} | {name} | {statistics.median(cached[name, n]):,.0f} | {show(r)} | {show(c)} | {statistics.median(r) / statistics.median(c):.2f} |")
    for n in LENGTHS:
        p, l = (took[name, n, "restored"] for name in (PERIGEE, LMCACHE))
        pairs = [a / b for a, b in zip(p, l)]
        out.append(f"{n:,} tokens: restored by Perigee in {statistics.median(pairs):.2f} of LMCache's time (median of {len(pairs)} rounds; least of each: {min(p) / min(l):.2f})")
    return "\n".join(out)


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    if not (HOME / "installed").exists():
        raise SystemExit("LMCache is not installed: run scripts/lmcache.sh sglang")
    ends = []
    with tempfile.TemporaryDirectory(prefix="pb") as folder:
        try:
            manager = Manager("beside-manager", folder, LOGS, POOL)
            manager.start()
            ends.append(manager.stop)
            daemon = Daemon(folder)
            ends.append(daemon.end)
            engines = []
            for begin in (lambda: perigee(manager), lambda: Engine(LMCACHE, ["--enable-lmcache", "--lmcache-config-file", daemon.file], HOME)):
                engines.append(begin())  # one after the other: a start takes both processors
                ends.append(engines[-1].end)
                engines[-1].server.ready()
            wait_until(manager.registered, "the engine has registered")
            print(f"load average {os.getloadavg()[0]:.0f}; {rounds} rounds", flush=True)
            print(table(*turns(engines, rounds)), flush=True)
            print(f"load average {os.getloadavg()[0]:.0f}")
        finally:
            for end in reversed(ends):
                try:
                    end()
                except Exception as e:
                    print(f"at the end: {e}", file=sys.stderr)


if __name__ == "__main__":
    main()
