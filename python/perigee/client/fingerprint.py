"""Fingerprints of models and adapters, as docs/cache-identity.md has them."""

import hashlib
import os
import pathlib
import struct

EXTENSIONS = frozenset((".safetensors", ".bin", ".pt", ".pth", ".gguf", ".json", ".model", ".tiktoken", ".txt", ".py", ".jinja", ".vocab", ".merges"))
_FILES, _DEPTH = 10_000, 8  # as the Manager's own bounds


class Changed(Exception):
    """A file changed while it was read: what was read may be a mixture of two models."""


def _walk(root):
    found = []

    def directory(path, rel, ancestors):
        if path.stat().st_ino in ancestors or len(ancestors) > _DEPTH:
            raise ValueError(f"{path}: a directory inside itself, or too deep")
        for entry in path.iterdir():
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                directory(entry, rel + os.fsencode(entry.name) + b"/", ancestors | {path.stat().st_ino})
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
    return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns


def of_path(path):
    """The fingerprint, 32 bytes, of a directory or of a model that is one file. It reads all of it."""
    root = pathlib.Path(path)
    found = _walk(root)
    total = hashlib.sha256(b"perigee/model-files\0\x01" + struct.pack(">I", len(found)))
    for rel, file, _ in found:
        with open(file, "rb") as f:
            digest = hashlib.file_digest(f, "sha256").digest()
        total.update(struct.pack(">H", len(rel)) + rel + digest)
    if _walk(root) != found:
        raise Changed(f"{path}: it changed while it was read")
    return total.digest()


def of_revision(repository, commit):
    """The fingerprint of a hub's model by its name and full commit. It is not that of the same files in a directory."""
    raw = bytes.fromhex(commit)
    if len(raw) != 20:
        raise ValueError("a commit has 40 hexadecimal digits")
    name = repository.encode()
    return hashlib.sha256(b"perigee/model-revision\0\x01" + struct.pack(">H", len(name)) + name + raw).digest()
