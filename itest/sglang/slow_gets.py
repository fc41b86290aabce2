"""The backend, slowed down: a get waits as long as the file says that PERIGEE_SLOW_GETS names, if it is there. For qualify.py, which has to do something
while pages are being restored."""

import os
import time

from perigee.sglang.storage import PerigeeStorage


class SlowStorage(PerigeeStorage):
    def batch_get_v1(self, keys, host_indices, extra_info=None):
        try:
            with open(os.environ["PERIGEE_SLOW_GETS"]) as f:
                time.sleep(float(f.read()))
        except FileNotFoundError:
            pass
        return super().batch_get_v1(keys, host_indices, extra_info)
