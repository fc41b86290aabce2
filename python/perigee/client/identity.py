"""Identities of cached state, as docs/cache-identity.md has them: big endian, canonical.

A namespace is a dict with the page's field names as nested keys; what is left out is its zero. Ranks default to 0 of 1.
"""

import hashlib
import struct

_DIGEST, _TEXT, _U8, _U32, _U64, _FLAG = "digest", "text", "u8", "u32", "u64", "flag"

_SEGMENT = [("layer", _TEXT), ("part", _TEXT), ("dtype", _TEXT), ("shape", [_U32]), ("strides", [_U64]), ("bytes", _U64)]
_GROUP = [("components", _U32), ("rule", _U8), ("window", _U64), ("segments", [_SEGMENT])]
_RANK = [("index", _U32), ("size", _U32)]
_NAMESPACE = [
    ("scope", _TEXT),
    ("engine", [("name", _TEXT), ("version", _TEXT)]),
    ("model", [("content", _DIGEST), ("processor", _DIGEST), ("weight_version", _TEXT), ("quantization", _TEXT), ("overrides", _DIGEST)]),
    ("compute", [
        ("dtype", _TEXT), ("device", _TEXT), ("isa", _TEXT), ("attention", _TEXT), ("prefill", _TEXT), ("decode", _TEXT),
        ("kv_scales", _TEXT), ("speculation", _TEXT), ("options", [[("name", _TEXT), ("value", _TEXT)]]),
    ]),
    ("hash", [("algorithm", _TEXT), ("seed", _TEXT), ("tokens", _U32)]),
    ("shard", [(axis, _RANK) for axis in ("tensor", "pipeline", "decode_context", "prefill_context", "heads")]),
    ("layout", [
        ("order", _TEXT), ("cross_layer", _FLAG), ("kv_dtype", _TEXT), ("format", _TEXT), ("block_tokens", _U32), ("groups", [_GROUP]),
    ]),
]

_NUMBERS = {_U8: ">B", _U32: ">I", _U64: ">Q", _FLAG: ">B"}


def _text(value):
    raw = value.encode("utf-8")
    return struct.pack(">H", len(raw)) + raw


def _encode(kind, value, path):
    if kind == _TEXT:
        return _text(value or "")
    if kind == _DIGEST:
        value = value or bytes(32)
        if len(value) != 32:
            raise ValueError(f"{path}: a digest has 32 bytes")
        return bytes(value)
    if isinstance(kind, str):
        return struct.pack(_NUMBERS[kind], int(value or 0))
    if len(kind) == 1 and not isinstance(kind[0], tuple):  # a list
        items = value or []
        return struct.pack(">H", len(items)) + b"".join(_encode(kind[0], v, f"{path}[{i}]") for i, v in enumerate(items))
    value = dict(value or {})
    out = []
    for name, sub in kind:
        here = f"{path}.{name}" if path else name
        given = value.pop(name, None)
        if sub is _RANK and given is None:
            given = {"index": 0, "size": 1}
        out.append(_encode(sub, given, here))
    if value:
        raise ValueError(f"{path or 'namespace'}: no field is called {sorted(value)[0]!r}")
    return b"".join(out)


def encode_namespace(namespace):
    """The canonical form of one rank's namespace. The Manager checks it; this function checks names and widths only."""
    return b"perigee/namespace\0\x01" + _encode(_NAMESPACE, namespace, "")


def namespace_id(encoded):
    """The id of a namespace in canonical form."""
    return hashlib.sha256(encoded).digest()


def instance_id(encoded):
    """The id of an instance: its ranks' namespaces in canonical form, in the order of the page."""
    ids = b"".join(namespace_id(e) for e in encoded)
    return hashlib.sha256(b"perigee/instance\0\x01" + struct.pack(">H", len(encoded)) + ids).digest()


def request_id(lora=None, salt="", extra_key="", media=None, embeds=None):
    """What a request adds to the identity of its pages: 16 bytes, all zero if it adds nothing."""
    if not (lora or salt or extra_key or media or embeds):
        return bytes(16)
    raw = b"perigee/request\0\x01" + _encode(_DIGEST, lora, "lora") + _text(salt) + _text(extra_key)
    raw += _encode(_DIGEST, media, "media") + _encode(_DIGEST, embeds, "embeds")
    return hashlib.sha256(raw).digest()[:16]


def block_name(engine_hash, request=bytes(16)):
    """The name of a block: 32 bytes, from the engine's hash (1 to 32 bytes) and the request's id."""
    if not 1 <= len(engine_hash) <= 32:
        raise ValueError("an engine's hash has 1 to 32 bytes")
    if not any(request):
        return bytes(engine_hash).ljust(32, b"\0")
    return hashlib.sha256(b"perigee/block\0\x01" + bytes(request) + bytes([len(engine_hash)]) + bytes(engine_hash)).digest()


def page_bytes(namespace, group):
    """How long a page of the group is."""
    return sum(s["bytes"] for s in namespace["layout"]["groups"][group]["segments"])
