"""A weight in 8 bits, for the product of forward and the one of the input's gradient."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from loong_kernels.fp8.formats import TILE, WEIGHT_GRAIN, Operand, Recipe
from loong_kernels.ops.quantise import quantise


class WeightInBits(NamedTuple):
    """Both sides of one weight.

    Attributes:
        forward: `[out, in]`; for experts their matrices one below the other, `[experts * out, in]`.
        backward: `[in, out]`; for experts side by side, `[in, experts * out]`.
    """

    forward: Operand
    backward: Operand


def weight_in_bits(weight: Tensor, recipe: Recipe) -> WeightInBits:
    """Round a weight, `[out, in]` or `[experts, out, in]`, as a recipe says.

    Raises:
        ValueError: a size is no multiple of 128.
    """
    by_row, by_column = quantise(weight.detach().flatten(0, -2), WEIGHT_GRAIN[recipe])
    assert by_row is not None
    assert by_column is not None
    return WeightInBits(by_row, by_column)


def why_not_in_bits(out_features: int, in_features: int) -> str | None:
    """Why a weight of this shape cannot be used in 8 bits, or None."""
    if out_features % TILE or in_features % TILE:
        return f"{out_features} and {in_features} are not both multiples of {TILE}"
    return None
