"""A gated feed-forward in 8 bits: what lies between its two linear layers is rounded where it is computed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from loong_kernels.fp8.formats import ACTIVATION_GRAIN, Operand, Recipe
from loong_kernels.fp8.linear import product, saved
from loong_kernels.fp8.weights import WeightInBits, weight_in_bits
from loong_kernels.gradient_sum import check_sum
from loong_kernels.ops.quantise import quantise
from loong_kernels.ops.quantise_swiglu import quantise_swiglu, quantise_swiglu_gradient
from loong_kernels.ops.scaled_product import scaled_product

Weights = tuple[WeightInBits, WeightInBits]
Sums = tuple[Tensor | None, Tensor | None]


def fp8_feed_forward(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    *,
    recipe: Recipe,
    in_bits: Weights | None = None,
    weight_grads_into: Sums = (None, None),
) -> Tensor:
    """`fp8_linear(swiglu(fp8_linear(x, gate_up)), down)`, with fewer passes over what lies between.

    Args:
        x: `[tokens, hidden]`.
        gate_up: `[2 * intermediate, hidden]`, gate rows first; `hidden` and `intermediate` are multiples of 128.
        down: `[hidden, intermediate]`.
        recipe: as of `fp8_linear`.
        in_bits: both weights rounded already.
        weight_grads_into: a sum for each weight's gradient, or None.

    Returns:
        `[tokens, hidden]` in `x.dtype`.
    """
    check_sum("fp8_feed_forward", gate_up, weight_grads_into[0])
    check_sum("fp8_feed_forward", down, weight_grads_into[1])
    return _FeedForward.apply(x, gate_up, down, recipe, in_bits, weight_grads_into)  # type: ignore[no-any-return]


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gate_up: Tensor, down: Tensor, recipe: Recipe, in_bits: Weights | None, sums: Sums
    ) -> Tensor:
        grain = ACTIVATION_GRAIN[recipe]
        first, second = _in_bits(gate_up, down, recipe, in_bits)
        x_rounded = quantise(x, grain, by_column=gate_up.requires_grad)
        assert x_rounded.by_row is not None
        between = product(x_rounded.by_row, first.forward, x.dtype, x.shape[0])
        gated = quantise_swiglu(between, grain, by_column=down.requires_grad).quantised
        assert gated.by_row is not None
        ctx.recipe, ctx.in_bits, ctx.sums = recipe, in_bits, sums
        of_x, of_gated = saved(x_rounded.by_column), saved(gated.by_column)
        ctx.save_for_backward(gate_up, down, between, *of_x, *of_gated)
        return product(gated.by_row, second.forward, x.dtype, x.shape[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gate_up, down, between, *kept = ctx.saved_tensors
        upstream, grain = gradients[0], ACTIVATION_GRAIN[ctx.recipe]
        wants_x, wants_gate_up, wants_down = ctx.needs_input_grad[:3]
        first, second = _in_bits(gate_up, down, ctx.recipe, ctx.in_bits)
        tokens = upstream.shape[0]
        of_x = of_gate_up = of_down = None
        by_row, by_column = quantise(upstream, grain, by_row=wants_x or wants_gate_up, by_column=wants_down)
        if by_column is not None:
            of_down = scaled_product(by_column, Operand(*kept[-2:], grain), down.dtype, total=ctx.sums[1])
        if by_row is not None:
            of_gated = product(by_row, second.backward, upstream.dtype, tokens)
            by_row, by_column = quantise_swiglu_gradient(
                of_gated, between, grain, by_row=wants_x, by_column=wants_gate_up
            ).quantised
            if by_row is not None:
                of_x = product(by_row, first.backward, upstream.dtype, tokens)
            if by_column is not None:
                of_gate_up = scaled_product(by_column, Operand(*kept[:2], grain), gate_up.dtype, total=ctx.sums[0])
        return of_x, of_gate_up, of_down, None, None, None


def _in_bits(gate_up: Tensor, down: Tensor, recipe: Recipe, in_bits: Weights | None) -> Weights:
    return (weight_in_bits(gate_up, recipe), weight_in_bits(down, recipe)) if in_bits is None else in_bits
