"""A matrix rounded to 8 bits with scales, for products that sum over its width, over its rows, or both."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loong_kernels.fp8.formats import TILE, Grain, Quantised
from loong_kernels.ops.quantise.reference import quantise_reference
from loong_kernels.registry import REGISTRY, Implementation
from loong_kernels.triton_toolchain import register_triton, unsupported_dtype, without_tensor_copies

OP = REGISTRY.define("quantise", "a matrix in 8 bits with scales", "loong_kernels.ops.quantise.samples:samples")


class QuantiseCase(NamedTuple):
    """Shape class of `quantise`."""

    device: str
    dtype: torch.dtype
    grain: Grain
    by_row: bool
    by_column: bool


@torch.no_grad()
def quantise(x: Tensor, grain: Grain, *, by_row: bool = True, by_column: bool = True) -> Quantised:
    """Round to e4m3 with scales that are powers of two; see `loong_kernels.fp8.formats`.

    Args:
        x: `[rows, width]`, any floating dtype, any strides; `width` is a multiple of 128, for `blocks` `rows` too.
        grain: what shares a scale. Of `rows`, a column of `x` is a row of the second result.
        by_row: whether the first result, for products that sum over `width`, is wanted.
        by_column: whether the second, for products that sum over `rows`, is.

    Raises:
        ValueError: a size is no multiple of 128; the message says which.
    """
    if x.ndim != 2 or x.shape[1] % TILE or (grain == "blocks" and x.shape[0] % TILE):
        sizes = "rows and width" if grain == "blocks" else "width"
        raise ValueError(f"quantise by {grain} wants {sizes} in multiples of {TILE}; got {list(x.shape)}")
    return OP.serve(QuantiseCase(x.device.type, x.dtype, grain, by_row, by_column))(x, grain, by_row, by_column)


def _triton_supports(case: QuantiseCase) -> str | None:
    if case.device == "cuda" and case.dtype is torch.float32 and case.grain in ("blocks", "tensor"):
        return "Triton 3.6 writes wrong numbers by column for float32 and one scale a square or tensor"
    return unsupported_dtype(case.dtype) or without_tensor_copies(case.device)


REGISTRY.register(Implementation("reference", OP.name, ("*",), quantise_reference))
register_triton(REGISTRY, OP.name, "loong_kernels.ops.quantise.triton_kernels:quantise_triton", _triton_supports)
