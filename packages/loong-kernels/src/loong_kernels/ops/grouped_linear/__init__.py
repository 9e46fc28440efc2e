"""Many linear layers over one batch of rows that is sorted by layer: the products of a mixture of experts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loong_kernels.gradient_sum import check_sum
from loong_kernels.ops.grouped_linear.reference import grouped_linear_reference
from loong_kernels.ops.grouped_weight_gradient import unsuited_to_torch
from loong_kernels.registry import REGISTRY, Implementation

OP = REGISTRY.define(
    "grouped_linear", "each expert's rows times its own weight", "loong_kernels.ops.grouped_linear.samples:samples"
)


class GroupedLinearCase(NamedTuple):
    """Shape class of `grouped_linear`; how the rows divide among the experts differs from call to call."""

    device: str
    dtype: torch.dtype
    weight_dtype: torch.dtype
    experts: int
    in_features: int
    out_features: int
    into_sum: bool


def grouped_linear(x: Tensor, weight: Tensor, offsets: Tensor, *, weight_grad_into: Tensor | None = None) -> Tensor:
    """Multiply each run of rows by the transposed weight of its expert.

    Nothing waits for the device to learn how many rows an expert has.

    Args:
        x: `[rows, in_features]`, sorted by expert, any strides.
        weight: `[experts, out_features, in_features]` in the dtype of `x`.
        offsets: `[experts]` int32 on the device of `x`: where each expert's rows end. They do not decrease, an expert
            without rows repeats the one before, and the last is `rows` (not checked: that would wait for the device).
        weight_grad_into: of the weight's shape in float32 (float64 for float64); if given, backward adds the weight's
            gradient to it and returns none for the weight.

    Returns:
        `[rows, out_features]` in `x.dtype`, accumulated in float32 (float64 for float64). The weight's gradient is
        accumulated so too; an expert without rows gets zeros.

    Raises:
        ValueError: a shape or dtype does not fit; the message says which.
    """
    if x.ndim != 2 or weight.ndim != 3 or offsets.shape != weight.shape[:1] or x.shape[1] != weight.shape[2]:
        raise ValueError(
            "grouped_linear wants x [rows, in], weight [experts, out, in] and offsets [experts]; got "
            f"{list(x.shape)}, {list(weight.shape)}, {list(offsets.shape)}"
        )
    if offsets.dtype != torch.int32:
        raise ValueError(f"grouped_linear wants offsets in int32, got {offsets.dtype}")
    check_sum("grouped_linear", weight, weight_grad_into)
    experts, out_features, in_features = weight.shape
    into_sum = weight_grad_into is not None
    case = GroupedLinearCase(x.device.type, x.dtype, weight.dtype, experts, in_features, out_features, into_sum)
    return OP.serve(case)(x, weight, offsets, weight_grad_into)


def _grouped_mm_supports(case: GroupedLinearCase) -> str | None:
    if case.into_sum:
        return "returns the weight's gradient, and adds it to no sum"
    return _torch_supports(case)


def _into_sum_supports(case: GroupedLinearCase) -> str | None:
    return _torch_supports(case) if case.into_sum else "adds the weight's gradient to a sum, and there is none"


def _torch_supports(case: GroupedLinearCase) -> str | None:
    if case.weight_dtype is not case.dtype:
        return f"takes rows and weights of one dtype, not {case.dtype} and {case.weight_dtype}"
    return unsuited_to_torch(case.dtype, case.in_features, case.out_features)


REGISTRY.register(Implementation("reference", OP.name, ("*",), grouped_linear_reference))
REGISTRY.register(
    Implementation(
        name="grouped_mm",
        op=OP.name,
        devices=("cuda",),
        fn="loong_kernels.ops.grouped_linear.grouped_mm:grouped_linear_grouped_mm",
        priority=50,
        supports=_grouped_mm_supports,
        needs="an NVIDIA GPU and bfloat16",
    )
)
REGISTRY.register(
    Implementation(
        name="grouped_mm_into_sum",
        op=OP.name,
        devices=("cuda",),
        fn="loong_kernels.ops.grouped_linear.grouped_mm:grouped_linear_into_sum",
        priority=60,
        supports=_into_sum_supports,
        needs="an NVIDIA GPU and bfloat16",
    )
)
