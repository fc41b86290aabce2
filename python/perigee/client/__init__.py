"""A client of the Cache Manager's channel, in the standard library alone.

It speaks version 1 of docs/cache-channel.md. A Session belongs to one thread, or to callers that hold a lock of their own: each of its two
connections (queries and restores; publishes) is asked and answered in turn, so that a stuck publish never holds a restore that
another Session object of the process waits for.

    with Session("/run/perigee/cache.sock", "engine-0", [namespace]) as s:
        s.publish([Block(name=b"...", parent=NO_BLOCK, tokens=[...])], lambda i, slot: slot.__setitem__(slice(None), page))
        answer = s.query([(0, names)])
        if answer.lease:
            s.restore(answer.lease, 0, lambda i, page: destination[i].copy_(page))

When the Manager is lost every call raises Lost: compute, and make another Session.
"""

from .identity import block_name, encode_namespace, instance_id, namespace_id, page_bytes, request_id
from .session import (
    BUSY, CANDIDATES, DISCOVER, EXACT, LOADING, NO_BLOCK, PREFIX, READY, WARM,
    Answer, Block, Credentials, Lease, Lost, PerigeeError, Published, Refused, Session, Spoiled,
)

__all__ = [
    "BUSY", "CANDIDATES", "DISCOVER", "EXACT", "LOADING", "NO_BLOCK", "PREFIX", "READY", "WARM",
    "Answer", "Block", "Credentials", "Lease", "Lost", "PerigeeError", "Published", "Refused", "Session", "Spoiled",
    "block_name", "encode_namespace", "instance_id", "namespace_id", "page_bytes", "request_id",
]
