"""Split, norms and rotary embedding in plain PyTorch: what every implementation must equal."""

from __future__ import annotations

import torch
from torch import Tensor

from loong_kernels.ops.qk_norm_rotary.layout import HeadLayout
from loong_kernels.ops.rms_norm.reference import rms_norm_reference
from loong_kernels.ops.rotary.reference import rotary_reference


def qk_norm_rotary_reference(
    qkv: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    layout: HeadLayout,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated queries and keys, and the values."""
    q, k, v = layout.split(qkv)
    exact = torch.promote_types(qkv.dtype, torch.float32)
    q, k = q.to(exact), k.to(exact)
    if q_weight is not None and k_weight is not None:
        q, k = rms_norm_reference(q, q_weight, eps), rms_norm_reference(k, k_weight, eps)
    q, k = rotary_reference(q, k, cos, sin)
    return q.to(qkv.dtype), k.to(qkv.dtype), v
