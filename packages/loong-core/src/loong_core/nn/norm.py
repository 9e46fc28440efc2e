"""Root-mean-square normalisation, as blocks and attention use it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from loong_core.parallel.context import ParallelContext
from loong_kernels import add_rms_norm, rms_norm


class NormWeight(nn.Module):
    """The weight of an RMSNorm, `x / sqrt(mean(x^2) + eps) * weight` over the last dimension (arXiv:1910.07467).

    Calling it gives the weight, for an op that normalises along with something else. (Engines that gather weights
    ahead of their use watch modules being called.)

    Under sequence parallelism each tensor rank normalises its own tokens, so the weight's gradient is a partial sum:
    the attribute `sequence_parallel` tells the engine to add it up over the tensor ranks.
    """

    def __init__(self, size: int, eps: float, context: ParallelContext, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size, device=context.device, dtype=dtype))
        self.weight.sequence_parallel = context.sequence_parallel  # type: ignore[attr-defined]

    def forward(self) -> Tensor:
        """The weight, `[size]`."""
        return self.weight

    def extra_repr(self) -> str:
        """Size and epsilon, for `print(model)`."""
        return f"{self.weight.shape[0]}, eps={self.eps}"


class ResidualNorm(NormWeight):
    """RMSNorm of the residual stream, which takes up what the layer before adds to it, in float32 or wider."""

    def forward(self, stream: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
        """Add and normalise.

        Args:
            stream: `[tokens, size]`.
            added: as `stream`; None: nothing is due.

        Returns:
            the normalised sum and the sum, both as `stream`.
        """
        if added is None:
            return rms_norm(stream, self.weight, self.eps), stream
        return add_rms_norm(added, stream, self.weight, self.eps)
