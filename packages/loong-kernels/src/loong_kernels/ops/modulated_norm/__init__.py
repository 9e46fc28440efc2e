"""Layer norm without weights, then a scale and a shift for each run of tokens (adaLN of diffusion models).

Peebles and Xie 2022, https://arxiv.org/abs/2212.09748, section 3.2.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loong_kernels.ops.modulated_norm.reference import modulated_norm_reference
from loong_kernels.registry import REGISTRY, Implementation
from loong_kernels.triton_toolchain import register_triton, unsupported_dtype

OP = REGISTRY.define(
    "modulated_norm",
    "vectors of mean 0 and variance 1, scaled and shifted by the run of tokens they are in",
    "loong_kernels.ops.modulated_norm.samples:samples",
)


class ModulatedNormCase(NamedTuple):
    """Shape class of `modulated_norm`."""

    device: str
    dtype: torch.dtype
    modulation_dtype: torch.dtype
    hidden: int


def modulated_norm(x: Tensor, scale: Tensor, shift: Tensor, bounds: Tensor, eps: float) -> Tensor:
    """`(x - mean) / sqrt(variance + eps) * (1 + scale) + shift`, scale and shift being those of the token's run.

    Args:
        x: `[tokens, hidden]`.
        scale: `[runs, hidden]`, best in float32.
        shift: as `scale`.
        bounds: `[runs + 1]` int32 on the tensors' device: 0, each run's end, the last being `tokens`.
        eps: added to the variance.

    Returns:
        `[tokens, hidden]` in `x.dtype`; the arithmetic is float32 (float64 for float64), rounded once at the end.
    """
    case = ModulatedNormCase(x.device.type, x.dtype, scale.dtype, x.shape[-1])
    return OP.serve(case)(x, scale, shift, bounds, eps)


LARGEST_HIDDEN = 16384
"""A Triton program holds whole vectors in registers."""


def _triton_supports(case: ModulatedNormCase) -> str | None:
    if case.hidden > LARGEST_HIDDEN:
        return f"a vector of {case.hidden} does not fit a program's registers (at most {LARGEST_HIDDEN})"
    return unsupported_dtype(case.dtype, case.modulation_dtype)


REGISTRY.register(Implementation("reference", OP.name, ("*",), modulated_norm_reference))
register_triton(
    REGISTRY, OP.name, "loong_kernels.ops.modulated_norm.triton_kernels:modulated_norm_triton", _triton_supports
)
