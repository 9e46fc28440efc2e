"""Packed attention in plain PyTorch, one sequence at a time: what every implementation must equal."""

from __future__ import annotations

import torch
from torch import Tensor

from loong_kernels.ops.attention.reference import attention_reference


def packed_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seqlen: int, causal: bool, scale: float
) -> Tensor:
    """The attention reference on each sequence in turn."""
    lengths = cu_seqlens.diff().tolist()
    sequences = zip(q.split(lengths), k.split(lengths), v.split(lengths))
    return torch.cat([attention_reference(q[None], k[None], v[None], causal, scale)[0] for q, k, v in sequences])
