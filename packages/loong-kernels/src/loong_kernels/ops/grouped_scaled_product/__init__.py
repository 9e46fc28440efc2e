"""8-bit products of rows that are sorted by expert with each expert's matrix."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loong_kernels.fp8.formats import TILE, Operand
from loong_kernels.ops.grouped_scaled_product.reference import grouped_scaled_product_reference
from loong_kernels.registry import REGISTRY, Implementation
from loong_kernels.triton_toolchain import register_triton, without_tensor_copies

OP = REGISTRY.define(
    "grouped_scaled_product",
    "each expert's rows times its own matrix, in 8 bits",
    "loong_kernels.ops.grouped_scaled_product.samples:samples",
)


class GroupedScaledProductCase(NamedTuple):
    """Shape class of `grouped_scaled_product`; how rows divide among experts differs from call to call."""

    device: str
    dtype: torch.dtype
    experts: int
    columns: int
    summed: int
    side_by_side: bool


@torch.no_grad()
def grouped_scaled_product(
    left: Operand, rows: int, right: Operand, offsets: Tensor, dtype: torch.dtype, *, side_by_side: bool
) -> Tensor:
    """`left[rows of expert] right[expert]ᵀ` for every expert. Nothing waits for the device to learn the rows.

    Args:
        left: of grain `tiles`, `[at least rows, summed]`, sorted by expert.
        rows: how many rows there are.
        right: of grain `blocks`; the experts' matrices one below the other, `[experts * columns, summed]`, or
            side by side, `[columns, experts * summed]`. Columns and summed elements are multiples of 128.
        offsets: `[experts]` int32 on the device, where each expert's rows end; the last is `rows`.
        dtype: of the result.
        side_by_side: how the matrices lie.

    Returns:
        `[rows, columns]`.

    Raises:
        ValueError: sizes or grains do not fit each other.
    """
    experts = offsets.shape[0]
    columns, summed = right.values.shape
    columns, summed = (columns, summed // experts) if side_by_side else (columns // experts, summed)
    if left.values.shape[1] != summed or columns % TILE or (left.grain, right.grain) != ("tiles", "blocks"):
        raise ValueError(
            f"grouped_scaled_product cannot multiply {list(left.values.shape)} by {left.grain} with {experts} "
            f"matrices [{columns}, {summed}] by {right.grain}"
        )
    case = GroupedScaledProductCase(left.values.device.type, dtype, experts, columns, summed, side_by_side)
    return OP.serve(case)(left, rows, right, offsets, dtype, side_by_side)


def _triton_supports(case: GroupedScaledProductCase) -> str | None:
    if case.dtype not in (torch.bfloat16, torch.float32):
        return f"makes bfloat16 and float32, not {case.dtype}"
    return without_tensor_copies(case.device)


REGISTRY.register(Implementation("reference", OP.name, ("*",), grouped_scaled_product_reference))
register_triton(
    REGISTRY,
    OP.name,
    "loong_kernels.ops.grouped_scaled_product.triton_kernels:grouped_scaled_product_triton",
    _triton_supports,
)
