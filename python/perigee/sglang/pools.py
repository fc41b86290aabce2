"""The engine's host memory, as pages. A page of a host pool is a few runs of bytes (K and V, or one for each layer); what is kept of it is
those runs one behind the other. What they mean is the engine's business."""

import ctypes
import struct

from .. import client


class Pool:
    """One of the engine's host pools. host_pool is SGLang's, or anything with its page_size, get_page_buffer_meta and layout; first is the slots of its
    page 0, in the engine's own kind of list. group is the number of its pages' group in the namespace."""

    def __init__(self, name, group, host_pool, first):
        self.name, self.group, self.host = name, group, host_pool
        self.slots = getattr(host_pool, "logical_page_size", host_pool.page_size)  # of a page, as the engine counts them in its indices
        _, sizes = host_pool.get_page_buffer_meta(first)
        self.sizes = [int(n) for n in sizes]
        self.bytes = sum(self.sizes)
        if not self.sizes or min(self.sizes) <= 0:
            raise ValueError(f"the pool {name} has no bytes")

    def places(self, slots, count):
        """For each of count pages their runs [(address, bytes)]. It raises ValueError unless slots are those of that many pages."""
        if slots is None or len(slots) != count * self.slots:
            raise ValueError(f"the pool {self.name}: {0 if slots is None else len(slots)} slots for {count} pages of {self.slots}")
        if count == 0:
            return []
        addresses, sizes = self.host.get_page_buffer_meta(slots)
        n = len(self.sizes)
        if len(addresses) != count * n or list(sizes[:n]) != self.sizes:
            raise ValueError(f"the pool {self.name} has changed its pages")
        return [list(zip(addresses[i * n:(i + 1) * n], self.sizes)) for i in range(count)]


def memory(address, size):
    """A writable view of raw memory. Whoever uses it sees to it that the memory stays."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def read(runs, page):
    """Copies a page's runs into a buffer as long as all of them."""
    at = 0
    for address, size in runs:
        page[at:at + size] = memory(address, size)
        at += size


def write(runs, page):
    """Copies a buffer into a page's runs."""
    at = 0
    for address, size in runs:
        memory(address, size)[:] = page[at:at + size]
        at += size


class Shared:
    """Memory of the engine's that the Manager is given to copy from and to. regions are (address, bytes, descriptor); a region's number is its place."""

    _PIECE = struct.Struct("<IQI")

    def __init__(self, regions):
        self.regions = list(regions)

    def covers(self, places):
        return all(self._number(a, n) is not None for runs in places for a, n in runs)

    def _number(self, address, size):
        for i, (base, length, _) in enumerate(self.regions):
            if base <= address and address + size <= base + length:
                return i
        return None

    def pages(self, places):
        """The places as the client wants them. All of them must be covered."""
        out = bytearray()
        for runs in places:
            for address, size in runs:
                i = self._number(address, size)
                out += self._PIECE.pack(i, address - self.regions[i][0], size)
        return client.Pages([len(runs) for runs in places], bytes(out))

    def offer(self, session):
        for i, (_, length, fd) in enumerate(self.regions):
            session.offer_pool(fd, length, i)


def regions(host_pool):
    """Where a pool of SGLang's lies if its allocator is "shm": [(address, bytes, descriptor)]; nothing if it is not."""
    allocator = getattr(host_pool, "allocator", None)
    maps, fds = getattr(allocator, "mms", None) or [], getattr(allocator, "fds", None) or []
    return [(ctypes.addressof(ctypes.c_char.from_buffer(m)), len(m), fd) for m, fd in zip(maps, fds)]
