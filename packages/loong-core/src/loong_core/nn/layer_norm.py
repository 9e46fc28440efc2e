"""Layer normalisation, as vision towers and projectors use it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loong_core.parallel.context import ParallelContext


class LayerNorm(nn.Module):
    """`(x - mean(x)) / sqrt(var(x) + eps) * weight + bias` over the last dimension (arXiv:1607.06450).

    Like an RMSNorm's (see `loong_core.nn.norm`), its parameters' gradients are partial sums over tensor ranks that
    share tokens.
    """

    def __init__(self, size: int, eps: float, context: ParallelContext, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size, device=context.device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(size, device=context.device, dtype=dtype))
        for parameter in (self.weight, self.bias):
            parameter.sequence_parallel = context.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        """Normalise `[..., size]`, in float32 or wider inside."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Size and epsilon, for `print(model)`."""
        return f"{self.weight.shape[0]}, eps={self.eps}"


class ResidualLayerNorm(LayerNorm):
    """Layer normalisation of the residual stream, which takes up what the layer before adds to it."""

    def forward(self, stream: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """As `loong_core.nn.norm.ResidualNorm`: the normalised sum and the sum."""
        stream = stream if added is None else stream + added
        return super().forward(stream), stream
