"""The connector, slowed down, for restore.py, which has to do something while a load or a save is under way:

  - a load waits as many seconds as the file says that PERIGEE_SLOW_LOADS names, if it is there, or until it is gone;
  - a save stops after as many pages as the file says that PERIGEE_HOLD_SAVES names, in the middle of publishing: it says so in a file beside it with ".held" behind its name,
    and goes on when the first is gone.
"""

import os
import pathlib
import time

from perigee.vllm import working
from perigee.vllm.connector import PerigeeConnector


class Loader(working.Loader):
    def submit(self, load):
        super().submit(_Waiting(load))


class _Waiting:
    """A load that looks at the file before it begins: session is the first that the loader asks for."""

    def __init__(self, load):
        self._load = load

    @property
    def session(self):
        file = pathlib.Path(os.environ["PERIGEE_SLOW_LOADS"])
        try:
            until = time.monotonic() + float(file.read_text())
            while file.exists() and time.monotonic() < until:
                time.sleep(0.01)
        except FileNotFoundError:
            pass
        return self._load.session

    def __getattr__(self, name):
        return getattr(self._load, name)


class HeldPages:
    """Pages whose reading stops. The saver holds the step's lock meanwhile, so that the engine stands still too."""

    def __init__(self, pages):
        self._pages, self._read, self._hold = pages, 0, pathlib.Path(os.environ["PERIGEE_HOLD_SAVES"])

    def read(self, block, page):
        self._pages.read(block, page)
        try:
            most = int(self._hold.read_text())
        except FileNotFoundError:
            self._read = 0
            return
        self._read += 1
        if self._read >= most:
            self._hold.with_suffix(".held").write_text(f"{self._read} pages, block {block}")
            while self._hold.exists():
                time.sleep(0.01)

    def __getattr__(self, name):
        return getattr(self._pages, name)


class SlowConnector(PerigeeConnector):
    def register_kv_caches(self, kv_caches):
        before, working.Loader = working.Loader, Loader
        try:
            super().register_kv_caches(kv_caches)
        finally:
            working.Loader = before
        self._saver._pages = HeldPages(self._pages)
