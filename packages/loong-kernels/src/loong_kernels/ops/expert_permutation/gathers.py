"""Permuting and combining by gathers alone, forward and backward: no scattered additions, so bits repeat.

Sums over a token's choices go place by place, so that no `[tokens, top_k, hidden]` is held.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from loong_kernels.ops.expert_permutation.order import ExpertOrder


def permute_by_gathers(x: Tensor, order: ExpertOrder) -> Tensor:
    """The op by gathers; see `loong_kernels.permute_to_experts` for the meaning."""
    return _Permute.apply(x, order)  # type: ignore[no-any-return]


def combine_by_gathers(y: Tensor, weights: Tensor, order: ExpertOrder) -> Tensor:
    """The op by gathers; see `loong_kernels.combine_from_experts` for the meaning."""
    return _Combine.apply(y, weights, order)  # type: ignore[no-any-return]


class _Permute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, order: ExpertOrder) -> Tensor:
        ctx.order = order
        return _rows_of_tokens(x, order)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = _sum_of_choices(gradients[0], None, ctx.order)
        return total.to(gradients[0].dtype), None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, weights: Tensor, order: ExpertOrder) -> Tensor:
        ctx.save_for_backward(y, weights)
        ctx.order = order
        return _sum_of_choices(y, weights, order).to(y.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        y, weights = ctx.saved_tensors
        order: ExpertOrder = ctx.order
        upstream = gradients[0]
        y_gradient = weights_gradient = None
        if ctx.needs_input_grad[0]:
            weight_of_row = weights.flatten()[order.choice_of_row.clamp(min=0)]
            y_gradient = (_rows_of_tokens(upstream, order) * weight_of_row[:, None]).to(y.dtype)
        if ctx.needs_input_grad[1]:
            exact = torch.promote_types(y.dtype, torch.float32)
            wide = upstream.to(exact)
            places = [
                torch.linalg.vecdot(_choice(y, order, place).to(exact), wide) for place in range(weights.shape[1])
            ]
            weights_gradient = torch.stack(places, 1).to(weights.dtype)
        return y_gradient, weights_gradient, None


def _rows_of_tokens(x: Tensor, order: ExpertOrder) -> Tensor:
    """`[rows, hidden]`: the token of each row of `x`, `[tokens, hidden]`, zero where there is none."""
    top_k = order.row_of_choice.shape[1]
    if not order.has_gaps:
        return x[order.choice_of_row // top_k]
    rows = x[order.choice_of_row.clamp(min=0) // top_k]
    return rows.masked_fill_((order.choice_of_row < 0)[:, None], 0)


def _sum_of_choices(y: Tensor, weights: Tensor | None, order: ExpertOrder) -> Tensor:
    """`[tokens, hidden]` in float32 or wider: the rows of each token's choices, weighted, added up."""
    exact = torch.promote_types(y.dtype, torch.float32)
    tokens, top_k = order.row_of_choice.shape
    total = torch.zeros(tokens, y.shape[1], dtype=exact, device=y.device)
    for place in range(top_k):
        rows = _choice(y, order, place)
        if weights is None:
            total += rows
        else:
            total.addcmul_(rows.to(exact), weights[:, place, None].to(exact))
    return total


def _choice(y: Tensor, order: ExpertOrder, place: int) -> Tensor:
    """`[tokens, hidden]`: the row of each token's choice at `place`, zero where it was dropped."""
    row = order.row_of_choice[:, place]
    return y[row].masked_fill_((row < 0)[:, None], 0) if order.has_gaps else y[row]
