"""Real vLLM engines beside a Cache Manager, for restore.py and bench/eval/drive_vllm.py. Only servers, prompts and numbers; no test."""

import json
import os
import signal

from fleet import BLOCK, LOGS, MODEL
from servers import ROOT, Server, ask, fetch, free_port, series, wait_until


class Engine:
    """vLLM by scripts/vllm/serve.sh: with a kv-transfer-config, or without one."""

    def __init__(self, name, blocks, max_len, max_seqs=8, cpus="0"):
        self.name, self.blocks, self.max_len, self.max_seqs, self.cpus = name, blocks, max_len, max_seqs, cpus
        self.port, self.server = free_port(), None
        self.url = f"http://127.0.0.1:{self.port}"

    def begin(self, *more, transfer=None, environment=()):
        """Starts it, and does not wait."""
        command = ["env", *environment, ROOT / "scripts/vllm/serve.sh", "--name", self.name, "--port", self.port, "--blocks", self.blocks,
                   "--block-size", BLOCK, "--max-len", self.max_len, "--cpus", self.cpus, "--dev", "--", "--max-num-seqs", self.max_seqs]
        if transfer is not None:
            command += ["--kv-transfer-config", json.dumps(transfer)]
        self.server = Server(self.name, LOGS, command + list(more))

    def start(self, *more, **options):
        self.begin(*more, **options)
        self.server.ready()

    def stop(self):
        if self.server is not None and self.server.child.poll() is None:
            if self.server.stop() != 0:
                raise AssertionError(f"{self.name} did not end in order")

    def kill(self):
        os.killpg(self.group(), signal.SIGKILL)
        self.server.child.wait()
        self.server.child.stdout.close()

    def group(self):
        return int((LOGS / f"{self.name}.pgid").read_text())

    def number(self, name, labels=""):
        return sum(v for k, v in series(self.url).get("vllm:" + name, {}).items() if labels in k)

    def idle(self):
        return self.number("num_requests_running") + self.number("num_requests_waiting") == 0

    def reset(self):
        wait_until(self.idle, f"{self.name} is idle")
        status, text = fetch(self.url + "/reset_prefix_cache", {})
        if status != 200:
            raise AssertionError(f"/reset_prefix_cache: {status} {text}")

    def counters(self):
        """What it has done so far, in its own words."""
        page = series(self.url)

        def number(name, labels=""):
            return sum(v for k, v in page.get("vllm:" + name, {}).items() if labels in k)

        return {
            "hits": number("external_prefix_cache_hits_total"),
            "external": number("prompt_tokens_by_source_total", 'source="external_kv_transfer"'),
            "local": number("prompt_tokens_by_source_total", 'source="local_cache_hit"'),
            "computed": number("prompt_tokens_by_source_total", 'source="local_compute"'),
            "preempted": number("num_preemptions_total"),
        }


def perigee(manager, module="perigee.vllm", connector="PerigeeConnector", **extra):
    """The kv-transfer-config of an engine beside a Manager."""
    return {
        "kv_connector": connector, "kv_connector_module_path": module, "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"socket": manager.socket} | extra,
    }


PYTHONPATH = f"PYTHONPATH={ROOT / 'python'}:{ROOT / 'itest/vllm'}"


class Answer:
    def __init__(self, prompt, body):
        c, u = body["choices"][0], body["usage"]
        self.ids, self.prompt = c["token_ids"], prompt
        self.cached = (u.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def complete(engine, prompt, n, salt=None, model=MODEL):
    """What an engine says at temperature 0: n tokens."""
    body = {"model": model, "prompt": prompt, "max_tokens": n, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
    return Answer(prompt, ask(engine.url + "/v1/completions", body | ({"cache_salt": salt} if salt else {})))


def restorable(n):
    """What can be restored of a prompt: whole blocks, and one token is always computed."""
    return (n - 1) // BLOCK * BLOCK
