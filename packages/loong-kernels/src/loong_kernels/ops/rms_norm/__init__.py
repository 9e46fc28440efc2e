"""RMSNorm (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467)."""

from __future__ import annotations

from torch import Tensor

from loong_kernels.ops.rms_norm.reference import rms_norm_reference


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide each vector by its root mean square and multiply by a learned weight.

    Args:
        x: `[..., hidden]`, any floating dtype, any strides.
        weight: `[hidden]`.
        eps: added to the mean square.

    Returns:
        `[..., hidden]` in `x.dtype`; the arithmetic is float32 (float64 for float64), rounded once at the end.
    """
    return rms_norm_reference(x, weight, eps)
