"""A linear layer whose three products are made in 8 bits: forward, the input's gradient, the weight's gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from loong_kernels.fp8.formats import ACTIVATION_GRAIN, Operand, Recipe
from loong_kernels.fp8.weights import WeightInBits, weight_in_bits
from loong_kernels.gradient_sum import check_sum
from loong_kernels.ops.quantise import quantise
from loong_kernels.ops.scaled_product import scaled_product


def fp8_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    recipe: Recipe,
    in_bits: WeightInBits | None = None,
    weight_grad_into: Tensor | None = None,
) -> Tensor:
    """`x weightᵀ + bias`, with operands rounded to e4m3 as the recipe says and sums in float32.

    Each operand is rounded for each product that sums over another of its dimensions: `x` and the upstream gradient
    along features and along tokens, the weight along either.

    Args:
        x: `[tokens, in_features]`.
        weight: `[out_features, in_features]`, both multiples of 128.
        bias: `[out_features]`.
        recipe: what shares a scale.
        in_bits: the weight rounded already, by the same recipe; None rounds it here, and again in backward.
        weight_grad_into: as of `loong_kernels.linear`.

    Returns:
        `[tokens, out_features]` in `x.dtype`.
    """
    check_sum("fp8_linear", weight, weight_grad_into)
    return _Linear.apply(x, weight, bias, recipe, in_bits, weight_grad_into)  # type: ignore[no-any-return]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        recipe: Recipe,
        in_bits: WeightInBits | None,
        weight_grad_into: Tensor | None,
    ) -> Tensor:
        grain = ACTIVATION_GRAIN[recipe]
        rounded = quantise(x, grain, by_column=weight.requires_grad)
        assert rounded.by_row is not None
        used = weight_in_bits(weight, recipe) if in_bits is None else in_bits
        y = product(rounded.by_row, used.forward, x.dtype, x.shape[0])
        ctx.recipe, ctx.in_bits, ctx.weight_grad_into = recipe, in_bits, weight_grad_into
        ctx.save_for_backward(weight, *saved(rounded.by_column))
        return y if bias is None else y + bias

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weight, *kept = ctx.saved_tensors
        upstream, grain = gradients[0], ACTIVATION_GRAIN[ctx.recipe]
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        by_row, by_column = quantise(upstream, grain, by_row=wants_x, by_column=wants_weight)
        of_x = of_weight = None
        if by_row is not None:
            used = weight_in_bits(weight, ctx.recipe) if ctx.in_bits is None else ctx.in_bits
            of_x = product(by_row, used.backward, upstream.dtype, upstream.shape[0])
        if by_column is not None:
            of_weight = scaled_product(by_column, Operand(*kept, grain), weight.dtype, total=ctx.weight_grad_into)
        return of_x, of_weight, upstream.sum(0) if wants_bias else None, None, None, None


def product(left: Operand, right: Operand, dtype: torch.dtype, rows: int) -> Tensor:
    """`left rightᵀ` without the rows of padding, `[rows, columns]`."""
    made = scaled_product(left, right, dtype)
    assert made is not None
    return made[:rows]


def saved(operand: Operand | None) -> tuple[Tensor, ...]:
    """What backward needs of an operand."""
    return () if operand is None else (operand.values, operand.scales)
