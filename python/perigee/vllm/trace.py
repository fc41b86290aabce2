"""When what happened to a request: a ring of fixed records in a file that is mapped, one for each process. Off unless kv_connector_extra_config names a folder.

Writing is a copy into memory, so that nothing waits for a disk, and what was written is there though the process was killed. The oldest records are
overwritten. All times are CLOCK_MONOTONIC in nanoseconds, which processes of one host share.

The file, little endian: 8 bytes "PRGTRC01", u32 records, u32 bytes of a record, 48 zeros; then the records: u64 number from 1 (0: never written), u64 ns, i64 value,
u8 event (its place in EVENTS), u8 bytes of the request's id, 70 of the id, cut.
"""

import os
import struct
import threading
import time

EVENTS = (
    "enqueue",          # the scheduler was told of the request
    "read_start",       # the Manager was asked; value: blocks
    "host_ready",       # its answer with a lease: the pages are in the host's memory and stay there; value: blocks
    "nothing",          # it is computed: the answer, or that there was none; value: a place in WHY
    "restore_submit",   # the load goes to the ranks with a step; value: blocks
    "restore_start",    # a rank began with it
    "engine_ready",     # all of its pages are in the engine's blocks; value: pages
    "restore_failed",   # it is computed after all; value: pages
    "first_use",        # the first step that computes something of the request
    "saved",            # blocks that the Manager has now; value: blocks that were written
    "save_dropped",     # value: blocks
    "silent",           # the Manager does not answer: nothing is asked from now on
    "answering",        # it does again
    "first_page",       # of a load that has begun: until here it was the Manager's turn, from here on it is the rank's
)
WHY = ("", "missing", "timed out", "no Manager", "too many queries", "silent", "timed_out", "other")  # "timed_out" is the Manager's word
HEAD, RECORD = struct.Struct("<8sII48x"), struct.Struct("<QQqBB70s")
MAGIC = b"PRGTRC01"
# 65,536 records of 96 bytes are 6 MiB: some 9,000 requests of seven events.
RECORDS = 1 << 16


def none(event, request="", value=0):
    """A trace that is off."""


class Ring:
    """ring(event, request, value) writes a record; any thread may. close it once nobody does."""

    def __init__(self, folder, role, records=RECORDS, clock=time.monotonic_ns):
        import mmap
        self.path, self._records, self._clock = os.path.join(folder, f"perigee-trace-{role}-{os.getpid()}.ring"), records, clock
        self._lock, self._number, self._kinds = threading.Lock(), 0, {name: i for i, name in enumerate(EVENTS)}
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.ftruncate(fd, HEAD.size + records * RECORD.size)
            self._map = mmap.mmap(fd, HEAD.size + records * RECORD.size)
        finally:
            os.close(fd)
        HEAD.pack_into(self._map, 0, MAGIC, records, RECORD.size)

    def __call__(self, event, request="", value=0):
        raw = request.encode("utf-8", "replace")[:70]
        with self._lock:  # so that numbers and times rise together
            at = HEAD.size + self._number % self._records * RECORD.size
            self._number += 1
            RECORD.pack_into(self._map, at, self._number, self._clock(), value, self._kinds[event], len(raw), raw)

    def close(self):
        self._map.close()


def make(folder, role):
    """A trace: on, if there is a folder."""
    return Ring(folder, role) if folder else none


def why(text):
    return WHY.index(text) if text in WHY else WHY.index("other")


def read(raw):
    """The records of a file's bytes, oldest first: (number, ns, event, request, value). Raises ValueError if it is no such file. Records that make no sense, as one that is
    being written may, are left out."""
    if len(raw) < HEAD.size:
        raise ValueError("too short")
    magic, records, size = HEAD.unpack_from(raw)
    if magic != MAGIC or size != RECORD.size or len(raw) != HEAD.size + records * size:
        raise ValueError("not a trace of this version")
    out = []
    for i in range(records):
        number, ns, value, kind, n, ident = RECORD.unpack_from(raw, HEAD.size + i * size)
        if number and (number - 1) % records == i and kind < len(EVENTS) and n <= 70:
            out.append((number, ns, EVENTS[kind], ident[:n].decode("utf-8", "replace"), value))
    return sorted(out)
