"""speed.py PERIGEE: how fast the backend restores 128 pages, beside a loop that copies and checksums the same bytes between the same kinds of memory in one thread of another
process (loop/main.go, built here: needs Go), in turns. Nothing is judged. Run with the Python of .cache/sglang/venv on a machine that does nothing else.

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

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import pools_check as pc  # noqa: E402

PAGES, ROUNDS = 128, 200
SHAPES = {16 << 10: (16, 1, 2), 64 << 10: (16, 2, 4), 256 << 10: (64, 2, 4)}  # bytes of a page: (tokens, heads, layers) that make them up


class Loop:
    def __init__(self, program, source, pool, bytes_):
        k = PAGES * bytes_ // 2  # the second half of K's pages, and then of V's
        self.child = subprocess.Popen(
            [program, f"/proc/{os.getpid()}/fd/{source}", f"/proc/{os.getpid()}/fd/{pool.allocator.fds[0]}", str(PAGES), str(bytes_), str(k), str(k + 2 * PAGES * bytes_ // 2)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def once(self):
        self.child.stdin.write("\n")
        self.child.stdin.flush()
        return int(self.child.stdout.readline().split()[0]) / 1e9

    def close(self):
        self.child.stdin.close()
        self.child.stdout.close()
        self.child.wait()


def measure(program, case, bytes_):
    pc.PAGE, heads, pc.LAYERS = SHAPES[bytes_]
    pool = pc.mha(2 * PAGES, heads=heads)
    b = case.backend(pool, extra={"instance": f"speed {bytes_}", "scope": f"{bytes_}"})
    assert b._pools["kv"].bytes == bytes_
    pc.fill(pool, bytes_)
    source = os.memfd_create("source")
    os.write(source, bytes(os.urandom(bytes_)) * PAGES)
    loop = Loop(program, source, pool, bytes_)
    keys = pc.keys_of(pc.tokens(1, PAGES))
    assert b.batch_set_v1(keys, pc.slots(pool, *range(PAGES))) == [True] * PAGES
    to = pc.slots(pool, *range(PAGES, 2 * PAGES))
    took = {"loop": [], "get": [], "exists": []}
    for i in range(ROUNDS + 20):
        t = [time.perf_counter()]
        assert b.batch_exists(keys) == PAGES
        t.append(time.perf_counter())
        assert b.batch_get_v1(keys, to) == [True] * PAGES
        t.append(time.perf_counter())
        if i >= 20:
            took["exists"].append(t[1] - t[0])
            took["get"].append(t[2] - t[1])
            took["loop"].append(loop.once())
        else:
            loop.once()
    loop.close()
    os.close(source)
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
