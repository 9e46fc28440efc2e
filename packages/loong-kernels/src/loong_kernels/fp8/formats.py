"""Numbers of 8 bits (e4m3: 4 exponent and 3 mantissa bits, largest 448) with scales, and their exact emulation.

A tensor's elements are divided by a scale, rounded to e4m3, and multiplied by the scale again by the product that
uses them (arXiv:2209.05433; scales by tile as in arXiv:2412.19437, section 3.3). Scales are powers of two, so that
scaling rounds nothing and every device gets the same numbers: only the rounding to e4m3 loses anything.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from loong_kernels.tiles import tiles_over

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0
"""Of e4m3."""
TILE = 128
"""Elements of a row that share a scale (grain `tiles`), and side of a square that does (`blocks`)."""
SMALLEST_EXPONENT = -100
"""Of a scale: what is smaller than 2^-100 times 448 loses bits, and in the end everything."""

Grain = Literal["tiles", "blocks", "rows", "tensor"]
"""What shares a scale: 128 elements of a row, a square of 128 by 128, a row, or everything."""

Recipe = Literal["blockwise", "rowwise", "tensorwise"]
"""`blockwise` gives activations and gradients the grain `tiles` and weights `blocks`; the others one grain to all."""

ACTIVATION_GRAIN: dict[str, Grain] = {"blockwise": "tiles", "rowwise": "rows", "tensorwise": "tensor"}
WEIGHT_GRAIN: dict[str, Grain] = {"blockwise": "blocks", "rowwise": "rows", "tensorwise": "tensor"}


class Operand(NamedTuple):
    """A matrix in e4m3, as one side of a product that sums over its second dimension.

    Attributes:
        values: `[rows, summed]` e4m3, contiguous.
        scales: float32, what values are multiplied by; by grain, `tiles`: `[ceil(summed / 128), rows]`; `blocks`:
            `[ceil(rows / 128), ceil(summed / 128)]`, the second padded to a multiple of 4; `rows`: `[rows]`;
            `tensor`: `[1]`.
        grain: what shares a scale.
    """

    values: Tensor
    scales: Tensor
    grain: Grain

    def dequantised(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The numbers it stands for, `[rows, summed]`."""
        rows, summed = self.values.shape
        scales = self.scales.to(dtype)
        if self.grain == "tiles":
            scales = scales.T.repeat_interleave(TILE, 1)[:, :summed]
        elif self.grain == "blocks":
            scales = scales.repeat_interleave(TILE, 0)[:rows].repeat_interleave(TILE, 1)[:, :summed]
        elif self.grain == "rows":
            scales = scales[:, None]
        return self.values.to(dtype) * scales


class Quantised(NamedTuple):
    """A matrix `[rows, width]` for products that sum over its width (`by_row`) or over its rows (`by_column`).

    Attributes:
        by_row: `[padded rows, width]`, None if not asked for.
        by_column: `[width, padded rows]`, likewise. Rows are padded to a multiple of 128 with zeros.
    """

    by_row: Operand | None
    by_column: Operand | None


def scales_for(largest: Tensor) -> Tensor:
    """The smallest power of two by which each of `largest` is divided to be at most 448; NaN where it is not finite."""
    mantissa, exponent = torch.frexp(largest)  # largest = mantissa 2^exponent, 448 = 0.875 2^9
    exponent = (exponent - 9 + (mantissa > 0.875).to(exponent.dtype)).clamp(min=SMALLEST_EXPONENT)
    scales = torch.ldexp(torch.ones_like(largest), exponent)
    scales = torch.where(largest > 0, scales, 1.0)
    return torch.where(largest.isfinite(), scales, torch.nan)


def padded(rows: int) -> int:
    """`rows` as a multiple of 128."""
    return tiles_over(rows, TILE) * TILE


def block_columns(summed: int) -> int:
    """Columns of the scales of grain `blocks`: cuBLAS wants a multiple of 4."""
    return tiles_over(tiles_over(summed, TILE), 4) * 4
