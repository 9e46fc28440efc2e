"""Pixels of patches to vectors."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from loong_core.nn.main_gradient import main_gradient
from loong_core.parallel.context import ParallelContext
from loong_kernels import linear


class PatchEmbedding(nn.Module):
    """A convolution whose stride is its kernel, as the matrix product that it is on patches.

    Args:
        kernel: channels and extents, such as `(3, 2, 14, 14)`: the order of a patch's numbers.
        width: of the result.
        bias: whether there is one.
        context: on whose device.
        dtype: of the parameters.

    Attributes:
        weight: `[width, *kernel]`, the convolution's.
    """

    def __init__(
        self, kernel: tuple[int, ...], width: int, bias: bool, context: ParallelContext, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, *kernel, device=context.device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(width, device=context.device, dtype=dtype)) if bias else None
        for parameter in self.parameters():
            parameter.sequence_parallel = context.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, patches: Tensor) -> Tensor:
        """Embed `[patches, prod(kernel)]`, in the weight's dtype: `[patches, width]`."""
        into = main_gradient(self.weight)
        matrix = self.weight.view(self.weight.shape[0], prod(self.weight.shape[1:]))
        into = None if into is None else into.view(matrix.shape)
        return linear(patches.to(matrix.dtype), matrix, self.bias, weight_grad_into=into)
