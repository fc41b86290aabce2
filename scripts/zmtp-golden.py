#!/usr/bin/env python3
"""zmtp-golden.py: what a real libzmq sends, as hexadecimal, for internal/zmtp/wire/testdata/libzmq.txt.

Needs pyzmq (pip install pyzmq==27.3.0 brings libzmq 4.3.5). A bare socket speaks just enough of ZMTP to keep each libzmq socket
talking; what that socket sends is printed as the lines of a script, whose answers `go test ./internal/zmtp/wire -update` writes.
"""
import socket
import struct
import sys
import time

import zmq

ctx = zmq.Context()


def greeting(minor):
    return b"\xff" + bytes(8) + b"\x7f\x03" + bytes([minor]) + b"NULL".ljust(20, b"\0") + bytes(32)


def command(name, data=b""):
    body = bytes([len(name)]) + name + data
    return bytes([4, len(body)]) + body


def ready(kind):
    return command(b"READY", b"\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind)


def read(s, seconds=0.4):
    """What comes until nothing has come for so long."""
    out = b""
    s.settimeout(seconds)
    try:
        while chunk := s.recv(65536):
            out += chunk
    except TimeoutError:
        pass
    return out


def talk(kind, peer, minor=1, bind=True, before=lambda z: None, after=lambda z, s: None):
    """Returns what a libzmq socket of the kind sends to a peer that speaks 3.minor."""
    z = ctx.socket(kind)
    z.setsockopt(zmq.LINGER, 0)
    before(z)
    if bind:
        port = z.bind_to_random_port("tcp://127.0.0.1")
        s = socket.create_connection(("127.0.0.1", port))
    else:
        listener = socket.create_server(("127.0.0.1", 0))
        z.connect("tcp://127.0.0.1:%d" % listener.getsockname()[1])
        s, _ = listener.accept()
        listener.close()
    s.sendall(greeting(minor) + ready(peer))
    time.sleep(0.2)
    after(z, s)
    out = read(s)
    s.close()
    z.close()
    return out


def show(what, data):
    print(f"\n# {what}")
    for at in range(0, len(data), 48):
        print("sent", data[at : at + 48].hex())
    print("end\n----")


def published(z, s):
    s.sendall(command(b"SUBSCRIBE", b"kv"))
    s.sendall(command(b"PING", b"\0\0" + b"context"))
    time.sleep(0.2)
    z.send_multipart([b"kv@10.0.0.1:8000@m", struct.pack(">Q", 7), b"\x93\xcb"])
    z.send_multipart([b"other", b"not asked for"])
    z.send_multipart([b"kv", b"", b"x" * 300])


def asked(z, s):
    z.send_multipart([b"", struct.pack(">Q", 7)])


def answered(z, s):
    s.sendall(b"\x01\x00" + b"\x00\x08" + struct.pack(">Q", 7))
    peer, empty, seq = z.recv_multipart()
    for reply in ([b"kv", seq, b"p"], [b"", b"\xff" * 8, b""]):
        z.send_multipart([peer, empty] + reply)


print(f"# What libzmq {zmq.zmq_version()} sends. Written by scripts/zmtp-golden.py; the answers are what is read in it.")
show("a PUB, to a SUB that has subscribed to kv and sent a PING", talk(zmq.PUB, b"SUB", after=published))
topics = lambda z: (z.subscribe(b"kv@"), z.subscribe(b"load"))
cancel = lambda z, s: z.unsubscribe(b"load")
show("a SUB, to a PUB that speaks 3.1", talk(zmq.SUB, b"PUB", bind=False, before=topics, after=cancel))
show("a SUB, to a PUB that speaks 3.0", talk(zmq.SUB, b"PUB", minor=0, bind=False, before=topics, after=cancel))
show("a SUB with ZMQ_HEARTBEAT_IVL, to a PUB that listens", talk(
    zmq.SUB, b"PUB", before=lambda z: (z.setsockopt(zmq.HEARTBEAT_IVL, 300), z.setsockopt(zmq.HEARTBEAT_TTL, 2000))))
show("a DEALER with an identity, that asks for a replay", talk(
    zmq.DEALER, b"ROUTER", bind=False, before=lambda z: z.setsockopt(zmq.IDENTITY, b"gw-1"), after=asked))
show("a ROUTER, that answers one", talk(zmq.ROUTER, b"DEALER", after=answered))
sys.stdout.flush()
ctx.destroy(0)
