"""Pages in an engine's memory: a page is one block's bytes of all layers, behind each other, as they lie there.

What the bytes mean is the engine's business: on a CPU their order within a block depends on the processor's vector instructions. They are moved by
whole blocks only, and whatever decides them is in the namespace.
"""

import numpy as np
import torch

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Pages:
    """tensors are vLLM's, by layer: the first axis counts blocks. Layers that share memory are one segment."""

    def __init__(self, tensors, blocks):
        self.segments, self._views = [], []
        seen, at = set(), 0
        for name, t in tensors.items():
            if t.data_ptr() in seen:
                continue
            seen.add(t.data_ptr())
            if t.device.type != "cpu":
                raise ValueError(f"{name} is on {t.device}: only a routine that copies on CPUs is built")
            if t.dim() < 2 or t.shape[0] != blocks:
                raise ValueError(f"{name} has the shape {tuple(t.shape)}, and not {blocks} blocks on its first axis")
            if 0 in t.stride()[1:]:
                raise ValueError(f"{name}: an axis without a stride")
            # In the order of addresses, so that copying is one run of bytes wherever the engine's own block is.
            order = [0] + sorted(range(1, t.dim()), key=lambda i: -t.stride(i))
            view = t.view(_INTEGERS[t.element_size()]).permute(order).numpy()
            size = view[0].nbytes
            dense, strides = t.element_size(), {}
            for i in reversed(order[1:]):
                strides[i] = dense
                dense *= t.shape[i]
            self.segments.append({
                "layer": name, "part": "kv", "dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape[1:]),
                "strides": [strides[i] for i in range(1, t.dim())], "bytes": size,
            })
            self._views.append((view, at, at + size, view.dtype, view.shape[1:]))
            at += size
        self.bytes = at

    def read(self, block, page):
        """Copies a block into a page: a writable buffer of self.bytes."""
        for view, a, b, dtype, shape in self._views:
            np.copyto(np.frombuffer(page[a:b], dtype).reshape(shape), view[block])

    def write(self, block, page):
        """Copies a page into a block."""
        for view, a, b, dtype, shape in self._views:
            np.copyto(view[block], np.frombuffer(page[a:b], dtype).reshape(shape))
