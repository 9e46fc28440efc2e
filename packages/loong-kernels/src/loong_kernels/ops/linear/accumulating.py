"""A linear layer on torch's products; the one for the weight's gradient accumulates in the running sum itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from loong_kernels.products import add_product


def linear_accumulating(x: Tensor, weight: Tensor, bias: Tensor | None, weight_grad_into: Tensor | None) -> Tensor:
    """The op; without a sum to add to it is torch's own."""
    if weight_grad_into is None:
        return F.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias, weight_grad_into)  # type: ignore[no-any-return]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, weight_grad_into: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.weight_grad_into = weight_grad_into
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        upstream = gradients[0]
        wants_x, wants_weight, wants_bias, _ = ctx.needs_input_grad
        x_gradient = upstream @ weight if wants_x else None
        if wants_weight:
            add_product(ctx.weight_grad_into, upstream.T, x)
        return x_gradient, None, upstream.sum(0) if wants_bias else None, None
