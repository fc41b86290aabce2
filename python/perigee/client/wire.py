"""The channel's frames: docs/cache-channel.md, little endian."""

import array
import os
import socket
import struct

HEADER = struct.Struct("<IBBHQQII")
MAX_FRAME = 16 << 20

HELLO, REGISTER, ATTACH, PUBLISH, SEAL, ABANDON, QUERY, POLL, CANCEL, START, COPIED, RELEASE, GOODBYE, MAP_ARENAS = range(1, 15)
OFFER_POOL, PUBLISH_PIECES, RESTORE_PIECES, LEAVE = 15, 19, 20, 22
(WELCOME, REGISTERED, ATTACHED, GRANTED, PUBLISHED, BUSY, LOADING, READY, CANDIDATES, PLAN, SPOILED, RESTORED, REFUSED, ARENAS,
 BYE, PONG, CLOSING, OFFERED, COPIED_IN, COPIED_OUT) = range(64, 84)

CLASSES = {
    1: "stale_session", 2: "stale_slot", 3: "stale_lease", 4: "stale_ticket", 5: "retired", 7: "repeated", 8: "invalid", 9: "instance_busy",
    10: "arena_busy", 11: "too_many", 12: "overdue", 13: "overlap", 32: "malformed", 33: "bad_version", 34: "not_allowed", 35: "wrong_role", 36: "unknown",
    37: "no_pool", 38: "pool_too_small", 39: "not_built", 40: "unfenceable", 41: "bad_identity", 42: "bad_demand", 43: "slow", 44: "stopping",
    45: "bad_pool",
}


def text(value):
    raw = value.encode("utf-8")
    return struct.pack("<I", len(raw)) + raw


def u32s(values):
    a = array.array("I", values)
    return struct.pack("<I", len(a)) + a.tobytes()


class Reader:
    """Takes fields from a payload."""

    def __init__(self, payload):
        self.payload, self.at = payload, 0

    def take(self, layout):
        s = struct.Struct("<" + layout)
        v = s.unpack_from(self.payload, self.at)
        self.at += s.size
        return v if len(v) > 1 else v[0]

    def text(self):
        n = self.take("I")
        raw = bytes(self.payload[self.at:self.at + n])
        self.at += n
        return raw.decode("utf-8", "replace")

    def u32s(self):
        n = self.take("I")
        a = array.array("I", bytes(self.payload[self.at:self.at + 4 * n]))
        self.at += 4 * n
        return a.tolist()

    def arenas(self):
        return [self.take("IIIQ") for _ in range(self.take("I"))]


class Frame:
    """One frame from the Manager. Whoever gets it closes its descriptors."""

    __slots__ = ("kind", "ref", "epoch", "session", "payload", "fds")

    def __init__(self, kind, ref, epoch, session, payload, fds):
        self.kind, self.ref, self.epoch, self.session, self.payload, self.fds = kind, ref, epoch, session, payload, fds

    def reader(self):
        return Reader(self.payload)


class Link:
    """One connection. send and receive raise OSError or EOFError when it has ended."""

    def __init__(self, path, timeout):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(timeout)
        self.epoch = self.session = self.ref = 0
        self.buffer = bytearray()
        self.fds = []
        try:
            self.sock.connect(path)
        except OSError:
            self.sock.close()
            raise

    def send(self, kind, payload=b"", ref=None, fd=None):
        """Sends a frame, with a descriptor if one is given, and returns its ref."""
        if ref is None:
            self.ref += 1
            ref = self.ref
        frame = HEADER.pack(len(payload), kind, 0, int(fd is not None), ref, self.epoch, self.session, 0) + payload
        if fd is not None:
            sent = self.sock.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
            frame = frame[sent:]
        self.sock.sendall(frame)
        return ref

    def _more(self, n):
        """Reads until there are n bytes."""
        while len(self.buffer) < n:
            data, ancillary, _, _ = self.sock.recvmsg(max(65536, n - len(self.buffer)), 512)
            for level, kind, raw in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    a = array.array("i")
                    a.frombytes(raw[:len(raw) - len(raw) % a.itemsize])
                    self.fds.extend(a)
            if not data:
                raise EOFError("the Manager has hung up")
            self.buffer += data

    def receive(self):
        """Waits for the next frame."""
        self._more(HEADER.size)
        length, kind, _, nfds, ref, epoch, session, _ = HEADER.unpack_from(self.buffer)
        if length > MAX_FRAME:
            raise EOFError("a frame that is too long")
        self._more(HEADER.size + length)
        payload = bytes(memoryview(self.buffer)[HEADER.size:HEADER.size + length])
        del self.buffer[:HEADER.size + length]
        fds, self.fds = self.fds[:nfds], self.fds[nfds:]
        return Frame(kind, ref, epoch, session, payload, fds)

    def close(self):
        for fd in self.fds:
            os.close(fd)
        self.fds = []
        self.sock.close()
