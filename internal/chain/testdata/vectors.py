"""Prints vectors_test.go: names of blocks by an implementation that shares nothing with ours (pip install xxhash)."""
import struct
import xxhash


def h(b):
    d = xxhash.xxh3_128(b)
    n = d.intdigest()
    return struct.pack("<QQ", n & (2**64 - 1), n >> 64)


def text(s):
    b = s.encode()
    return struct.pack("<I", len(b)) + b


def root(model, block, lora="", salt=""):
    return h(b"perigee.chain.v1\0" + struct.pack("<I", block) + text(model) + text(lora) + text(salt))


tokens = [(i * 7919 + 13) % 152064 for i in range(300)]
print("package chain\n\n// vectors are printed by testdata/vectors.py.\nvar vectors = map[string][]string{")
for name, model, block, lora, salt in [
    ("16", "m", 16, "", ""), ("128", "m", 128, "", ""), ("256", "m", 256, "", ""),
    ("lora", "m", 128, "a", ""), ("salt", "m", 128, "", "a"), ("model", "mä", 128, "", ""),
]:
    k = root(model, block, lora, salt)
    out = [k]
    for i in range(len(tokens) // block):
        k = h(k + struct.pack(f"<{block}I", *tokens[i * block : (i + 1) * block]))
        out.append(k)
    print(f'\t"{name}": {{' + ", ".join(f'"{x.hex()}"' for x in out[:3]) + "},")
print("}")
