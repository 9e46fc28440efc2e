"""A linear layer whose weight gradient may be added to a running sum by the product that makes it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loong_kernels.gradient_sum import check_sum
from loong_kernels.ops.linear.accumulating import linear_accumulating
from loong_kernels.ops.linear.reference import linear_reference
from loong_kernels.registry import REGISTRY, Implementation

OP = REGISTRY.define("linear", "vectors times a weight", "loong_kernels.ops.linear.samples:samples")


class LinearCase(NamedTuple):
    """Shape class of `linear`."""

    device: str
    dtype: torch.dtype
    weight_dtype: torch.dtype
    in_features: int
    out_features: int


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, weight_grad_into: Tensor | None = None) -> Tensor:
    """`x weightᵀ + bias`.

    Args:
        x: `[tokens, in_features]`.
        weight: `[out_features, in_features]`.
        bias: `[out_features]`.
        weight_grad_into: `[out_features, in_features]` float32 (float64 for float64); if given, backward adds the
            weight's gradient to it, unrounded, and returns none for the weight.

    Returns:
        `[tokens, out_features]` in `x.dtype`.

    Raises:
        ValueError: a shape does not fit; the message says which.
    """
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"linear wants x [tokens, in] and weight [out, in]; got {list(x.shape)}, {list(weight.shape)}")
    check_sum("linear", weight, weight_grad_into)
    case = LinearCase(x.device.type, x.dtype, weight.dtype, weight.shape[1], weight.shape[0])
    return OP.serve(case)(x, weight, bias, weight_grad_into)


REGISTRY.register(Implementation("reference", OP.name, ("*",), linear_reference))
REGISTRY.register(Implementation("torch", OP.name, ("*",), linear_accumulating, priority=10))
