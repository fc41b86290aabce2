"""The backend and the linker, slowed down: for qualify.py, which has to do something while pages are being restored.

The file that PERIGEE_SLOW_GETS names says how: as many seconds, and at what. A get waits so long, or until the file says less or is gone.

    60           when its pages are leased: it asks, waits, and then has them copied
    60 before    before it asks for anything; what it asks then it asks as ever, so in one message with the restore where the Manager copies

While it waits before, the file with ".held" behind its name is there; a lease is seen in the Manager's metrics. To the linker this wait is none of a thread that is stuck: only
a Manager that hangs is.
"""

import contextlib
import os
import pathlib
import threading
import time

from perigee.sglang.linker import PerigeeLinker
from perigee.sglang.storage import PerigeeStorage


def slow(store, still=lambda: None):
    """Puts it in the place of a store's get. still is called all the while that it waits."""
    get, copies, here = store.get, store._copies, threading.local()

    def slowly(*args, **kwargs):
        seconds, at = wanted()
        if at == "before":
            with held():
                wait(still)
        here.asked, here.leased = 0, seconds > 0 and at == ""
        try:
            return get(*args, **kwargs)
        finally:
            here.leased = False

    def step():
        """Asked twice by a restore: whether it is to be one message, and again when there is a lease."""
        if not getattr(here, "leased", False):
            return copies()
        here.asked += 1
        if here.asked % 2:
            return False
        wait(still)
        return copies()

    store.get, store._copies = slowly, step


def wanted():
    try:
        seconds, _, at = pathlib.Path(os.environ["PERIGEE_SLOW_GETS"]).read_text().partition(" ")
        return float(seconds or 0), at.strip()
    except FileNotFoundError:
        return 0.0, ""


@contextlib.contextmanager
def held():
    path = pathlib.Path(os.environ["PERIGEE_SLOW_GETS"] + ".held")
    path.touch()
    try:
        yield
    finally:
        path.unlink()


def wait(still):
    began = time.monotonic()
    while time.monotonic() - began < wanted()[0]:
        still()
        time.sleep(0.05)


class SlowStorage(PerigeeStorage):
    def on_host_pools_registered(self):
        super().on_host_pools_registered()
        slow(self._store)


class SlowLinker(PerigeeLinker):
    def _begin(self):
        super()._begin()
        slow(self._store, lambda: self._turn.begins(time.monotonic()))
