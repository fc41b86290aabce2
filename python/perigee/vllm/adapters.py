"""Fingerprints of LoRA adapters: which weights an engine really computes with. It imports nothing of vLLM."""

import os
import pathlib
import threading
import time

from ..client import fingerprint

# Adapters that are known in the life of a process. An engine serves some dozens; beyond it they are left alone, since one that was forgotten
# could come back with other weights.
MOST = 1024

# A file this much younger than the clock may have been written again within one tick of its timestamps (docs/cache-identity.md).
YOUNG_S = 2.0


def stamp(path):
    """What changes when an adapter does: its files, and where links lead on the way to it. None: it cannot be read."""
    try:
        root, way = pathlib.Path(path).absolute(), []
        for p in (root, *root.parents):
            if p.is_symlink() or p == root:
                way.append(_of(os.lstat(p), str(p)))
        return tuple(way) + tuple(_of(p.stat(), str(p)) for p in sorted([root, *root.rglob("*")]))
    except OSError:
        return None


def _of(s, name):
    return name, s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns


def _youngest(stamp):
    return max(ctime for *_, ctime in stamp) / 1e9


class _Adapter:
    __slots__ = ("ident", "path", "stamp", "digest", "read")

    def __init__(self, lora):
        self.ident, self.path, self.stamp, self.digest, self.read = lora.lora_int_id, lora.lora_path, None, None, False


class Adapters:
    """The digest of a request's adapter, or that it is to be left alone; a call never waits: files are read in a thread.

    vLLM reads an adapter's files when it first needs it, keeps the weights by its number (lora_int_id), reads the files again if it had to drop them, and names the
    blocks of its own prefix cache by the adapter's name alone. So a digest is of use only where files, number and name have belonged together for as long as the engine runs. What is not so is left
    alone until the engine ends: files that are younger than the engine, unless immutable says that nobody ever writes to a path
    again; files that have changed; a name or a number that was another adapter's; and what vLLM is to load in place."""

    def __init__(self, log, immutable=False, clock=time.time):
        self._log, self._immutable, self._began = log, immutable, clock()  # no adapter is loaded before: the scheduler is made earlier
        self._names, self._owner, self._lock = {}, {}, threading.Lock()

    def __call__(self, lora):
        """(digest, stamp); None as long as the files are being read; a digest of None if the request is to be left alone. A stamp that is no longer that of the path says that
        the weights may be others."""
        a, first = self._entry(lora)
        if first:
            threading.Thread(target=self._read, args=(a, lora.lora_name), name="perigee-adapter", daemon=True).start()
        if a is not None and not a.read:
            return None
        if a is not None and a.digest is not None and stamp(a.path) != a.stamp:
            self._leave(a, lora.lora_name, "its files have changed since the engine began to use it")
        digest = None if a is None else a.digest
        return (None, None) if digest is None else (digest, a.stamp)

    def _entry(self, lora):
        """The adapter, and whether it is new; None if the request is to be left alone."""
        name, same = lora.lora_name, (lora.lora_int_id, lora.lora_path)
        with self._lock:
            a, first = self._names.get(name), False
            if a is None:
                if len(self._names) >= MOST:
                    return None, False
                a = self._names[name] = _Adapter(lora)
                first = True
                self._owner.setdefault(a.ident, name)
            owner = self._owner.get(same[0], name)
        if owner != name or (a.ident, a.path) != same:
            for n in {owner, name}:  # whichever is loaded, the other's requests may be computed with it
                self._leave(self._names[n], n, "its name or its number is another adapter's too")
        elif getattr(lora, "load_inplace", False) or getattr(lora, "is_3d_lora_weight", False):
            self._leave(a, name, "how it is loaded is not qualified")
        else:
            return a, first
        return None, False

    def _leave(self, a, name, why):
        with self._lock:
            told, a.read, a.digest = a.read and a.digest is None, True, None
        if not told:
            self._log.warning("Perigee: requests with the adapter %s are left alone until the engine is started again: %s", name, why)

    def _read(self, a, name):
        before = stamp(a.path)
        try:
            if before is None:
                raise ValueError(f"{a.path} cannot be read")
            if not self._immutable and _youngest(before) > self._began - YOUNG_S:
                raise ValueError(f"{a.path} is younger than the engine, which may have loaded what was there before (adapters_immutable says that nobody writes there)")
            digest = fingerprint.of_path(a.path)
            if stamp(a.path) != before:
                raise ValueError(f"{a.path} changed while it was read")
        except Exception as e:
            self._leave(a, name, e)
            return
        with self._lock:
            if not a.read:  # else it was left alone meanwhile
                a.stamp, a.digest, a.read = before, digest, True
