"""Root-mean-square normalisation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from loong_core.parallel.context import ParallelContext
from loong_kernels import rms_norm


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension (arXiv:1910.07467), in float32 or wider.

    Under sequence parallelism each tensor rank normalises its own tokens, so the weight's gradient is a partial sum:
    the attribute `sequence_parallel` tells the engine to add it up over the tensor ranks.
    """

    def __init__(self, size: int, eps: float, context: ParallelContext, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size, device=context.device, dtype=dtype))
        self.weight.sequence_parallel = context.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        """Normalise `x`, `[..., size]`."""
        return rms_norm(x, self.weight, self.eps)

    def extra_repr(self) -> str:
        """Size and epsilon, for `print(model)`."""
        return f"{self.weight.shape[0]}, eps={self.eps}"
