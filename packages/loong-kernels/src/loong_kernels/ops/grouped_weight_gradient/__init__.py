"""The gradient of experts' weights from rows that are sorted by expert."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loong_kernels.ops.grouped_weight_gradient.reference import grouped_weight_gradient_reference
from loong_kernels.registry import REGISTRY, Implementation
from loong_kernels.triton_toolchain import register_triton

OP = REGISTRY.define(
    "grouped_weight_gradient",
    "the gradient of each expert's weight from its rows",
    "loong_kernels.ops.grouped_weight_gradient.samples:samples",
)
ALIGNMENT = 16
"""Bytes by which torch's grouped product wants rows to be aligned."""


class GroupedWeightGradientCase(NamedTuple):
    """Shape class of `grouped_weight_gradient`; how the rows divide among the experts differs from call to call."""

    device: str
    dtype: torch.dtype
    experts: int
    in_features: int
    out_features: int
    into_sum: bool


@torch.no_grad()
def grouped_weight_gradient(upstream: Tensor, x: Tensor, offsets: Tensor, *, total: Tensor | None) -> Tensor | None:
    """`upstream[rows of expert]ᵀ x[rows of expert]` of every expert, returned or added to a sum.

    Args:
        upstream: `[rows, out_features]`, contiguous.
        x: `[rows, in_features]` in the dtype of `upstream`, contiguous.
        offsets: `[experts]` int32, where each expert's rows end; the last is `rows`.
        total: `[experts, out_features, in_features]` float32 or wider; if given, the gradient is added to it unrounded.

    Returns:
        `[experts, out_features, in_features]` in the dtype of `x`, zeros for an expert without rows; None with `total`.
    """
    case = GroupedWeightGradientCase(
        x.device.type, x.dtype, offsets.shape[0], x.shape[1], upstream.shape[1], total is not None
    )
    return OP.serve(case)(upstream, x, offsets, total)


def unsuited_to_torch(dtype: torch.dtype, in_features: int, out_features: int) -> str | None:
    """Why torch's grouped product cannot take this, or None."""
    if dtype is not torch.bfloat16:
        return f"takes bfloat16 only, not {dtype}"
    step = ALIGNMENT // dtype.itemsize
    if in_features % step or out_features % step:
        return f"widths {in_features} and {out_features} are not both multiples of {step}"
    return None


def _grouped_mm_supports(case: GroupedWeightGradientCase) -> str | None:
    if case.into_sum:
        return "returns the weight's gradient, and adds it to no sum"
    return unsuited_to_torch(case.dtype, case.in_features, case.out_features)


def _triton_supports(case: GroupedWeightGradientCase) -> str | None:
    if not case.into_sum:
        return "adds the weight's gradient to a sum, and there is none"
    return None if case.dtype in (torch.bfloat16, torch.float32) else f"takes bfloat16 and float32, not {case.dtype}"


REGISTRY.register(Implementation("reference", OP.name, ("*",), grouped_weight_gradient_reference))
REGISTRY.register(
    Implementation(
        name="grouped_mm",
        op=OP.name,
        devices=("cuda",),
        fn="loong_kernels.ops.grouped_weight_gradient.grouped_mm:grouped_weight_gradient_grouped_mm",
        priority=50,
        supports=_grouped_mm_supports,
        needs="an NVIDIA GPU and bfloat16",
    )
)
register_triton(
    REGISTRY,
    OP.name,
    "loong_kernels.ops.grouped_weight_gradient.triton_kernels:grouped_weight_gradient_triton",
    _triton_supports,
)
