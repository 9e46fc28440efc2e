"""Packed attention by torch's variable-length flash attention: one launch, no padding, no wait for the host."""

from __future__ import annotations

from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from loong_kernels.ops.attention.sdpa import aligned, with_aligned_gradient


def packed_attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seqlen: int, causal: bool, scale: float
) -> Tensor:
    """The op by `torch.nn.attention.varlen`; see `loong_kernels.packed_attention` for the meaning."""
    q, k, v = aligned(q), aligned(k), aligned(v)
    window = (-1, 0) if causal else (-1, -1)
    out = varlen_attn(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, scale=scale, window_size=window)
    return with_aligned_gradient(out)  # type: ignore[arg-type]
