"""A linear layer in plain PyTorch: what every implementation must equal."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from loong_kernels.gradient_sum import with_gradient_into


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None, weight_grad_into: Tensor | None) -> Tensor:
    """`x weightᵀ + bias`; a gradient that is added to a sum is rounded to the weight's dtype first."""
    return F.linear(x, with_gradient_into(weight, weight_grad_into), bias)
