"""A client of the Cache Manager's channel, in the standard library alone.

It speaks version 1 of docs/cache-channel.md. A Session belongs to one thread, or to callers that hold a lock of their own: each of its two
connections (queries and restores; publishes) is asked and answered in turn, so that a stuck publish never holds a restore that
another Session object of the process waits for.

    with Session("/run/perigee/cache.sock", "engine-0", [namespace]) as s:
        s.publish([Block(name=b"...", parent=NO_BLOCK, tokens=[...])], lambda i, slot: slot.__setitem__(slice(None), page))
        answer = s.query([(0, names)])
        if answer.lease:
            s.restore(answer.lease, 0, lambda i, page: destination[i].copy_(page))

An engine whose host memory is a memfd hands it over and has the Manager copy:

    s.offer_pool(memfd)
    s.publish_from(blocks, [[(0, k_offset, half), (0, v_offset, half)], ...])
    good = s.restore_into(answer.lease, 0, [[(0, k_offset, half), (0, v_offset, half)], ...]).good
    good = s.fetch(0, names, [[(0, k_offset, half), (0, v_offset, half)], ...]).good  # the query and the restore in one

When the Manager is lost every call raises Lost: compute, and make another Session.
"""

from .identity import block_name, encode_namespace, instance_id, namespace_id, page_bytes, request_id
from .session import (
    BUSY, CANDIDATES, DISCOVER, EXACT, LOADING, NO_BLOCK, PREFIX, READY, WARM,
    Answer, Block, Credentials, Fetched, Lease, Lines, Lost, Pages, PerigeeError, Published, Refused, RestoredInto, Session, Spoiled, Unfinished, pack_lines,
)
from .wire import MAX_ADAPTERS

__all__ = [
    "BUSY", "CANDIDATES", "DISCOVER", "EXACT", "LOADING", "MAX_ADAPTERS", "NO_BLOCK", "PREFIX", "READY", "WARM",
    "Answer", "Block", "Credentials", "Fetched", "Lease", "Lines", "Lost", "Pages", "PerigeeError", "Published", "Refused", "RestoredInto", "Session", "Spoiled", "Unfinished",
    "block_name", "encode_namespace", "instance_id", "namespace_id", "pack_lines", "page_bytes", "request_id",
]
