"""What the scheduler's half tells the workers' with each step. All of it is pickled."""

from dataclasses import dataclass, field
from typing import Optional

from ..client import Credentials, Lease


@dataclass
class Load:
    """Restores a lease into blocks, in the order of its pages; -1 skips a page that the engine has."""

    request: str
    session: Credentials
    lease: Lease
    blocks: list


@dataclass
class Save:
    """Blocks of a request that are complete after the step: names, tokens (u32 in native order, all blocks' behind each other) and places."""

    request: str
    names: list
    parent: bytes
    tokens: bytes
    blocks: list
    lora: str = ""
    salt: str = ""
    adapter: Optional[tuple] = None  # its files' path, and the stamp that they must still have: else the weights may be others


@dataclass
class Step:
    session: Optional[Credentials] = None  # None: there is no Manager now
    loads: list = field(default_factory=list)
    saves: list = field(default_factory=list)
    finished: list = field(default_factory=list)  # requests that will not be heard of again
    weights: int = 0  # how often the caches were reset before, as other weights want it
    fresh: bool = False  # nothing was computed since the last reset, up to this step


@dataclass
class Facts:
    """What a rank knows of itself: its namespace, less what the scheduler's half adds (the model's content, the hash's seed)."""

    namespace: dict
