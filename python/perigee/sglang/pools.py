"""The engine's host memory, as pages. A page of a host pool is a few runs of bytes (K and V, or one for each layer); what is kept of it is
those runs one behind the other. What they mean is the engine's business."""

import ctypes
import itertools
import struct

from .. import client


class Places:
    """Where some pages lie: addresses has len(sizes) for each page, one behind the other. As a sequence it is of pages, each a list of runs
    (address, bytes)."""

    __slots__ = ("addresses", "sizes")

    def __init__(self, addresses, sizes):
        self.addresses, self.sizes = addresses, sizes

    def __len__(self):
        return len(self.addresses) // len(self.sizes)

    def __getitem__(self, i):
        n = len(self.sizes)
        if isinstance(i, slice):
            first, end, step = i.indices(len(self))
            if step != 1:
                raise ValueError("only pages that follow each other")
            return Places(self.addresses[first * n:end * n], self.sizes)
        i = range(len(self))[i]
        return list(zip(self.addresses[i * n:i * n + n], self.sizes))


class Rows(Places):
    """Places of pages at equal distances. at is where they are, as 64-bit numbers one behind the other, and lines has for each run its address at 0, and how far
    on it is at 1. Addresses are worked out for who asks for them."""

    __slots__ = ("lines", "at", "_all")

    def __init__(self, lines, at, sizes):
        self.lines, self.at, self.sizes, self._all = lines, at, sizes, None

    def __len__(self):
        return len(self.at) // 8

    @property
    def addresses(self):
        if self._all is None:
            where = struct.unpack(f"<{len(self)}q", self.at)
            self._all = [0] * (len(where) * len(self.lines))
            for i, (address, step) in enumerate(self.lines):
                self._all[i::len(self.lines)] = [address + step * n for n in where]
        return self._all


def numbers(slots, step):
    """How many slots there are, and every step-th as 64-bit numbers, little endian, one behind the other."""
    some = slots[::step]
    return len(slots), struct.pack(f"<{len(some)}q", *some)


class Pool:
    """One of the engine's host pools. host_pool is SGLang's, or anything with its page_size, get_page_buffer_meta and layout; first is the slots of its
    page 0, in the engine's own kind of list. group is the number of its pages' group in the namespace. two are the slots of its pages 0 and 1 if pages lie at equal
    distances and stay where they are: then the pool is not asked again, which for a page of 16 KiB takes as long as copying it. as_numbers is numbers, or does the
    same for the engine's kind of list."""

    def __init__(self, name, group, host_pool, first, two=None, as_numbers=numbers):
        self.name, self.group, self.host = name, group, host_pool
        self.slots = getattr(host_pool, "logical_page_size", host_pool.page_size)  # of a page, as the engine counts them in its indices
        _, sizes = host_pool.get_page_buffer_meta(first)
        self.sizes = [int(n) for n in sizes]
        self.bytes = sum(self.sizes)
        if not self.sizes or min(self.sizes) <= 0:
            raise ValueError(f"the pool {name} has no bytes")
        self._lines, self._numbers = None, as_numbers
        if two is not None:
            addresses, _ = host_pool.get_page_buffer_meta(two)
            n = len(self.sizes)
            steps = [b - a for a, b in zip(addresses[:n], addresses[n:], strict=True)]
            # In slots, as the engine counts, if pages are whole numbers of them: then nothing has to be divided for each page.
            self._unit = 1 if all(step % self.slots == 0 for step in steps) else self.slots
            self._lines = tuple((a, step * self._unit // self.slots) for a, step in zip(addresses, steps))
            self._begin = bytes(range(0, 256, self.slots)) if 256 % self.slots == 0 else None  # low bytes of slots that begin a page

    def places(self, slots, count):
        """Places of count pages. It raises ValueError unless slots are those of that many pages."""
        if self._lines is not None and slots is not None:
            there, raw = self._numbers(slots, self.slots)  # len of a tensor would take as long
        else:
            there, raw = 0 if slots is None else len(slots), None
        if there != count * self.slots:
            raise ValueError(f"the pool {self.name}: {there} slots for {count} pages of {self.slots}")
        if count == 0:
            return Places([], self.sizes)
        if raw is not None:
            return Rows(self._lines, self._firsts(raw), self.sizes)
        addresses, sizes = self.host.get_page_buffer_meta(slots)
        n = len(self.sizes)
        if len(addresses) != count * n or list(sizes[:n]) != self.sizes:
            raise ValueError(f"the pool {self.name} has changed its pages")
        return Places(addresses, self.sizes)

    def _firsts(self, raw):
        """Where the pages are whose first slots these are."""
        if self._unit == 1 and self._begin is not None:
            if not raw[::8].translate(None, self._begin) and not raw[7::8].strip(b"\0"):
                return raw
        else:
            firsts = struct.unpack(f"<{len(raw) // 8}q", raw)
            if min(firsts) >= 0 and not any(n % self.slots for n in firsts):
                return raw if self._unit == 1 else numbers([n // self.slots for n in firsts], 1)[1]
        raise ValueError(f"the pool {self.name}: slots in the middle of a page")


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
        self._lines = {}  # of Rows, packed; None for those that cannot be said so

    def covers(self, places):
        return all(self._number(a, n) is not None for runs in places for a, n in runs)

    def _number(self, address, size):
        for i, (base, length, _) in enumerate(self.regions):
            if base <= address and address + size <= base + length:
                return i
        return None

    def pages(self, places):
        """The Places as the client wants them. All of them must be covered."""
        addresses, sizes = places.addresses, places.sizes
        if not addresses:
            return client.Pages([], b"")
        number = self._number(low := min(addresses), max(addresses) - low + max(sizes))
        if number is not None:
            numbers, base = itertools.repeat(number), self.regions[number][0]
            offsets = [a - base for a in addresses]
        else:  # in several regions, or up to the very end of one
            numbers = [self._number(a, n) for a, n in zip(addresses, itertools.cycle(sizes))]
            offsets = [a - self.regions[i][0] for a, i in zip(addresses, numbers)]
        return client.Pages([len(sizes)] * len(places), b"".join(map(self._PIECE.pack, numbers, offsets, itertools.cycle(sizes))))

    def lines(self, places):
        """Rows as the client wants them, whose pages are checked by the Manager; None for other Places, or if a line is of no one region."""
        if not isinstance(places, Rows):
            return None
        key = places.lines, tuple(places.sizes)
        if key not in self._lines:
            self._lines[key] = self._pack(places)
        packed = self._lines[key]
        return None if packed is None else client.Lines(packed, places.at)

    def _pack(self, places):
        out = []
        for (at, step), size in zip(places.lines, places.sizes):
            number = self._number(at, size)
            if number is None or not 0 <= step < 1 << 32:
                return None
            out.append((number, at - self.regions[number][0], step, size))
        return client.pack_lines(out)

    def offer(self, session):
        for i, (_, length, fd) in enumerate(self.regions):
            session.offer_pool(fd, length, i)


def regions(host_pool):
    """Where a pool of SGLang's lies if its allocator is "shm": [(address, bytes, descriptor)]; nothing if it is not."""
    allocator = getattr(host_pool, "allocator", None)
    maps, fds = getattr(allocator, "mms", None) or [], getattr(allocator, "fds", None) or []
    return [(ctypes.addressof(ctypes.c_char.from_buffer(m)), len(m), fd) for m, fd in zip(maps, fds)]
