"""Sum and RMSNorm in plain PyTorch: what every implementation must equal."""

from __future__ import annotations

from torch import Tensor

from loong_kernels.ops.rms_norm.reference import rms_norm_reference


def add_rms_norm_reference(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The normalised total and the total."""
    total = residual + x
    return rms_norm_reference(total, weight, eps), total
