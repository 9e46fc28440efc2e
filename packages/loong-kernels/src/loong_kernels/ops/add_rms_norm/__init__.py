"""A residual's sum and its RMSNorm (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467) in one pass."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loong_kernels.ops.add_rms_norm.reference import add_rms_norm_reference
from loong_kernels.ops.rms_norm import LARGEST_HIDDEN
from loong_kernels.registry import REGISTRY, Implementation
from loong_kernels.triton_toolchain import register_triton, unsupported_dtype

OP = REGISTRY.define(
    "add_rms_norm",
    "sum of two tensors, and the sum's RMSNorm",
    "loong_kernels.ops.add_rms_norm.samples:samples",
)


class AddRMSNormCase(NamedTuple):
    """Shape class of `add_rms_norm`."""

    device: str
    dtype: torch.dtype
    weight_dtype: torch.dtype
    hidden: int


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add, round, and normalise: `total = residual + x` and `rms_norm(total, weight, eps)`.

    Args:
        x: `[tokens, hidden]`, any floating dtype, any strides.
        residual: as `x`.
        weight: `[hidden]`.
        eps: added to the mean square.

    Returns:
        the normalised vectors and the total, both `[tokens, hidden]` in `x.dtype`. The arithmetic is float32 (float64
        for float64); the total is rounded before it is normalised, as where the two are computed apart.

    Raises:
        ValueError: the shapes differ; the message says which.
    """
    if x.shape != residual.shape or x.ndim != 2 or weight.shape != x.shape[1:]:
        raise ValueError(
            "add_rms_norm wants x and residual [tokens, hidden] and weight [hidden]; got "
            f"{list(x.shape)}, {list(residual.shape)}, {list(weight.shape)}"
        )
    case = AddRMSNormCase(x.device.type, x.dtype, weight.dtype, x.shape[1])
    return OP.serve(case)(x, residual, weight, eps)


def _triton_supports(case: AddRMSNormCase) -> str | None:
    if case.hidden > LARGEST_HIDDEN:
        return f"a vector of {case.hidden} does not fit a program's registers (at most {LARGEST_HIDDEN})"
    return unsupported_dtype(case.dtype, case.weight_dtype)


REGISTRY.register(Implementation("reference", OP.name, ("*",), add_rms_norm_reference))
register_triton(
    REGISTRY, OP.name, "loong_kernels.ops.add_rms_norm.triton_kernels:add_rms_norm_triton", _triton_supports
)
