"""RMSNorm in plain PyTorch: what every implementation must equal."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x / sqrt(mean(x²) + eps) * weight`, computed in float32 (float64 for float64) and rounded once, at the end."""
    exact = torch.promote_types(x.dtype, torch.float32)
    wide = x.to(exact)
    inverse_rms = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * inverse_rms * weight.to(exact)).to(x.dtype)
