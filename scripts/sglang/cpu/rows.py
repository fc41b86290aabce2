"""Attention of the new tokens alone. SGLang's torch_native backend computes that of every token of a prompt, also of those whose keys and values it has from a cache, and throws
their rows away: a prompt of which all but 16 tokens were restored costs the attention of the whole. Kernels for GPUs do not. So this is for measuring what a restore is worth,
and for nothing else: answers are compared with the release's own."""

import torch
from torch.nn.functional import scaled_dot_product_attention


def only_new(original):
    """Goes around TorchNativeAttnBackend._run_sdpa_forward_extend."""

    def extend(self, query, output, k_cache, v_cache, req_to_token, req_pool_indices, seq_lens, extend_prefix_lens, extend_seq_lens, encoder_lens=None, scaling=None,
               enable_gqa=False, causal=False, is_cross_attn=False, sliding_window_size=None):
        if encoder_lens is not None or not causal or (sliding_window_size or -1) > -1:
            return original(self, query, output, k_cache, v_cache, req_to_token, req_pool_indices, seq_lens, extend_prefix_lens, extend_seq_lens, encoder_lens, scaling,
                            enable_gqa, causal, is_cross_attn, sliding_window_size)
        start = 0
        for i, (new, length) in enumerate(zip(extend_seq_lens.tolist(), seq_lens.tolist())):
            slots = req_to_token[req_pool_indices[i], :length]
            q, k, v = (t.movedim(0, 1).unsqueeze(0) for t in (query[start:start + new], k_cache[slots].to(query.dtype), v_cache[slots].to(query.dtype)))
            mask = None if new == length else torch.ones(new, length, dtype=torch.bool).tril(length - new)
            got = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=enable_gqa, scale=scaling)
            output[start:start + new] = got.squeeze(0).movedim(0, 1)
            start += new
        return output

    return extend
