"""A libzmq socket for interop_test.go: peer.py ROLE ENDPOINT. Prints the endpoint when it is ready."""
import os
import struct
import sys

import zmq

role, endpoint = sys.argv[1:]
kind, _, how = role.partition("-")
z = zmq.Context().socket({"pub": zmq.XPUB, "sub": zmq.SUB, "router": zmq.ROUTER, "dealer": zmq.DEALER, "req": zmq.REQ}[kind])
z.setsockopt(zmq.LINGER, 0)
z.setsockopt(zmq.SNDHWM, 0)  # with the default of 1000 a ROUTER, too, drops answers without a word
if kind == "sub":
    z.subscribe(b"kv")
    z.setsockopt(zmq.HEARTBEAT_IVL, 50)
    z.setsockopt(zmq.HEARTBEAT_TIMEOUT, 5000)
if how == "bind":
    z.bind(endpoint)
    endpoint = z.getsockopt_string(zmq.LAST_ENDPOINT)
else:
    z.connect(endpoint)
print(endpoint, os.getpid(), flush=True)

if kind == "pub":
    while z.recv() != b"\x01kv":  # subscriptions
        pass
    z.send_multipart([b"other", b"x"])
    for seq in range(1000):
        z.send_multipart([b"kv@a", struct.pack(">Q", seq), b"x" * (seq * seq)])
    z.send_multipart([b"kv@a", b"\xff" * 8, b""])
    while True:
        z.recv()
elif kind == "sub":
    n = size = 0
    while True:
        topic, seq, payload = z.recv_multipart()
        if seq == b"\xff" * 8:
            break
        n, size = n + 1, size + len(payload)
    print(n, size, flush=True)
elif kind == "router":  # as vLLM answers a replay
    while True:
        peer, empty, start = z.recv_multipart()
        for seq in range(struct.unpack(">Q", start)[0], 1000):
            z.send_multipart([peer, b"", b"kv@a", struct.pack(">Q", seq), b"x" * 300])
        z.send_multipart([peer, b"", b"", b"\xff" * 8, b""])
else:
    z.send_multipart(([b""] if kind == "dealer" else []) + [struct.pack(">Q", 7)])
    n = 0
    while True:
        parts = z.recv_multipart()
        if kind == "req" or parts[-2] == b"\xff" * 8:
            break
        n += 1
    print(n, len(parts), flush=True)
sys.stdin.read()  # until the test is done
