"""Grouped linear layers by torch's grouped product, and the op `grouped_weight_gradient` for the weights' gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from loong_kernels.ops.grouped_weight_gradient import grouped_weight_gradient


def grouped_linear_grouped_mm(x: Tensor, weight: Tensor, offsets: Tensor, weight_grad_into: None) -> Tensor:
    """The op by `torch.nn.functional.grouped_mm`, without a sum; see `loong_kernels.grouped_linear` for the meaning."""
    return _GroupedLinear.apply(x, weight, offsets, None)  # type: ignore[no-any-return]


def grouped_linear_into_sum(x: Tensor, weight: Tensor, offsets: Tensor, weight_grad_into: Tensor) -> Tensor:
    """The op with a sum."""
    return _GroupedLinear.apply(x, weight, offsets, weight_grad_into)  # type: ignore[no-any-return]


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, offsets: Tensor, weight_grad_into: Tensor | None) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        ctx.save_for_backward(x, weight, offsets)
        ctx.weight_grad_into = weight_grad_into
        if x.shape[0] == 0:
            return x.new_empty(0, weight.shape[1])
        return F.grouped_mm(x, weight.transpose(1, 2), offs=offsets)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight, offsets = ctx.saved_tensors
        upstream = gradients[0].contiguous()
        wants_x, wants_weight = ctx.needs_input_grad[:2]
        of_x = of_weight = None
        if wants_x:
            of_x = F.grouped_mm(upstream, weight, offs=offsets) if x.shape[0] else torch.zeros_like(x)
        if wants_weight:
            of_weight = grouped_weight_gradient(upstream, x, offsets, total=ctx.weight_grad_into)
        return of_x, of_weight, None, None
