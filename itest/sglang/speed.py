"""speed.py PERIGEE: how fast the backend restores 128 pages, beside a loop that copies and checksums the same pages out of the same memory of the Manager's into the same
places in one thread of another process (loop/main.go, built here: needs Go), in turns. What lies where in physical memory would else decide by a third. "two" is
batch_get_v1 by the two messages that a Manager from before Fetch is asked with, "set" is batch_set_v1 of pages that are not there, with a quarter of the rounds.
Nothing is judged. Run with the Python of .cache/sglang/venv on a machine that does nothing else.

    SGLANG_ON_CPU=1 .cache/sglang/venv/bin/python -P -B itest/sglang/speed.py bin/perigee
"""

import logging
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import unittest.mock

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import pools_check as pc  # noqa: E402

from perigee.client.session import _Arena  # noqa: E402
from perigee.sglang import store  # noqa: E402

PAGES, ROUNDS = 128, 200
SHAPES = {16 << 10: (16, 1, 2), 64 << 10: (16, 2, 4), 256 << 10: (64, 2, 4)}  # bytes of a page: (tokens, heads, layers) that make them up


class Loop:
    def __init__(self, program, manager, backend, keys, pool, bytes_):
        source, at = source_of(manager, backend, keys, bytes_)
        k = PAGES * bytes_ // 2  # the second half of K's pages, and then of V's
        self.child = subprocess.Popen(
            [program, source, f"/proc/{os.getpid()}/fd/{pool.allocator.fds[0]}", *map(str, (PAGES, bytes_, at, k, k + 2 * PAGES * bytes_ // 2))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def once(self):
        self.child.stdin.write("\n")
        self.child.stdin.flush()
        return int(self.child.stdout.readline().split()[0]) / 1e9

    def close(self):
        self.child.stdin.close()
        self.child.stdout.close()
        self.child.wait()


def source_of(manager, backend, keys, bytes_):
    """Where the Manager has the pages: a file, and the offset of the first. The others follow it in a row."""
    seen, slot = [], _Arena.slot
    names = store.names(keys)
    with backend._keeper.use("queries", 60) as s:
        lease = s.query([(0, names)]).lease
    with backend._keeper.use("restores", 60) as s, unittest.mock.patch.object(_Arena, "slot", lambda arena, i, n: seen.append((arena, i)) or slot(arena, i, n)):
        s.restore(lease, 0, lambda i, view: None)
    arena, first = seen[0]
    assert [i for _, i in seen] == list(range(first, first + PAGES)) and arena.slot_bytes == bytes_, "the pages do not lie in a row"
    at = numpy.frombuffer(arena.map, numpy.uint8, 1).ctypes.data
    inode = next(int(line.split()[4]) for line in open("/proc/self/maps") if line.startswith(f"{at:x}-"))
    fds = f"/proc/{manager.child.pid}/fd"
    return next(f"{fds}/{fd}" for fd in os.listdir(fds) if os.stat(f"{fds}/{fd}").st_ino == inode and "memfd" in os.readlink(f"{fds}/{fd}")), first * bytes_


def measure(program, case, bytes_):
    pc.PAGE, heads, pc.LAYERS = SHAPES[bytes_]
    pool = pc.mha(2 * PAGES, heads=heads)
    b = case.backend(pool, extra={"instance": f"speed {bytes_}", "scope": f"{bytes_}"})
    assert b._pools["kv"].bytes == bytes_
    pc.fill(pool, bytes_)
    keys = pc.keys_of(pc.tokens(1, PAGES))
    assert b.batch_set_v1(keys, pc.slots(pool, *range(PAGES))) == [True] * PAGES
    loop = Loop(program, case.m, b, keys, pool, bytes_)
    from_, to = pc.slots(pool, *range(PAGES)), pc.slots(pool, *range(PAGES, 2 * PAGES))
    took = {"loop": [], "get": [], "two": [], "exists": [], "set": []}

    def timed(what, f, *args):
        began = time.perf_counter()
        got = f(*args)
        if i >= 20:
            took[what].append(time.perf_counter() - began)
        return got

    for i in range(ROUNDS + 20):
        for what in ("get", "two"):
            b._store._fetches = what == "get"
            assert timed("exists", b.batch_exists, keys) == PAGES
            assert timed(what, b.batch_get_v1, keys, to) == [True] * PAGES
        seconds = loop.once()
        if i >= 20:
            took["loop"].append(seconds)
    for i in range(ROUNDS // 4 + 20):
        assert timed("set", b.batch_set_v1, pc.keys_of(pc.tokens(2 + i, PAGES)), from_) == [True] * PAGES
    loop.close()
    b.close()
    return took


def main():
    case = pc.Case()
    case.setUp()
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "loop")
        subprocess.run(["go", "build", "-o", program, "./itest/sglang/loop"], cwd=pc.ROOT, check=True)
        try:
            for bytes_ in SHAPES:
                took = measure(program, case, bytes_)
                us = {k: (1e6 * statistics.median(v), 1e6 * min(v)) for k, v in took.items()}
                shares = [us["loop"][i] / us["get"][i] for i in (0, 1)]
                print(f"{bytes_ >> 10:4d} KiB: " + ", ".join(f"{k} {m:.0f} µs (least {l:.0f})" for k, (m, l) in us.items())
                      + f"; get has {shares[0]:.2f} of the loop's speed (least: {shares[1]:.2f})", flush=True)
        finally:
            case.doCleanups()


if __name__ == "__main__":
    pc.configure()
    logging.disable(logging.INFO)
    main()
