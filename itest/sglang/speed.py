"""speed.py PERIGEE [TABLE...]: how fast the backend restores pages, beside a loop that copies and checksums pages between the same two memories, the Manager's and the engine's host
pool, in one thread of another process (loop/main.go, built here: needs Go), in turns; once by Go's copy and a checksum, and once ("past") in one pass that passes the caches by, as the Manager does. Tables are cold, models and hot; all three if none is named; models=Llama is
of the rows with that in their names.

cold and models: each get and each turn of the loop is of another prompt and to other pages of the host pool, and nothing is touched again before all of COLD bytes of both memories
were: pages lie in main memory and not in the processor's cache, as they do in a pool of many GiB. Who has which prompt changes with each lap. hot: one prompt again and again, to the
same places. "set" is batch_set_v1 of the prompts, at the beginning. cpu is processor time of a get: of the thread that asks, and of the Manager.

Nothing is judged. Run with the Python of .cache/sglang/venv on a machine that does nothing else; it takes 3 GiB and some minutes.

    SGLANG_ON_CPU=1 .cache/sglang/venv/bin/python -P -B itest/sglang/speed.py bin/perigee
"""

import itertools
import logging
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
import unittest.mock
from typing import NamedTuple

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import pools_check as pc  # noqa: E402

from perigee.client.session import _Arena  # noqa: E402
from perigee.sglang import store  # noqa: E402
from perigee.sglang.lore import Space  # noqa: E402

COLD = 512 << 20  # bytes of each of the two memories, many times the largest cache's
MOST = 64 << 20  # bytes of one get, which is of at most SGLang's 128 pages
TURNS = 200  # of each, at least


class Model(NamedTuple):
    """What a page's bytes are made of: width is of one token's keys in one layer, in bytes, on one rank; latent: there are no values beside them."""

    name: str
    layers: int
    width: int
    latent: bool = False

    def page(self, tokens):
        return tokens * self.layers * self.width * (1 if self.latent else 2)


TINY = Model("tiny", 1, 512)
MODELS = (
    Model("the checks' own", 4, 512), Model("Qwen2.5-0.5B", 24, 256), Model("Qwen3-0.6B", 28, 2048), Model("Llama-3-8B", 32, 2048),
    Model("Llama-3-70B, TP 8", 80, 256), Model("DeepSeek-V3", 61, 1152, True))


def pool_of(model, tokens, pages, layout):
    pc.PAGE, pc.LAYERS = tokens, model.layers
    if model.latent:
        return pc.mla(pages, layout=layout, rank=model.width // 4 - 64, rope=64)
    return pc.mha(pages, layout=layout, heads=model.width // (4 * pc.DIM))


class Loop:
    """One turn copies a prompt's pages out of the Manager's memory into some of the host pool's."""

    def __init__(self, program, manager, pool, arena, bytes_, pieces):
        at = numpy.frombuffer(arena.map, numpy.uint8, 1).ctypes.data
        inode = next(int(line.split()[4]) for line in open("/proc/self/maps") if line.startswith(f"{at:x}-"))
        fds = f"/proc/{manager.child.pid}/fd"
        source = next(f"{fds}/{fd}" for fd in os.listdir(fds) if os.stat(f"{fds}/{fd}").st_ino == inode and "memfd" in os.readlink(f"{fds}/{fd}"))
        self.child = subprocess.Popen(
            [program, source, f"/proc/{os.getpid()}/fd/{pool.allocator.fds[0]}", str(bytes_), *map(str, pieces)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def once(self, line):
        self.child.stdin.write(line)
        self.child.stdin.flush()
        return int(self.child.stdout.readline().split()[0]) / 1e9

    def close(self):
        self.child.stdin.close()
        self.child.stdout.close()
        self.child.wait()


def lies_at(backend, keys):
    """The arena that the Manager has the pages in, and their slots."""
    seen, slot = [], _Arena.slot
    with backend._keeper.use("queries", 60) as s:
        lease = s.query([(0, store.names(keys))]).lease
    with backend._keeper.use("restores", 60) as s, unittest.mock.patch.object(_Arena, "slot", lambda arena, i, n: seen.append((arena, i)) or slot(arena, i, n)):
        s.restore(lease, 0, lambda i, view: None)
    assert len({id(a) for a, _ in seen}) == 1 and len(seen) == len(keys)
    return seen[0][0], [i for _, i in seen]


class Prompts:
    """So many prompts of n pages each, whose pages the Manager has, and as many runs of pages of the host pool to restore them to."""

    def __init__(self, program, model, tokens, layout, sets):
        self.bytes = bytes_ = model.page(tokens)
        self.n = n = min(128, MOST // bytes_)
        sets = sets or max(6, 3 * -(-COLD // (3 * n * bytes_)))
        self.case = case = pc.Case()
        case.setUp()
        case.m.kill()
        case.m.start("--pool-bytes", str(n * bytes_ * (sets + 2) * 9 // 8 + (64 << 20)), "--instances", "1")
        pool = pool_of(model, tokens, n * max(2, sets), layout)
        self.backend = b = case.backend(pool, extra={"instance": "speed"})
        case.soon(lambda: case.m.number("pool_warm_bytes") >= n * bytes_ * sets, "the pool is there")
        p = b._pools["kv"]
        assert p.bytes == bytes_
        self.pieces = len(p.sizes)
        fill(pool)
        self.places = [pc.slots(pool, *range(i * n, i * n + n)) for i in range(max(2, sets))]
        self.keys = [pc.keys_of(pc.tokens(i, n)) for i in range(sets)]
        self.sums = [checksum(pool, p, at) for at in self.places]
        self.set = []
        for i, (keys, at) in enumerate(zip(self.keys, self.places)):
            b.note(keys, pc.tokens(i, n), [], Space())  # as an engine does
            began = time.perf_counter()
            assert b.batch_set_v1(keys, at) == [True] * n
            self.set.append(time.perf_counter() - began)
        arena, _ = lies_at(b, self.keys[0])
        froms = [[i * arena.slot_bytes for i in lies_at(b, keys)[1]] for keys in self.keys]
        base = b._shared.regions[0][0]
        tos = [[a - base for a in p.places(at, n).addresses] for at in self.places]
        self.line = lambda i, j, past=0: " ".join(map(str, [past] + froms[i] + tos[j])) + "\n"
        self.loop = Loop(program, case.m, pool, arena, bytes_, p.sizes)
        self.pool = pool

    def turns(self):
        """For each turn the prompts of who comes first, second and third, by who that is."""
        who = ("get", "loop", "past")
        if len(self.keys) == 1:
            yield from ({who[(i + k) % 3]: 0 for k in range(3)} for i in range(TURNS + 20))
            return
        order = list(range(len(self.keys)))
        random.Random(len(order)).shuffle(order)
        third = len(order) // 3
        for lap in range(-(-TURNS // third) + 1):
            for i in range(third):
                yield {who[(i + k) % 3]: order[3 * i + (k + lap) % 3] for k in range(3)}

    def check(self):
        """What was restored last is what was stored."""
        p, to = self.backend._pools["kv"], self.places[-1]
        assert self.backend.batch_get_v1(self.keys[0], to) == [True] * self.n
        assert checksum(self.pool, p, to) == self.sums[0], "another page was restored"

    def close(self):
        self.loop.close()
        self.case.doCleanups()


def fill(pool):
    """Other bytes in each page, without the time that random ones take."""
    raw = pool.kv_buffer.view(pc.torch.uint8).reshape(-1).numpy().view(numpy.uint64)
    for at in range(0, len(raw), 1 << 22):
        part = raw[at:at + (1 << 22)]
        part[:] = (numpy.arange(at, at + len(part), dtype=numpy.uint64) + 1) * numpy.uint64(0x9E3779B97F4A7C15)


def checksum(pool, p, slots):
    """Of the first and the last page of these."""
    places = p.places(slots, len(slots) // p.slots)
    return [hash(b"".join(bytes(pc.pools.memory(a, n)) for a, n in places[i])) for i in (0, -1)]


def cpu(pid):
    """Processor time that a process has had: clock_getcpuclockid(3)."""
    return time.clock_gettime(~pid << 3 | 2)


def get(x, keys, places, pid):
    began = time.perf_counter()
    assert x.backend.batch_exists(keys) == x.n
    asked = time.perf_counter() - began
    here, there = time.thread_time(), cpu(pid)
    began = time.perf_counter()
    got = x.backend.batch_get_v1(keys, places)
    seconds = time.perf_counter() - began
    here, there = time.thread_time() - here, cpu(pid) - there
    assert got == [True] * x.n
    return {"exists": asked, "get": seconds, "cpu here": here, "cpu there": there}


def measure(program, model, tokens, layout, sets):
    x = Prompts(program, model, tokens, layout, sets)
    pid = x.case.m.child.pid
    took = {"loop": [], "past": [], "exists": [], "get": [], "cpu here": [], "cpu there": []}
    turns = list(x.turns())
    skip = max(20, len(x.keys) // 3)
    for count, turn in enumerate(turns):
        for who, i in turn.items():  # in this order
            to = (i + len(x.places) // 2) % len(x.places)
            if who != "get":
                line = x.line(i, to, int(who == "past"))
                times = {who: x.loop.once(line)}
            else:
                times = get(x, x.keys[i], x.places[to], pid)
            if count >= skip:
                for what, seconds in times.items():
                    took[what].append(seconds)
    x.check()
    took["set"] = x.set[len(x.set) // 4:]
    x.close()
    return x, took


def row(what, x, took):
    us = {k: (1e6 * statistics.median(v), 1e6 * min(v)) for k, v in took.items()}
    shares = " | ".join(f"{b}{us[k][0] / us['get'][0]:.2f}{b} ({us[k][1] / us['get'][1]:.2f})" for k, b in (("loop", "**"), ("past", "")))
    times = " | ".join(f"{us[k][0]:,.0f} ({us[k][1]:,.0f})" for k in ("loop", "past", "exists", "get", "set"))
    print(f"| {what} | {x.bytes / 1024:,.0f} KiB | {x.pieces} | {x.n} | {times} | {us['cpu here'][0]:,.0f} + {us['cpu there'][0]:,.0f} | {shares} |", flush=True)


def tables(names):
    """(title, [(label, model, tokens of a page, layout, prompts or None for as many as are cold)])"""
    simple = [(f"{n} tokens", TINY, n, "page_first_direct") for n in (16, 64, 256)]
    models = [(f"{m.name}, {n}, {layout}", m, n, layout) for m in MODELS for n, layout in itertools.product((1, 16, 64), ("page_first_direct", "layer_first"))
              if m.page(n) <= MOST // 8]
    all_ = {"cold": [(*r, None) for r in simple], "models": [(*r, None) for r in models], "hot": [(*r, 1) for r in simple]}
    asked = [n.partition("=")[::2] for n in names] or [(n, "") for n in all_]
    return {n: [r for r in all_[n] if part in r[0]] for n, part in asked}


def main():
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "loop")
        subprocess.run(["go", "build", "-o", program, "./itest/sglang/loop"], cwd=pc.ROOT, check=True)
        for name, rows in tables(sys.argv[2:]).items():
            print(f"\n{name}; medians (least) of {TURNS} turns and more, microseconds\n\n| | page | pieces | pages | loop | past | `batch_exists` | `batch_get_v1` | `batch_set_v1` | cpu | share of the loop's speed | of past's |\n" + "|---" * 12 + "|", flush=True)
            for what, model, tokens, layout, sets in rows:
                row(what, *measure(program, model, tokens, layout, sets))


if __name__ == "__main__":
    pc.configure()
    logging.disable(logging.INFO)
    main()
