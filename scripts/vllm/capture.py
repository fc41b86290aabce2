"""capture.py OUT: writes a session with a real engine as golden data for the decoder of KV events and the prefix index.

Run it with the Python of .cache/vllm/venv, after install.sh and model.py. It starts an engine with a small KV cache through serve.sh, does the
steps below one after the other, and notes for each what was asked, what the engine said, and each raw message that it published.
internal/gateway/prefix/events/testdata/README.md has the shape of OUT.
"""

import concurrent.futures
import gzip
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import time
import urllib.request

import torch
import zmq
from safetensors.torch import save_file
from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DIR = ROOT / ".cache/vllm"
PORT, EVENTS, REPLAY = 18101, 18201, 18301
URL = f"http://127.0.0.1:{PORT}"
BLOCK, BLOCKS = 32, 48  # one of the blocks is the engine's own, so 1,504 tokens fit
CHUNK = 256  # tokens of a prefill step, so that a long prompt takes several
QUIET_S = 0.7  # with no message for this long, a step's messages are all there: an engine step takes some 20 ms


def adapter(path):
    """A LoRA adapter with random weights for model.py's default model."""
    config = json.loads((DIR / "model/config.json").read_text())
    h, rank, g = config["hidden_size"], 8, torch.Generator().manual_seed(7)
    path.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for i in range(config["num_hidden_layers"]):
        p = f"base_model.model.model.layers.{i}.self_attn.q_proj."
        tensors[p + "lora_A.weight"] = torch.randn(rank, h, generator=g) * 0.1
        tensors[p + "lora_B.weight"] = torch.randn(h, rank, generator=g) * 0.1
    save_file(tensors, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": rank, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none", "task_type": "CAUSAL_LM"}))
    return path


class Engine:
    """serve.sh with an engine, and a subscriber that was there before its first message."""

    def __init__(self, context, lora):
        self.sub = context.socket(zmq.SUB)
        self.sub.setsockopt(zmq.SUBSCRIBE, b"")
        self.sub.setsockopt(zmq.RECONNECT_IVL, 20)
        self.sub.connect(f"tcp://127.0.0.1:{EVENTS}")
        self.child = subprocess.Popen(
            [ROOT / "scripts/vllm/serve.sh", "--name", "capture", "--port", str(PORT), "--events-port", str(EVENTS), "--replay-port", str(REPLAY),
             "--blocks", str(BLOCKS), "--block-size", str(BLOCK), "--max-len", "1400", "--dev", "--", "--max-num-batched-tokens", str(CHUNK),
             "--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"adapter={lora}"],
            stdout=subprocess.PIPE, text=True)
        line = self.child.stdout.readline()
        print(line.strip(), flush=True)
        if not line.startswith("ready"):
            raise SystemExit("the engine did not start")

    def messages(self):
        out = []
        while self.sub.poll(QUIET_S * 1000):
            out.append([f.hex() for f in self.sub.recv_multipart()])
        return out

    def kill(self):
        """SIGKILL to all of its processes, as the kernel does when memory runs out."""
        os.killpg(int((DIR / "log/capture.pgid").read_text()), signal.SIGKILL)
        self.child.wait()
        self.sub.close()

    def stop(self):
        self.child.terminate()
        self.child.wait()


def post(path, body=None):
    request = urllib.request.Request(URL + path, json.dumps(body or {}).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as r:
        text = r.read()
    return json.loads(text) if text else None


def complete(prompt, n, model="tiny", **more):
    r = post("/v1/completions", {"model": model, "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "return_token_ids": True} | more)
    usage = r["usage"]
    done = {"prompt_token_ids": prompt, "output_token_ids": r["choices"][0]["token_ids"],
            "cached_tokens": (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)}
    if model != "tiny":
        done["lora_name"] = model
    if "cache_salt" in more:
        done["cache_salt"] = more["cache_salt"]
    if "vllm_xargs" in more:
        done |= more["vllm_xargs"]
    return done


class Session:
    def __init__(self, engine):
        self.engine, self.steps = engine, []

    def step(self, name, *requests):
        """Requests one after the other; a list of them is done at once."""
        done = []
        for r in requests:
            if callable(r):
                r()
                continue
            if isinstance(r, list):
                with concurrent.futures.ThreadPoolExecutor(len(r)) as pool:
                    done += [f.result() for f in [pool.submit(complete, *a, **k) for a, k in r]]
                continue
            a, k = r
            done.append(complete(*a, **k))
        self.steps.append({"step": name, "requests": done, "messages": self.engine.messages()})
        print(f"{name}: {len(self.steps[-1]['messages'])} messages, cached {[d['cached_tokens'] for d in done]}", flush=True)


def ask(*a, **k):
    return a, k


def replay(context, start):
    """All messages of the engine's buffer from one on, as a DEALER sees them, the end marker included."""
    s = context.socket(zmq.DEALER)
    s.connect(f"tcp://127.0.0.1:{REPLAY}")
    s.send_multipart([b"", struct.pack(">Q", start)])
    out = []
    while s.poll(5000):
        frames = s.recv_multipart()
        out.append([f.hex() for f in frames])
        if frames[-1] == b"":
            break
    s.close()
    return out


def main():
    out = pathlib.Path(sys.argv[1])
    text = gzip.open(ROOT / "internal/gateway/tokens/bpe/testdata/prose.txt.gz", "rt").read()
    ids = Tokenizer.from_file(str(DIR / "model/tokenizer.json")).encode(text).ids
    cut = lambda start, n: ids[start:start + n]
    lora = adapter(DIR / "adapter")
    context = zmq.Context()
    e = Engine(context, lora)
    try:
        s = Session(e)
        first, family = cut(0, 100), cut(1000, 320)
        s.step("one prompt of 100 tokens, 40 of output: decoding fills a block", ask(first, 40))
        s.step("the same again: all of it is there", ask(first, 40))
        s.step("its conversation goes on", ask(first + s.steps[0]["requests"][0]["output_token_ids"] + cut(200, 30), 4))
        s.step("the same with all that is reused announced again", ask(first, 4, vllm_xargs={"kv_cache_report_mode": "full"}))
        s.step("a prompt shorter than a block", ask(cut(300, 20), 4))
        s.step("a prompt of exactly three blocks, twice: the last block is computed again", ask(cut(400, 96), 1), ask(cut(400, 96), 1))
        s.step("three of a family of 320 tokens", *[ask(family + cut(2000 + 50 * i, 50), 4) for i in range(3)])
        s.step("the salt of a tenant, twice", ask(first, 4, cache_salt="tenant-a"), ask(first, 4, cache_salt="tenant-a"))
        s.step("the salt of another", ask(first, 4, cache_salt="tenant-b"))
        s.step("a LoRA adapter, twice", ask(first, 4, "adapter"), ask(first, 4, "adapter"))
        s.step("a LoRA adapter and a salt", ask(first, 4, "adapter", cache_salt="tenant-a"))
        s.step("700 tokens, in three parts: others are evicted", ask(cut(3000, 700), 4))
        s.step("of what came before, some is left", ask(first, 4), ask(family + cut(2000, 50), 4))
        s.step("1,280 tokens: the end of the family goes, leaf by leaf", ask(cut(7000, 1280), 4))
        s.step("its beginning is left", ask(family + cut(2000, 50), 4))
        s.step("three at once", [ask(cut(4000 + 100 * i, 90), 12) for i in range(3)])
        s.step("more at once than fit: some are put off and begun again", [ask(cut(5000 + 300 * i, 280), 150) for i in range(5)])
        s.step("a reset: nothing is published", lambda: post("/reset_prefix_cache"))
        s.step("the next request tells of it", ask(first, 4))
        s.step("a reset and at once the same prompt", lambda: post("/reset_prefix_cache"), ask(first, 4))
        s.step("two resets", lambda: post("/reset_prefix_cache"), lambda: post("/reset_prefix_cache"), ask(family + cut(2000, 50), 4))
        total = sum(len(t["messages"]) for t in s.steps)
        late = {"from": total - 3, "messages": replay(context, total - 3)}
        whole = [m[2:] for m in replay(context, 0)[:-1]] == [m[1:] for t in s.steps for m in t["messages"]]
        future = {"from": total + 100, "messages": replay(context, total + 100)}
        e.kill()
        e = Engine(context, lora)
        again = Session(e)
        again.step("killed and started again: numbers from 0, nothing is there", ask(first, 4))
        again.step("the family", ask(family + cut(2000, 50), 4))
    finally:
        e.stop()
    write(out, {
        "engine": "vllm 0.32.0+cpu",
        "made_by": "scripts/vllm/capture.py",
        "block_size": BLOCK,
        "num_gpu_blocks": BLOCKS,
        "max_num_batched_tokens": CHUNK,
        "prefix_caching_hash_algo": "sha256_cbor",
        "replay_of_all_equals_live": whole,
        "replays": [late, future],
        "incarnations": [s.steps, again.steps],
    })


def write(out, value):
    """JSON with lists of numbers and the frames of a message in a line each."""
    out.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, indent=1)
    lines, row = [], None
    for line in text.splitlines():
        leaf = line.strip().rstrip(",")
        if row is None and line.endswith("["):
            row = [line]
        elif row is not None and (leaf.lstrip("-").isdigit() or (leaf.startswith('"') and leaf.endswith('"') and '": ' not in leaf)):
            row.append(line.strip())
        elif row is not None and leaf == "]":
            lines.append(row[0] + " ".join(row[1:]) + line.strip())
            row = None
        else:
            lines += row or []
            row = [line] if line.endswith("[") else None
            if row is None:
                lines.append(line)
    out.write_text("\n".join(lines) + "\n")
    if json.loads(out.read_text()) != value:
        raise SystemExit("the file does not say what was seen")
    print(f"{out}: {out.stat().st_size >> 10} KiB")


main()
