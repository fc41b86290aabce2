"""The connector, slowed down: loads wait as long as the file says that PERIGEE_SLOW_LOADS names, if it is there. For restore.py, which has to
do something while a load is under way."""

import os
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
        try:
            with open(os.environ["PERIGEE_SLOW_LOADS"]) as f:
                time.sleep(float(f.read()))
        except FileNotFoundError:
            pass
        return self._load.session

    def __getattr__(self, name):
        return getattr(self._load, name)


class SlowConnector(PerigeeConnector):
    def register_kv_caches(self, kv_caches):
        before, working.Loader = working.Loader, Loader
        try:
            super().register_kv_caches(kv_caches)
        finally:
            working.Loader = before
