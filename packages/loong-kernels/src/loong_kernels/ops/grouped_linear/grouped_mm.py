"""Grouped linear layers by torch's grouped product: one kernel each for forward and for either gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def grouped_linear_grouped_mm(x: Tensor, weight: Tensor, offsets: Tensor, weight_grad_into: None) -> Tensor:
    """The op by `torch.nn.functional.grouped_mm`, without a sum; see `loong_kernels.grouped_linear` for the meaning."""
    return _GroupedLinear.apply(x, weight, offsets)  # type: ignore[no-any-return]


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        ctx.save_for_backward(x, weight, offsets)
        if x.shape[0] == 0:
            return x.new_empty(0, weight.shape[1])
        return F.grouped_mm(x, weight.transpose(1, 2), offs=offsets)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, offsets = ctx.saved_tensors
        upstream = gradients[0].contiguous()
        wants_x, wants_weight = ctx.needs_input_grad[:2]
        if x.shape[0] == 0:
            return torch.zeros_like(x), torch.zeros_like(weight), None
        x_gradient = F.grouped_mm(upstream, weight, offs=offsets) if wants_x else None
        weight_gradient = F.grouped_mm(upstream.T, x, offs=offsets) if wants_weight else None
        return x_gradient, weight_gradient, None
