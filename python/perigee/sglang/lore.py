"""What SGLang's own calls tell of pages besides their keys: which tokens, behind which page, with which salt and adapter.

A storage backend is given keys and places alone. What it stores could be restored, and nobody could be told of it: a gateway knows prompts
by their tokens. hooks.py therefore notes what the engine hands to its own backup queue, and set takes it from here. A note is
believed only if the key is the hash of it, as SGLang makes keys:

    key = SHA-256(the key before, 32 bytes; or the seed, if a salt or an adapter begins the chain; or nothing ‖ tokens, u32 little endian each)
    seed = SHA-256("sglang-cache-namespace-v1" ‖ part(adapter and extra key) ‖ part(salt)), part = 0, or 1 ‖ u64 length ‖ UTF-8

What no note tells of the Manager may learn from the KV events that the engine publishes for routers, by the same rule: published says where they are.
"""

import array
import collections
import hashlib
import ipaddress
import struct
import sys
import threading
from typing import NamedTuple, Optional

assert array.array("I").itemsize == 4 and sys.byteorder == "little"

# Pages that are noted and not yet stored: the engine's backup queue holds no more than its host pool. Beyond it the oldest are stored without a name.
MOST = 1 << 17


class Space(NamedTuple):
    """What keeps a chain apart from others: SGLang's extra_key (a caller's own, with an adapter's id behind it) and cache_salt."""

    extra: Optional[str] = None
    salt: Optional[str] = None


class Page(NamedTuple):
    """What is known of a page. parent is the key of the page before it, "" if it begins its chain, None if unknown; without tokens the rest is not known."""

    parent: Optional[str] = None
    tokens: tuple = ()
    space: Space = Space()


UNKNOWN = Page()


def seed(space):
    if space == Space():
        return b""
    h = hashlib.sha256(b"sglang-cache-namespace-v1")
    for part in space:
        raw = None if part is None else part.encode("utf-8")
        h.update(b"\0" if raw is None else b"\1" + struct.pack("<Q", len(raw)) + raw)
    return h.digest()


def page_key(before, tokens):
    """The key of a page in hexadecimal; before is the digest that it follows, b"" at the beginning of a plain chain."""
    return hashlib.sha256(before + tokens.tobytes()).hexdigest()


class _Note(NamedTuple):
    keys: list
    tokens: object  # an array of "I"
    before: Optional[str]  # key
    space: Space


class Lore:
    """Written by the engine's scheduler, read by its backup thread."""

    def __init__(self, page_tokens, most=MOST):
        self._page, self._most = page_tokens, most
        self._notes = collections.OrderedDict()  # key: (note, place)
        self._lock = threading.Lock()

    def note(self, keys, tokens, prefix, space):
        """keys of pages that follow each other, their tokens, and the keys before them (None: unknown; empty: they begin a chain)."""
        if len(tokens) < len(keys) * self._page:
            return
        try:
            ids = array.array("I", tokens[:len(keys) * self._page])
        except (OverflowError, TypeError):
            return  # tokens beyond u32 are hashed in another way: nobody can be told of them
        n = _Note(list(keys), ids, None if prefix is None else (prefix[-1] if prefix else ""), space)
        with self._lock:
            for i, key in enumerate(n.keys):
                self._notes[key] = (n, i)
                self._notes.move_to_end(key)
            while len(self._notes) > self._most:
                self._notes.popitem(last=False)

    def take(self, keys):
        """A Page for each key; what was noted of them is forgotten."""
        with self._lock:
            found = [self._notes.pop(k, None) for k in keys]
        return [UNKNOWN if f is None else self._judge(key, *f) for key, f in zip(keys, found)]

    def _judge(self, key, note, i):
        ids = note.tokens[i * self._page:(i + 1) * self._page]
        if i > 0:
            parent = note.keys[i - 1]
        elif note.before is None and page_key(seed(note.space), ids) == key:
            parent = ""  # nothing was said of what is before it; its key says that nothing is
        else:
            parent = note.before
        if parent is None or page_key(bytes.fromhex(parent) if parent else seed(note.space), ids) != key:
            return UNKNOWN
        return Page(parent, ids, note.space)

    def __len__(self):
        with self._lock:
            return len(self._notes)


def published(config):
    """Where a program on the engine's machine reads its KV events: (events, replay or "", topic). config is SGLang's for them, as a dict. None if it publishes none,
    or not where they can be dialled: an engine that connects to its reader is read by that one alone."""
    endpoint = config.get("endpoint", "")
    binds = config.get("bind")
    if binds is None:  # SGLang's own rule
        binds = any(wild in endpoint for wild in ("*", "::", "0.0.0.0"))
    events = _loopback(endpoint)
    if config.get("publisher") != "zmq" or not binds or not events:
        return None
    return events, _loopback(config.get("replay_endpoint") or ""), config.get("topic", "")


def _loopback(endpoint):
    """An endpoint that is bound, as it is dialled from its own machine; "" if it is on no loopback address."""
    scheme, _, rest = endpoint.partition("://")
    host, _, port = rest.rpartition(":")
    host = host.strip("[]")
    host = {"*": "127.0.0.1", "0.0.0.0": "127.0.0.1", "localhost": "127.0.0.1", "::": "::1"}.get(host, host)
    try:
        if scheme != "tcp" or int(port) == 0 or not ipaddress.ip_address(host).is_loopback:
            return ""
    except ValueError:
        return ""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
