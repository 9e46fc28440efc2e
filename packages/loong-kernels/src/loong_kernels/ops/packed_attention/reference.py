"""Packed attention in plain PyTorch, one sequence at a time: what every implementation must equal."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from loong_kernels.ops.attention.reference import attention_reference


def packed_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seqlen: int, causal: bool, scale: float
) -> Tensor:
    """The attention reference on each sequence in turn."""
    bounds = cu_seqlens.tolist()
    outputs = [
        attention_reference(q[None, a:b], k[None, a:b], v[None, a:b], causal, scale)[0] for a, b in pairwise(bounds)
    ]
    return torch.cat(outputs)
