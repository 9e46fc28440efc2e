"""Permuting and combining in Triton: each token's or row's vector is read and written once, sums stay in registers."""

# Triton types a kernel's arguments and adds launch options when it is launched.
# ruff: noqa: ANN001, ANN202
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from loong_kernels.ops.expert_permutation.order import ExpertOrder
from loong_kernels.tiles import covering_power_of_two, tiles_over

WIDEST_TILE = 1024
"""Columns that a program takes at once."""


@triton.jit
def _copy_kernel(x_ptr, choice_ptr, out_ptr, stride, hidden, TOP_K: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    choice = tl.load(choice_ptr + row)
    x = tl.load(x_ptr + (choice // TOP_K) * stride + column, mask=(column < hidden) & (choice >= 0), other=0.0)
    tl.store(out_ptr + row * hidden + column, x, mask=column < hidden)


@triton.jit
def _sum_kernel(
    y_ptr, row_ptr, weight_ptr, out_ptr, stride, hidden,
    WEIGHTED: tl.constexpr, TOP_K: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), dtype=tl.float32)
    for place in tl.static_range(TOP_K):
        row = tl.load(row_ptr + token * TOP_K + place)
        y = tl.load(y_ptr + row * stride + column, mask=(column < hidden) & (row >= 0), other=0.0).to(tl.float32)
        if WEIGHTED:
            y *= tl.load(weight_ptr + token * TOP_K + place).to(tl.float32)
        total += y
    tl.store(out_ptr + token * hidden + column, total.to(out_ptr.dtype.element_ty), mask=column < hidden)


@triton.jit
def _combine_backward_kernel(
    upstream_ptr, y_ptr, choice_ptr, weight_ptr, y_gradient_ptr, weight_gradient_ptr,
    upstream_stride, y_stride, hidden, TOP_K: tl.constexpr, TILES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    choice = tl.load(choice_ptr + row)
    taken = choice >= 0
    weight = tl.load(weight_ptr + choice, mask=taken, other=0.0).to(tl.float32)
    products = tl.zeros((COLUMNS,), dtype=tl.float32)
    for tile in tl.static_range(TILES):
        column = tile * COLUMNS + tl.arange(0, COLUMNS)
        mask = (column < hidden) & taken
        source = upstream_ptr + (choice // TOP_K) * upstream_stride + column
        upstream = tl.load(source, mask=mask, other=0.0).to(tl.float32)
        products += upstream * tl.load(y_ptr + row * y_stride + column, mask=mask, other=0.0).to(tl.float32)
        gradient = (upstream * weight).to(y_gradient_ptr.dtype.element_ty)
        tl.store(y_gradient_ptr + row * hidden + column, gradient, mask=column < hidden)
    slope = tl.sum(products, axis=0).to(weight_gradient_ptr.dtype.element_ty)
    tl.store(weight_gradient_ptr + choice, slope, mask=taken)


def permute_triton(x: Tensor, order: ExpertOrder) -> Tensor:
    """The op in Triton; see `loong_kernels.permute_to_experts` for the meaning."""
    return _Permute.apply(x, order)  # type: ignore[no-any-return]


def combine_triton(y: Tensor, weights: Tensor, order: ExpertOrder) -> Tensor:
    """The op in Triton; see `loong_kernels.combine_from_experts` for the meaning."""
    return _Combine.apply(y, weights, order)  # type: ignore[no-any-return]


class _Permute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, order: ExpertOrder) -> Tensor:
        ctx.order = order
        x = _with_contiguous_vectors(x)
        hidden, choices = x.shape[1], order.choice_of_row
        rows = torch.empty((choices.shape[0], hidden), dtype=x.dtype, device=x.device)
        if rows.numel():
            top_k, columns = order.row_of_choice.shape[1], _tile(hidden)
            grid = (rows.shape[0], tiles_over(hidden, columns))
            _copy_kernel[grid](x, choices.contiguous(), rows, x.stride(0), hidden, top_k, columns)
        return rows

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _sum(gradients[0], None, ctx.order), None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, weights: Tensor, order: ExpertOrder) -> Tensor:
        weights = weights.contiguous()
        ctx.save_for_backward(y, weights)
        ctx.order = order
        return _sum(y, weights, order)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        y, weights = ctx.saved_tensors
        order: ExpertOrder = ctx.order
        y, upstream = _with_contiguous_vectors(y), _with_contiguous_vectors(gradients[0])
        rows, hidden = y.shape
        y_gradient = torch.empty((rows, hidden), dtype=y.dtype, device=y.device)
        weights_gradient = torch.zeros_like(weights) if order.has_gaps else torch.empty_like(weights)
        if rows:
            columns = _tile(hidden)
            _combine_backward_kernel[(rows,)](
                upstream, y, order.choice_of_row.contiguous(), weights, y_gradient, weights_gradient,
                upstream.stride(0), y.stride(0), hidden, weights.shape[1], tiles_over(hidden, columns), columns,
            )  # fmt: skip
        return y_gradient, weights_gradient, None


def _sum(y: Tensor, weights: Tensor | None, order: ExpertOrder) -> Tensor:
    """`[tokens, hidden]` in `y.dtype`: the rows of each token's choices, weighted if there are weights, added up."""
    y = _with_contiguous_vectors(y)
    rows, hidden = order.row_of_choice.contiguous(), y.shape[1]
    tokens, top_k = rows.shape
    total = torch.empty((tokens, hidden), dtype=y.dtype, device=y.device)
    if total.numel():
        columns = _tile(hidden)
        grid = (tokens, tiles_over(hidden, columns))
        weighted = weights is not None
        _sum_kernel[grid](y, rows, weights if weighted else y, total, y.stride(0), hidden, weighted, top_k, columns)
    return total


def _tile(hidden: int) -> int:
    return min(covering_power_of_two(hidden), WIDEST_TILE)


def _with_contiguous_vectors(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
