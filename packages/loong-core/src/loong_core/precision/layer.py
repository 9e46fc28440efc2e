"""The precision of one layer's products: asked at every call, with the weight in 8 bits held for a step.

A layer that `loong_core.precision.apply` chose has one of these as its attribute `precision` and hands it its products.
Whether they are made in 8 bits may change from call to call (`adaptive`) and from step to step (the guard); what is
communicated never depends on it, so ranks need not agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from loong_core.nn.main_gradient import main_gradient
from loong_kernels import grouped_linear, linear, swiglu
from loong_kernels.fp8.experts import fp8_experts
from loong_kernels.fp8.feed_forward import fp8_feed_forward
from loong_kernels.fp8.formats import ACTIVATION_GRAIN, Recipe
from loong_kernels.fp8.linear import fp8_linear
from loong_kernels.fp8.weights import WeightInBits, weight_in_bits
from loong_kernels.ops.quantise import quantise

if TYPE_CHECKING:
    from loong_core.precision.table import Work

Faster = Callable[["Work", int], bool]
"""Whether 8 bits are faster for this work and number of tokens."""


class LayerPrecision:
    """In which precision one layer computes.

    Args:
        name: the layer's, for people.
        recipe: of its products in 8 bits.
        work: its shape, as the table of measurements knows it.
        faster: with it the recipe is used only where it is faster; None uses it always.
    """

    def __init__(self, name: str, recipe: Recipe, work: Work, faster: Faster | None = None) -> None:
        self.name = name
        self.recipe: Recipe = recipe
        self.work = work
        self.fallen_back: str | None = None
        self._faster = faster
        self._holding = False
        self._measuring = False
        self._held: dict[int, WeightInBits] = {}
        self._errors: dict[str, Tensor] = {}

    @property
    def adapts(self) -> bool:
        """Whether the choice depends on the number of tokens."""
        return self._faster is not None

    def in_bits(self, tokens: int) -> bool:
        """Whether products of so many tokens are made in 8 bits now."""
        if self.fallen_back is not None:
            return False
        return self._faster is None or self._faster(self.work, tokens)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`x weightᵀ + bias`, `[tokens, out_features]`."""
        into = main_gradient(weight)
        if not self.in_bits(x.shape[0]):
            return linear(x, weight, bias, weight_grad_into=into)
        self._measure("input", x)
        held = self.held(weight)
        y = fp8_linear(x, weight, bias, recipe=self.recipe, in_bits=held, weight_grad_into=into)
        return self._measure_gradient(y)

    def experts(self, rows: Tensor, gate_up: Tensor, down: Tensor, offsets: Tensor) -> Tensor:
        """What `loong_core.nn.moe.experts.Experts` computes."""
        into = main_gradient(gate_up), main_gradient(down)
        if not self.in_bits(rows.shape[0]):
            between = grouped_linear(rows, gate_up, offsets, weight_grad_into=into[0])
            return grouped_linear(swiglu(between), down, offsets, weight_grad_into=into[1])
        self._measure("input", rows)
        first, second = self.held(gate_up), self.held(down)
        held = None if first is None or second is None else (first, second)
        return self._measure_gradient(fp8_experts(rows, gate_up, down, offsets, in_bits=held, weight_grads_into=into))

    def held(self, weight: Tensor) -> WeightInBits | None:
        """The weight in 8 bits where it is held for the step: rounded at its first use; None outside a step."""
        if not self._holding:
            return None
        key = weight.data_ptr()  # a weight may come as another view of the same memory at each call
        if key not in self._held:
            self._held[key] = weight_in_bits(weight, self.recipe)
            self._measure("weight", weight.detach().flatten(0, -2))
        return self._held[key]

    def begin(self, *, hold: bool, measure: bool) -> None:
        """At the start of a step: weights are new."""
        self._holding, self._measuring = hold, measure
        self._held.clear()
        self._errors.clear()

    def end(self) -> dict[str, Tensor]:
        """At the end of a step: lets go of the weights, and gives the errors measured in it, scalars on the device."""
        self._holding = self._measuring = False
        self._held.clear()
        return self._errors

    def _measure(self, what: str, x: Tensor) -> None:
        if self._measuring and what not in self._errors and x.numel():
            self._errors[what] = rounding_error(x.detach(), self.recipe)

    def _measure_gradient(self, y: Tensor) -> Tensor:
        if self._measuring and y.requires_grad and "gradient" not in self._errors:
            y.register_hook(lambda gradient: self._measure("gradient", gradient))
        return y


def feed_forward_in_bits(gate_up: nn.Module, down: nn.Module, x: Tensor) -> Tensor | None:
    """`down(swiglu(gate_up(x)))` fused, where both layers are made in 8 bits by one recipe; None where they are not.

    Layers that others watch or that communicate are called on their own.
    """
    first, second = gate_up.precision, down.precision
    if not isinstance(first, LayerPrecision) or not isinstance(second, LayerPrecision):
        return None
    watched = any(each._forward_hooks or each._forward_pre_hooks for each in (gate_up, down))
    alone = gate_up.axis.size == 1 and gate_up.bias is None and down.bias is None and not watched
    tokens = x.shape[0]
    if not alone or first.recipe != second.recipe or not (first.in_bits(tokens) and second.in_bits(tokens)):
        return None
    weights: tuple[Tensor, Tensor] = (gate_up.weight, down.weight)  # type: ignore[assignment]
    first._measure("input", x)
    held = first.held(weights[0]), second.held(weights[1])
    y = fp8_feed_forward(
        x,
        *weights,
        recipe=first.recipe,
        in_bits=None if held[0] is None or held[1] is None else (held[0], held[1]),
        weight_grads_into=(main_gradient(weights[0]), main_gradient(weights[1])),
    )
    return second._measure_gradient(y)


@torch.no_grad()
def rounding_error(x: Tensor, recipe: Recipe) -> Tensor:
    """`|rounded - x| / |x|` in Euclidean norms, a scalar on the device: what rounding by a recipe's grain changes.

    Args:
        x: `[rows, width]`.
        recipe: of activations' grain, by row.
    """
    rounded = quantise(x, ACTIVATION_GRAIN[recipe], by_column=False).by_row
    assert rounded is not None
    exact = x.float()
    error = rounded.dequantised()[: x.shape[0]].sub_(exact).norm()
    return error / exact.norm().clamp(min=torch.finfo(torch.float32).tiny)
