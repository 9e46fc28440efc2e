"""Norm over all heads and interleaved rotary embedding in plain PyTorch: what every implementation must equal."""

from __future__ import annotations

import torch
from torch import Tensor


def wide_norm_rotary_reference(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """Normalise, weigh and rotate in float32 (float64 for float64), rounded once, at the end."""
    exact = torch.promote_types(x.dtype, torch.float32)
    wide = x.to(exact)
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.to(exact)
    even, odd = normed.unflatten(-1, (-1, cos.shape[-1], 2)).unbind(-1)  # [tokens, heads, head_dim / 2]
    cos, sin = cos.to(exact)[:, None], sin.to(exact)[:, None]
    rotated = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return rotated.flatten(-2).to(x.dtype)
