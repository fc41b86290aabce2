"""Fingerprints of models and adapters, as docs/cache-identity.md has them."""

import hashlib
import json
import os
import pathlib
import stat
import struct
import tempfile
import time

EXTENSIONS = frozenset((".safetensors", ".bin", ".pt", ".pth", ".gguf", ".json", ".model", ".tiktoken", ".txt", ".py", ".jinja", ".vocab", ".merges"))
_FILES, _DEPTH = 10_000, 8  # as the Manager's own bounds


class Changed(Exception):
    """A file changed while it was read, so that what was read may be a mixture of two models; or it is younger than whoever has loaded it, and nobody knows what that was. Asking
    again makes neither better: what is there now says nothing of what an engine has loaded."""


# A file that was changed less than this before it was read may be changed again within one tick of its times (docs/cache-identity.md).
YOUNG_NS = 2_000_000_000


class Known:
    """Digests of files that were read before, by what the file system says of each (device, inode, size, mtime, ctime), kept in a file of this user's: hashing 140 GB takes
    a minute or more at each start. Whoever can write the file could say what a model is, so one that others may write, or own, is not used; one that cannot be
    read or is none is begun anew. Programs may share it: each adds what it has learnt, and the last one wins."""

    VERSION = 1
    # Files that are remembered, the latest read: some models. One takes some 150 bytes.
    MOST = 20_000
    _BYTES = 8 << 20

    def __init__(self, path, clock=time.time_ns):
        self.path, self.clock, self._new = path, clock, {}
        self._found = self._load()

    def get(self, ident):
        return self._found.get(ident)

    def put(self, ident, digest):
        self._new[ident] = digest

    def _load(self):
        try:
            with open(self.path, "rb") as f:
                s = os.fstat(f.fileno())
                if not stat.S_ISREG(s.st_mode) or s.st_uid != os.geteuid() or s.st_mode & 0o022 or s.st_size > self._BYTES:
                    return {}
                page = json.loads(f.read(self._BYTES + 1))
            if page["version"] != self.VERSION:
                return {}
            return {tuple(int(n) for n in ident): self._digest(digest) for *ident, digest in page["files"]}
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return {}

    @staticmethod
    def _digest(text):
        raw = bytes.fromhex(text)
        if len(raw) != 32:
            raise ValueError("no digest")
        return raw

    def save(self):
        """Adds what was learnt to the file. That it cannot be written costs time at the next start, no more."""
        if not self._new:
            return
        files = {k: v for k, v in self._load().items() if k not in self._new} | self._new
        page = {"version": self.VERSION, "files": [[*k, v.hex()] for k, v in list(files.items())[-self.MOST:]]}
        try:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
            fd, name = tempfile.mkstemp(dir=os.path.dirname(self.path), prefix=".fingerprints-")  # of mode 0600
            try:
                with open(fd, "w") as f:
                    json.dump(page, f)
                os.replace(name, self.path)
            except BaseException:
                os.unlink(name)
                raise
        except OSError:
            return
        self._found, self._new = files, {}


def known(extra):
    """The file that a configuration names as "fingerprints", or the user's own; "" is none."""
    path = extra.get("fingerprints")
    if path is None:
        path = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "perigee", "fingerprints.json")
    return Known(path) if path else None


def _walk(root):
    found = []

    def directory(path, rel, ancestors):
        s = path.stat()
        here = s.st_dev, s.st_ino
        if here in ancestors or len(ancestors) > _DEPTH:
            raise ValueError(f"{path}: a directory inside itself, or too deep")
        for entry in path.iterdir():
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                directory(entry, rel + os.fsencode(entry.name) + b"/", ancestors | {here})
            elif entry.suffix in EXTENSIONS:
                found.append((rel + os.fsencode(entry.name), entry, _identity(entry)))

    if root.is_dir():
        directory(root, b"", frozenset())
    else:
        found.append((os.fsencode(root.name), root, _identity(root)))
    if not 0 < len(found) <= _FILES:
        raise ValueError(f"{root}: {len(found)} files that could be a model's")
    return sorted(found)


def _identity(path):
    s = path.stat()
    if not stat.S_ISREG(s.st_mode):  # a pipe would be waited for, and a device read for ever
        raise ValueError(f"{path} is no regular file")
    return _as_known(s)


def _as_known(s):
    return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns


def of_path(path, known=None):
    """The fingerprint, 32 bytes, of a directory or of a model that is one file. It reads all of it, but for files that are known."""
    root = pathlib.Path(path)
    found = _walk(root)
    total = hashlib.sha256(b"perigee/model-files\0\x01" + struct.pack(">I", len(found)))
    for rel, file, ident in found:
        digest = known.get(ident) if known is not None else None
        if digest is None:
            digest = _read(file, ident, known)
        total.update(struct.pack(">H", len(rel)) + rel + digest)
    if _walk(root) != found:
        raise Changed(f"{path}: it changed while it was read")
    if known is not None:
        known.save()
    return total.digest()


def of_loaded(path, began, known=None):
    """of_path, for files that a process has loaded which began then, in seconds of time.time(): if any of them is younger, or a link or a directory on the way to it,
    they may be others than those that were loaded, and Changed is raised."""
    _older(path, began)
    digest = of_path(path, known)
    _older(path, began)  # also what was put in the place of a directory meanwhile
    return digest


def began():
    """When this process began, in seconds of time.time(). An engine's process loads its model later, and so do those that it starts."""
    with open("/proc/self/stat") as f:
        ticks = int(f.read().rpartition(")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def _older(path, began):
    for p, s in _ways(pathlib.Path(path)):
        if s.st_ctime_ns > began * 1e9 - YOUNG_NS:
            raise Changed(f"{p} is younger than this process, which may have loaded what was there before")


def _ways(root):
    """All that decides which files are found: each with what the file system says of it."""
    way, seen = [root.absolute()], set()
    while way:
        p = way.pop()
        for q in (p, *p.parents):
            if q.is_symlink() and q not in seen:
                seen.add(q)
                yield q, q.lstat()
                way.append(q.parent / os.readlink(q))
    yield root, root.stat()
    for rel, file, _ in _walk(root) if root.is_dir() else ():
        for p in (file, *list(file.parents)[:rel.count(b"/")]):
            yield p, p.stat()
            if p.is_symlink():
                yield p, p.lstat()


def _read(file, ident, known):
    began = known.clock() if known is not None else 0
    with open(file, "rb") as f:
        if _as_known(os.fstat(f.fileno())) != ident:
            raise Changed(f"{file}: it changed while it was read")
        digest = hashlib.file_digest(f, "sha256").digest()
        same = _as_known(os.fstat(f.fileno())) == ident
    if known is not None and same and ident[4] < began - YOUNG_NS:
        known.put(ident, digest)
    return digest


def of_revision(repository, commit):
    """The fingerprint of a hub's model by its name and full commit. It is not that of the same files in a directory."""
    raw = bytes.fromhex(commit)
    if len(raw) != 20:
        raise ValueError("a commit has 40 hexadecimal digits")
    name = repository.encode()
    return hashlib.sha256(b"perigee/model-revision\0\x01" + struct.pack(">H", len(name)) + name + raw).digest()
