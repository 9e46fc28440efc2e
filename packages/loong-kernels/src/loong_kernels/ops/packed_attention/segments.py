"""Packed attention as dense attention of one sequence after another: for any device, at the price of a launch each.

On an accelerator it waits for the sequence bounds to arrive on the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loong_kernels.ops.attention.sdpa import attention_sdpa


def packed_attention_segments(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seqlen: int, causal: bool, scale: float
) -> Tensor:
    """The op by torch's scaled_dot_product_attention; see `loong_kernels.packed_attention` for the meaning."""
    lengths = cu_seqlens.diff().tolist()
    sequences = zip(q.split(lengths), k.split(lengths), v.split(lengths))
    return torch.cat([attention_sdpa(q[None], k[None], v[None], causal, scale)[0] for q, k, v in sequences])
