"""The experts of a mixture in 8 bits: forward and the rows' gradients; the weights' gradients stay in the rows' dtype.

An expert's weight gradient sums over its few rows: on an H200 it is bound by reading and writing the float32 sum, and
8 bits would only add passes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from loong_kernels.fp8.feed_forward import Sums, Weights
from loong_kernels.fp8.formats import Operand
from loong_kernels.fp8.weights import weight_in_bits
from loong_kernels.gradient_sum import check_sum
from loong_kernels.ops.grouped_scaled_product import grouped_scaled_product
from loong_kernels.ops.grouped_weight_gradient import grouped_weight_gradient
from loong_kernels.ops.quantise import quantise
from loong_kernels.ops.quantise_swiglu import quantise_swiglu, quantise_swiglu_gradient


def fp8_experts(
    rows: Tensor,
    gate_up: Tensor,
    down: Tensor,
    offsets: Tensor,
    *,
    in_bits: Weights | None = None,
    weight_grads_into: Sums = (None, None),
) -> Tensor:
    """`down(swiglu(gate_up(row)))` of each row's expert, by the recipe `blockwise`.

    Args:
        rows: `[rows, hidden]`, sorted by expert.
        gate_up: `[experts, 2 * size, hidden]`, gate rows first; `hidden` and `size` are multiples of 128.
        down: `[experts, hidden, size]`.
        offsets: `[experts]` int32, where each expert's rows end.
        in_bits: both weights rounded already.
        weight_grads_into: a sum for each weight's gradient, or None.

    Returns:
        `[rows, hidden]` in the dtype of `rows`.
    """
    check_sum("fp8_experts", gate_up, weight_grads_into[0])
    check_sum("fp8_experts", down, weight_grads_into[1])
    return _Experts.apply(rows, gate_up, down, offsets, in_bits, weight_grads_into)  # type: ignore[no-any-return]


class _Experts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, gate_up: Tensor, down: Tensor, offsets: Tensor, in_bits: Weights | None, sums: Sums
    ) -> Tensor:
        first, second = _in_bits(gate_up, down, in_bits)
        rows = rows.contiguous()
        between = _forward(quantise(rows, "tiles", by_column=False).by_row, first.forward, rows, offsets)
        gated = quantise_swiglu(between, "tiles", by_column=False, keep=down.requires_grad)
        ctx.in_bits, ctx.sums = in_bits, sums
        ctx.save_for_backward(rows, gate_up, down, offsets, between, gated.kept)
        return _forward(gated.quantised.by_row, second.forward, rows, offsets)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, gate_up, down, offsets, between, gated = ctx.saved_tensors
        upstream = gradients[0].contiguous()
        wants_rows, wants_gate_up, wants_down = ctx.needs_input_grad[:3]
        first, second = _in_bits(gate_up, down, ctx.in_bits)
        of_rows = of_gate_up = of_down = None
        if wants_down:
            of_down = grouped_weight_gradient(upstream, gated, offsets, total=ctx.sums[1])
        if wants_rows or wants_gate_up:
            of_gated = _backward(quantise(upstream, "tiles", by_column=False).by_row, second.backward, rows, offsets)
            of_between = quantise_swiglu_gradient(
                of_gated, between, "tiles", by_row=wants_rows, by_column=False, keep=wants_gate_up
            )
            if wants_rows:
                of_rows = _backward(of_between.quantised.by_row, first.backward, rows, offsets)
            if of_between.kept is not None:
                of_gate_up = grouped_weight_gradient(of_between.kept, rows, offsets, total=ctx.sums[0])
        return of_rows, of_gate_up, of_down, None, None, None


def _forward(left: Operand | None, right: Operand, rows: Tensor, offsets: Tensor) -> Tensor:
    assert left is not None
    return grouped_scaled_product(left, rows.shape[0], right, offsets, rows.dtype, side_by_side=False)


def _backward(left: Operand | None, right: Operand, rows: Tensor, offsets: Tensor) -> Tensor:
    assert left is not None
    return grouped_scaled_product(left, rows.shape[0], right, offsets, rows.dtype, side_by_side=True)


def _in_bits(gate_up: Tensor, down: Tensor, in_bits: Weights | None) -> Weights:
    if in_bits is not None:
        return in_bits
    return weight_in_bits(gate_up, "blockwise"), weight_in_bits(down, "blockwise")
