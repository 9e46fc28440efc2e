"""RMSNorm (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loong_kernels.ops.rms_norm.reference import rms_norm_reference
from loong_kernels.registry import REGISTRY, Implementation
from loong_kernels.triton_toolchain import register_triton, unsupported_dtype

OP = REGISTRY.define(
    "rms_norm",
    "vectors divided by their root mean square, times a weight",
    "loong_kernels.ops.rms_norm.samples:samples",
)


class RMSNormCase(NamedTuple):
    """Shape class of `rms_norm`."""

    device: str
    dtype: torch.dtype
    weight_dtype: torch.dtype
    hidden: int


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide each vector by its root mean square and multiply by a learned weight.

    Args:
        x: `[..., hidden]`, any floating dtype, any strides.
        weight: `[hidden]`.
        eps: added to the mean square.

    Returns:
        `[..., hidden]` in `x.dtype`; the arithmetic is float32 (float64 for float64), rounded once at the end.
    """
    return OP.serve(RMSNormCase(x.device.type, x.dtype, weight.dtype, x.shape[-1]))(x, weight, eps)


LARGEST_HIDDEN = 32768
"""A Triton program holds whole vectors in registers."""


def _triton_supports(case: RMSNormCase) -> str | None:
    if case.hidden > LARGEST_HIDDEN:
        return f"a vector of {case.hidden} does not fit a program's registers (at most {LARGEST_HIDDEN})"
    return unsupported_dtype(case.dtype, case.weight_dtype)


REGISTRY.register(Implementation("reference", OP.name, ("*",), rms_norm_reference))
register_triton(REGISTRY, OP.name, "loong_kernels.ops.rms_norm.triton_kernels:rms_norm_triton", _triton_supports)
