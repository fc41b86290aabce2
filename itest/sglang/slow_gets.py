"""The backend, slowed down: a get whose pages are leased waits as many seconds as the file says that PERIGEE_SLOW_GETS names, or until it says less or is gone. For
qualify.py, which has to do something while pages are being restored."""

import os
import threading
import time

from perigee.sglang.storage import PerigeeStorage


class SlowStorage(PerigeeStorage):
    def on_host_pools_registered(self):
        super().on_host_pools_registered()
        self._getting = threading.local()
        copies = self._store._copies

        def slowly():  # it is asked when the lease is there, and before anything is copied
            if getattr(self._getting, "now", False):
                self._wait()
            return copies()

        self._store._copies = slowly

    def batch_get_v1(self, keys, host_indices, extra_info=None):
        self._getting.now = True
        try:
            return super().batch_get_v1(keys, host_indices, extra_info)
        finally:
            self._getting.now = False

    @staticmethod
    def _wait():
        began = time.monotonic()
        while True:
            try:
                with open(os.environ["PERIGEE_SLOW_GETS"]) as f:
                    seconds = float(f.read() or 0)
            except FileNotFoundError:
                return
            if time.monotonic() - began >= seconds:
                return
            time.sleep(0.05)
