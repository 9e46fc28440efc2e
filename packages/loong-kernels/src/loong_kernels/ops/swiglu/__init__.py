"""SwiGLU (Shazeer 2020, https://arxiv.org/abs/2002.05202)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loong_kernels.ops.swiglu.reference import swiglu_reference
from loong_kernels.registry import REGISTRY, Implementation
from loong_kernels.triton_toolchain import register_triton, unsupported_dtype

OP = REGISTRY.define(
    "swiglu",
    "silu of the gate times the up projection",
    "loong_kernels.ops.swiglu.samples:samples",
)


class SwiGLUCase(NamedTuple):
    """Shape class of `swiglu`."""

    device: str
    dtype: torch.dtype
    intermediate: int


def swiglu(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up` of a fused projection.

    Args:
        gate_up: `[tokens, 2 * intermediate]`: gate in the first half, up in the second.

    Returns:
        `[tokens, intermediate]` in `gate_up.dtype`; the arithmetic is float32 (float64 for float64).
    """
    return OP.serve(SwiGLUCase(gate_up.device.type, gate_up.dtype, gate_up.shape[-1] // 2))(gate_up)


def _triton_supports(case: SwiGLUCase) -> str | None:
    return unsupported_dtype(case.dtype)


REGISTRY.register(Implementation("reference", OP.name, ("*",), swiglu_reference))
register_triton(REGISTRY, OP.name, "loong_kernels.ops.swiglu.triton_kernels:swiglu_triton", _triton_supports)
