"""Page-sized slots of memory that can be shared with the Manager: where pages stay between it and the device."""

import mmap
import ctypes
import os
import threading

from .pools import Places

_POPULATE = getattr(mmap, "MADV_POPULATE_WRITE", 23)


class Staging:
    """count slots of size bytes. A slot belongs to whoever has taken it, until it is given back. Threads may call at once."""

    def __init__(self, count, size):
        self.count, self.size = count, size
        self.fd = os.memfd_create("perigee-staging", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, count * size)
        self._map = mmap.mmap(self.fd, count * size)
        self._map.madvise(_POPULATE)  # the Manager takes no memory that is not there
        self._map.madvise(getattr(mmap, "MADV_DONTFORK", 10))
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._free = list(range(count - 1, -1, -1))
        self._lock = threading.Lock()

    def take(self, n):
        """n slots, or None if there are not as many."""
        with self._lock:
            if len(self._free) < n:
                return None
            return [self._free.pop() for _ in range(n)]

    def give(self, slots):
        with self._lock:
            self._free.extend(slots)

    @property
    def free(self):
        with self._lock:
            return len(self._free)

    def places(self, slots):
        """Where they lie: a run each."""
        return Places([self.base + s * self.size for s in slots], [self.size])

    def region(self):
        return self.base, self.count * self.size, self.fd

    def view(self, slot):
        at = slot * self.size
        return memoryview(self._map)[at:at + self.size]
