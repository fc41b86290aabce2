"""The functions of sgl_kernel.kvcacheio that mem_cache/pool_host/mha.py calls, by torch. A device pool has a K and a V tensor a layer,
[slot, head, dim]. A host pool is K and V, each [page, layer, token, head, dim] (page_first_direct), [slot, layer, head, dim]
(page_first), or [slot, head, dim] a layer (layer_first)."""

import ctypes

import torch

__all__ = ["transfer_kv_direct", "transfer_kv_all_layer_direct_lf_pf", "transfer_kv_per_layer_direct_pf_lf", "transfer_kv_all_layer_lf_pf",
           "transfer_kv_per_layer_pf_lf"]


def _pages(slots, page_size):
    return slots.view(-1, page_size)[:, 0] // page_size


def transfer_kv_direct(src_layers, dst_layers, src_indices, dst_indices, page_size):
    for source, to in zip(src_layers, dst_layers):
        to[dst_indices] = source[src_indices]


def transfer_kv_all_layer_direct_lf_pf(src_ptrs, dst_ptrs, src_indices, dst_indices, page_size):
    """Backup, page_first_direct: src_ptrs are all layers' K, then all layers' V."""
    layers, pages = len(src_ptrs) // len(dst_ptrs), _pages(dst_indices, page_size)
    for part, to in enumerate(dst_ptrs):
        for layer in range(layers):
            source = src_ptrs[part * layers + layer]
            to[pages, layer] = source[src_indices].view(-1, page_size, *source.shape[1:])


def transfer_kv_per_layer_direct_pf_lf(src_ptrs, dst_ptrs, src_indices, dst_indices, layer_id, page_size):
    """Load of a layer, page_first_direct."""
    pages = _pages(src_indices, page_size)
    for source, to in zip(src_ptrs, dst_ptrs):
        to[dst_indices] = source[pages, layer_id].reshape(len(dst_indices), *to.shape[1:])


def _slots(address, count, like):
    """The first slots at a raw address, as the tensor [slot, head, dim] that is there."""
    size = count * like.shape[-2] * like.shape[-1] * like.element_size()
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=like.dtype).view(count, *like.shape[-2:])


def transfer_kv_all_layer_lf_pf(src_k_layers, dst_k, src_v_layers, dst_v, src_indices, dst_indices, item_size, dst_layout_dim, num_layers):
    """Backup, page_first: the layers come as addresses."""
    count = int(src_indices.max()) + 1
    for addresses, to in ((src_k_layers, dst_k), (src_v_layers, dst_v)):
        for layer, address in enumerate(addresses.tolist()):
            to[dst_indices, layer] = _slots(address, count, to)[src_indices]


def transfer_kv_per_layer_pf_lf(src_k, dst_k, src_v, dst_v, src_indices, dst_indices, layer_id, item_size, src_layout_dim):
    """Load of a layer, page_first."""
    for source, to in ((src_k, dst_k), (src_v, dst_v)):
        to[dst_indices] = source[src_indices, layer_id].view(len(dst_indices), *to.shape[1:])
