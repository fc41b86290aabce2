"""drive_vllm.py PLAN RUN: drives two real vLLM engines by a plan, one beside the Cache Manager and one without, and writes what happened. Nothing is judged here.

Run by scripts/vllm/eval.sh. Both engines have the same core, and only one of them is awake while it is measured; a pair, or a burst, goes to one and then to the other, in
turns that change (ABBA, drawn by the plan's seed). Whatever a request does is a sample: also that it failed.
"""

import argparse
import hashlib
import itertools
import json
import os
import pathlib
import platform
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "itest/vllm"), str(ROOT / "itest"), str(ROOT / "python")]

from cachefleet import PYTHONPATH, Engine, perigee, restorable  # noqa: E402
from fleet import LOGS, MODEL  # noqa: E402
from manager import Manager  # noqa: E402
from servers import BIN, DIES_WITH_US, at_once, fetch, free_port, tokens, wait_until  # noqa: E402

from perigee.vllm import trace  # noqa: E402

# A request that takes longer has failed: the longest of any plan, 8,000 tokens behind 15 others, takes a minute on a machine that is very busy.
REQUEST_S = 300
LOAD_EVERY_S = 5
# For the threads of an engine that goes on again to find that nothing has come: they take a millisecond or two.
AWAKE_S = 0.02


class Load(threading.Thread):
    """Notes the load average as long as it runs."""

    def __init__(self):
        super().__init__(daemon=True)
        self.began, self.points, self._ended = time.monotonic(), [], threading.Event()

    def run(self):
        while True:
            self.points.append({"at_s": round(time.monotonic() - self.began, 1), "load1": round(os.getloadavg()[0], 2)})
            if self._ended.wait(LOAD_EVERY_S):
                return

    def end(self):
        self._ended.set()
        self.join()


def busy_seconds():
    """Processor seconds that the machine has used since it began, by whomever."""
    ticks = os.sysconf("SC_CLK_TCK")
    with open("/proc/stat") as f:
        user, nice, system, _, _, irq, softirq = map(int, f.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / ticks


def used_by(pids):
    """Processor seconds of processes, with what their ended children had."""
    ticks, total = os.sysconf("SC_CLK_TCK"), 0
    for pid in pids:
        try:
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            total += sum(map(int, fields[11:15]))
        except (FileNotFoundError, ProcessLookupError):
            pass
    return total / ticks


def in_groups(groups):
    out = []
    for p in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(p.read_text().rsplit(")", 1)[1].split()[2]) in groups:
                out.append(int(p.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            pass
    return out


def streamed(url, prompt, n, ident, arrival):
    """One request: a sample's fields, whatever becomes of it. Times are from arrival, a time of time.monotonic()."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": n, "temperature": 0, "stream": True, "ignore_eos": True, "return_token_ids": True,
            "stream_options": {"include_usage": True}}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json", "X-Request-Id": ident})
    first, ids, usage, ended = None, [], None, False
    out = {"prompt_tokens": len(prompt), "ttft_ms": 0, "total_ms": 0, "tokens": 0, "cached": -1, "answer": ""}
    try:
        with urllib.request.urlopen(request, timeout=REQUEST_S) as answer:
            for line in answer:
                if not line.startswith(b"data: "):
                    continue
                if line.strip() == b"data: [DONE]":
                    ended = True
                    continue
                event = json.loads(line[6:])
                usage = event.get("usage") or usage
                for choice in event.get("choices", ()):
                    if choice.get("token_ids"):
                        first = first or time.monotonic()
                        ids += choice["token_ids"]
        done = time.monotonic()
        if not ended or first is None or len(ids) != n:
            raise ValueError(f"{len(ids)} of {n} tokens" + ("" if ended else ", and no end"))
    except Exception as e:
        return out | {"failed": f"{type(e).__name__}: {e}"[:200]}
    details = (usage or {}).get("prompt_tokens_details") or {}
    return out | {"ttft_ms": round(1000 * (first - arrival), 3), "total_ms": round(1000 * (done - arrival), 3), "tokens": len(ids),
                  "cached": details.get("cached_tokens", -1) if details else 0, "answer": hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16]}


class LMCache:
    """Its server, by scripts/lmcache.sh vllm: pages in shared memory, which engines copy themselves, as Perigee's do. Its chunks are of 256 tokens, as they are by default."""

    home = ROOT / ".cache/vllm/lmcache"
    environment = [f"PYTHONPATH={home}", "LMCACHE_TRACK_USAGE=false"]

    def __init__(self, pool):
        self.port, self.http, self.pool, self.child = free_port(), free_port(), pool, None

    def start(self):
        if not (self.home / "installed").exists():
            raise SystemExit("LMCache is not installed: run scripts/lmcache.sh vllm")
        command = ["env", *self.environment, sys.executable, "-c", "from lmcache.cli.main import main; main()", "server", "--host", "127.0.0.1", "--port", self.port,
                   "--http-host", "127.0.0.1", "--http-port", self.http, "--prometheus-port", free_port(), "--l1-size-gb", self.pool / (1 << 30), "--eviction-policy", "LRU",
                   "--supported-transfer-mode", "engine_driven", "--shm-name", f"perigee-eval-{os.getpid()}"]
        with open(LOGS / "eval-lmcache-server.err", "wb") as log:
            self.child = subprocess.Popen([*DIES_WITH_US, *map(str, command)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(self.answers, "LMCache's server answers", 300)

    def answers(self):
        if self.child.poll() is not None:
            raise AssertionError("LMCache's server has ended: eval-lmcache-server.err")
        try:
            return fetch(f"http://127.0.0.1:{self.http}/healthcheck")[0] < 500
        except OSError:
            return False

    def transfer(self):
        return {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both",
                "kv_connector_extra_config": {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": self.port}}

    def stop(self):
        if self.child is not None and self.child.poll() is None:
            self.child.terminate()
            try:
                self.child.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()


class Bench:
    """The arms, and the samples that they gave."""

    def __init__(self, plan, folder):
        self.plan, self.folder, self.setup = plan, folder, plan["setup"]
        self.draw = random.Random(plan["seed"])
        self.samples, self.counters, self.numbers = [], [], itertools.count()
        self.next_line = 0.0
        self.arrivals = {}  # by the request's id, for the timeline
        self.manager = Manager("eval-manager", folder, LOGS, self.setup["pool_bytes"])
        self.lmcache = LMCache(self.setup["pool_bytes"]) if "lmcache" in plan["arms"] else None
        self.arms = {name: Engine(f"eval-{name}", self.setup["blocks"], self.setup["max_len"], self.setup["max_seqs"]) for name in plan["arms"]}

    def start(self):
        self.manager.start()
        for name, engine in self.arms.items():
            if name == "perigee":
                extra = {"instance": "eval", "trace": self.folder} | {k: self.setup[k] for k in ("lookup_ms", "save_ms", "load_ms")}
                engine.begin(transfer=perigee(self.manager, **extra), environment=[PYTHONPATH])
            elif name == "without":
                engine.begin()
            elif name == "lmcache":
                self.lmcache.start()
                engine.begin(transfer=self.lmcache.transfer(), environment=LMCache.environment)
            else:
                raise SystemExit(f"no arm {name}: perigee, without and lmcache are built")
        for engine in self.arms.values():
            engine.server.ready()
        wait_until(self.manager.registered, "the engine has registered")

    def stop(self):
        """Ends everything. What does not end in order is said, and costs no samples: eval.sh sweeps up behind."""
        stops = [lambda: self.alone(None), *[e.stop for e in self.arms.values()]]  # one that stands still does not hear that it is to end
        if self.manager.server is not None and self.manager.server.child.poll() is None:
            stops.append(self.manager.stop)
        if self.lmcache is not None:
            stops.append(self.lmcache.stop)
        for stop in stops:
            try:
                stop()
            except Exception as e:
                print(f"at the end: {e}", file=sys.stderr, flush=True)

    def order(self, clusters):
        """The arms' order for each cluster: each order once in every two, and which comes first is drawn."""
        arms, out = list(self.arms), []
        while len(out) < clusters:
            two = [arms, arms[::-1]]
            self.draw.shuffle(two)
            out += two
        return out[:clusters]

    def burst(self, cell, arm, order, cluster, prompts, expect):
        """Sends prompts at once; each arrives at the same time, when the first is sent."""
        self.alone(arm)
        arrival = time.monotonic()

        def one(i, prompt):
            ident = f"eval-{next(self.numbers)}"
            self.arrivals[ident] = arrival
            got = streamed(self.arms[arm].url, prompt, cell["answer"], ident, arrival)
            return {"cell": cell["name"], "arm": arm, "pair": cluster * cell["concurrency"] + i, "cluster": cluster, "order": order, "expect": expect, "ident": ident} | got

        self.samples += at_once([lambda i=i, p=p: one(i, p) for i, p in enumerate(prompts)])
        self.alone(None)
        self.progress()

    def alone(self, arm):
        """All engines but one stand still, by SIGSTOP; None: all go on. A vLLM worker that has nothing to do looks for work without a pause for a second, on the core that the
        next arm is measured on: what comes second would be measured beside that, and a short request more than a long one."""
        for name, engine in self.arms.items():
            os.killpg(engine.group(), signal.SIGCONT if arm in (name, None) else signal.SIGSTOP)
        if arm is not None:
            time.sleep(AWAKE_S)

    def progress(self):
        """A line a minute: a run takes long, and may hang."""
        if time.monotonic() > self.next_line:
            self.next_line = time.monotonic() + 60
            print(f"  {len(self.samples)} requests", flush=True)

    def settled(self):
        """Nothing that came before is still going on."""
        for engine in self.arms.values():
            wait_until(engine.idle, "the engine is idle")
        wait_until(lambda: self.manager.number("granted_bytes") == 0, "nothing is being published")

    def reset(self):
        for engine in self.arms.values():
            engine.reset()

    def run(self, cell):
        print(f"{cell['name']}: {cell['clusters']} times {cell['concurrency']}", flush=True)
        self.manager.flush()
        self.settled()
        self.reset()
        before = self.count()
        getattr(self, cell["kind"])(cell)
        self.settled()
        for (of, name), value in self.count().items():
            if delta := value - before.get((of, name), 0):
                self.counters.append({"cell": cell["name"], "of": of, "name": name, "delta": delta})

    def count(self):
        out = {(arm, k): v for arm, e in self.arms.items() for k, v in e.counters().items()}
        for name in ("restores_total", "restored_bytes_total", "published_blocks_total", "removed_blocks_total", "spoiled_pages_total"):
            out["manager", name] = self.manager.number(name)
        return out

    def warm(self, prompt):
        """Each arm computes it, also the one that keeps nothing: else it alone would come out of a pause."""
        for arm, engine in self.arms.items():
            self.alone(arm)
            streamed(engine.url, prompt, 2, f"warm-{next(self.numbers)}", time.monotonic())
        self.alone(None)
        self.settled()

    def restored(self, cell):
        for i, order in enumerate(self.order(cell["clusters"])):
            prompt = tokens(f"{self.plan['seed']} {cell['name']} {i}", cell["tokens"])
            self.warm(prompt)  # what is measured is what comes back
            self.reset()
            for at, arm in enumerate(order):
                self.burst(cell, arm, at, i, [prompt], restorable(cell["tokens"]) if arm == "perigee" else -1)
            self.reset()

    def cold(self, cell):
        for i, order in enumerate(self.order(cell["clusters"])):
            prompt = tokens(f"{self.plan['seed']} {cell['name']} {i}", cell["tokens"])
            for at, arm in enumerate(order):
                self.burst(cell, arm, at, i, [prompt], -1)
            self.settled()  # what is saved after a step is not the next one's cost

    def pressure(self, cell):
        prefixes = [tokens(f"{self.plan['seed']} {cell['name']} prefix {i}", cell["tokens"]) for i in range(cell["prefixes"])]
        weights = [1 / (i + 1) for i in range(cell["prefixes"])]
        if cell.get("warm"):
            for p in reversed(prefixes):
                self.warm(p)
        for i, order in enumerate(self.order(cell["clusters"])):
            chosen = self.draw.choices(prefixes, weights, k=cell["concurrency"])
            prompts = [p + tokens(f"{self.plan['seed']} {cell['name']} tail {i} {k}", cell["tail"]) for k, p in enumerate(chosen)]
            for at, arm in enumerate(order):
                self.burst(cell, arm, at, i, prompts, -1)
            self.settled()

    def timelines(self):
        """Adds to the samples when their stages were reached. A trace that wrapped around has lost the oldest."""
        stages = {}
        for path in pathlib.Path(self.folder).glob("perigee-trace-*.ring"):
            for _, ns, event, request, _ in trace.read(path.read_bytes()):
                ident = "-".join(request.split("-")[1:3])  # cmpl-eval-17-0-…
                if ident in self.arrivals:
                    stages.setdefault(ident, {}).setdefault(event, round(ns / 1e6 - 1000 * self.arrivals[ident], 3))
        for s in self.samples:
            if found := stages.get(s.pop("ident")):
                s["timeline"] = found


def where(note):
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    memory = next(int(line.split()[1]) << 10 for line in open("/proc/meminfo") if line.startswith("MemTotal"))
    flags = next((line for line in open("/proc/cpuinfo") if line.startswith("flags")), "")
    return {"cpu": f"{cpu} ({'AVX-512' if 'avx512f' in flags else 'AVX2'})", "cores": os.cpu_count(), "memory_bytes": memory, "kernel": platform.release(), "note": note}


def versions(plan):
    import importlib.metadata as m
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True).stdout.strip()
    beside = [["LMCache", f.name.split("-")[1].removesuffix(".dist")] for f in LMCache.home.glob("lmcache-*.dist-info")] if "lmcache" in plan["arms"] else []
    return beside + [["Perigee", commit or "unknown"], ["vLLM", m.version("vllm")], ["torch", m.version("torch")], ["Python", platform.python_version()],
            ["perigee binary", hashlib.sha256(pathlib.Path(BIN).read_bytes()).hexdigest()[:16]]]


def committed(plan):
    """Whether the plan is in the repository as it is here."""
    git = ["git", "-C", str(ROOT)]
    known = subprocess.run([*git, "ls-files", "--error-unmatch", str(plan)], capture_output=True)
    return known.returncode == 0 and subprocess.run([*git, "diff", "--quiet", "HEAD", "--", str(plan)]).returncode == 0


def stamp():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def main():
    p = argparse.ArgumentParser()
    p.add_argument("plan", type=pathlib.Path)
    p.add_argument("run", type=pathlib.Path)
    p.add_argument("--sha256", required=True, help="as `eval check` says: that it is a plan, and that it is this one")
    p.add_argument("--note", default="")
    a = p.parse_args()
    raw = a.plan.read_bytes()
    if hashlib.sha256(raw).hexdigest() != a.sha256:
        sys.exit(f"{a.plan} is not what was checked")
    plan = json.loads(raw)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    out = {"version": 1, "plan_sha256": a.sha256, "plan_committed": committed(a.plan.resolve()), "versions": versions(plan)}
    with tempfile.TemporaryDirectory() as folder:
        bench, load, cut = Bench(plan, folder), Load(), None
        try:
            bench.start()
            groups = {os.getpgid(0)} | {e.group() for e in bench.arms.values()} | {os.getpgid(bench.manager.server.child.pid)}
            out["started"], began, busy, own = stamp(), time.monotonic(), busy_seconds(), used_by(in_groups(groups))
            load.start()
            try:
                for cell in plan["cells"]:
                    bench.run(cell)
            except (Exception, KeyboardInterrupt) as e:  # what there is, is kept: a cell that lacks samples is judged as unknown
                cut = e
                print(f"cut off: {type(e).__name__}: {e}", file=sys.stderr, flush=True)
            took, ours = time.monotonic() - began, used_by(in_groups(groups)) - own
            place = where(a.note) | {"cpu_seconds": round(took * os.cpu_count(), 1), "others_seconds": round(max(busy_seconds() - busy - ours, 0), 1)}
        finally:
            if load.is_alive():
                load.end()
            bench.stop()
        bench.timelines()
    out |= {"ended": stamp(), "where": place, "load": load.points, "counters": bench.counters, "samples": bench.samples}
    a.run.write_text(json.dumps(out))
    print(f"{len(bench.samples)} requests in {took:.0f} s", flush=True)
    if cut is not None:
        sys.exit(1)


if __name__ == "__main__":
    main()
