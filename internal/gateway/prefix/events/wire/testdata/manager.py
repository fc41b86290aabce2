#!/usr/bin/env python3
"""Prints testdata/manager.hex: the batch of TestManagerGolden as Python's msgpack (1.2) writes it. pip install msgpack"""
import struct

import msgpack

NS = bytes(range(32))
URL = "http://10.0.0.7:8000"


def name(n):
    return struct.pack("<QQ", n, n << 32)


batch = [
    1700000000.25,
    [
        {"type": "Attached", "engine": URL, "rank": None, "namespace": NS, "instance": 1 << 63},
        {"type": "Attached", "engine": URL, "rank": 3, "namespace": NS, "instance": 7, "mediums": ["CPU"]},
        {"type": "BlockStored", "namespace": NS, "model": "meta-llama/Llama-3.3-70B-Instruct", "block_size": 16,
         "chain": [name(1), name(2)], "parent_chain": None, "block_hashes": [bytes(range(1, 9)), bytes(32)], "medium": "CPU"},
        {"type": "BlockStored", "namespace": NS, "model": "m", "block_size": 128, "chain": [name(3)], "parent_chain": name(2), "medium": "DISK"},
        {"type": "BlockRemoved", "namespace": NS, "chain": [name(1)], "medium": "EXTERNAL"},
        {"type": "BlockRemoved", "namespace": NS, "chain": [name(2)]},
        {"type": "Cost", "engine": URL, "instance": 7, "medium": "CPU", "fixed_seconds": 0.0005, "seconds_per_token": 1e-6,
         "samples": 300, "error_share": 0.25, "age_seconds": 0.5},
        {"type": "Detached", "engine": URL, "instance": 7},
        {"type": "AllBlocksCleared", "namespace": NS},
        {"type": "AllBlocksCleared"},
    ],
    None,
    {"epoch": 0xFEEDFACECAFEBEEF, "manager": "host-7"},
]
text = msgpack.packb(batch).hex()
for i in range(0, len(text), 120):
    print(text[i:i + 120])
