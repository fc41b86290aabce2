"""Two real vLLM engines and the gateways before them, for qualify.py. Only servers, addresses and numbers; no test.

Everything is on loopback, and its logs are in .cache/vllm/log/qualify-*.
"""

import itertools
import json
import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from servers import BIN, ROOT, Server, ask, fetch, free_port, series, wait_until  # noqa: E402

LOGS = ROOT / ".cache/vllm/log"
MODEL = "tiny"
BLOCK = 32  # tokens of a KV block, the smallest that vLLM's CPU kernels take
BLOCKS = 128  # of an engine: so few that some thousand tokens of prompts evict
MAX_LEN = 4000  # tokens of prompt and answer; at most what BLOCKS hold
gateways = itertools.count(1)  # for the names of their logs


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
        self.server = Server(f"qualify-{self.name}", LOGS, [
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
        self.server = Server(name, LOGS, [BIN, "serve", "--config", file])

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
