"""RMSNorm over all heads together, then rotary embedding of neighbouring elements: queries or keys of video models."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loong_kernels.ops.wide_norm_rotary.reference import wide_norm_rotary_reference
from loong_kernels.registry import REGISTRY, Implementation
from loong_kernels.triton_toolchain import register_triton, unsupported_dtype

OP = REGISTRY.define(
    "wide_norm_rotary",
    "vectors of all heads divided by their root mean square, their neighbouring elements rotated",
    "loong_kernels.ops.wide_norm_rotary.samples:samples",
)


class WideNormRotaryCase(NamedTuple):
    """Shape class of `wide_norm_rotary`."""

    device: str
    dtype: torch.dtype
    weight_dtype: torch.dtype
    angle_dtype: torch.dtype
    heads: int
    head_dim: int


def wide_norm_rotary(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """Divide each token's vector by its root mean square, multiply by a weight, and rotate within each head.

    Pair `i` of a head is `(x[2 i], x[2 i + 1])`, as in the first rotary embeddings (Su et al. 2021,
    https://arxiv.org/abs/2104.09864); all of a head is rotated.

    Args:
        x: `[tokens, heads * head_dim]`.
        weight: `[heads * head_dim]`.
        cos: `[tokens, head_dim / 2]`, best in float32; no gradient flows into it.
        sin: as `cos`.
        eps: added to the mean square.

    Returns:
        `[tokens, heads, head_dim]` in `x.dtype`; the arithmetic is float32 (float64 for float64), rounded at the end.
    """
    head_dim = 2 * cos.shape[-1]
    case = WideNormRotaryCase(x.device.type, x.dtype, weight.dtype, cos.dtype, x.shape[-1] // head_dim, head_dim)
    return OP.serve(case)(x, weight, cos.detach(), sin.detach(), eps)


LARGEST_WIDTH = 16384
"""A Triton program holds a token's whole vector in registers."""


def _triton_supports(case: WideNormRotaryCase) -> str | None:
    width = case.heads * case.head_dim
    if width > LARGEST_WIDTH:
        return f"a vector of {width} does not fit a program's registers (at most {LARGEST_WIDTH})"
    return unsupported_dtype(case.dtype, case.weight_dtype, case.angle_dtype)


REGISTRY.register(Implementation("reference", OP.name, ("*",), wide_norm_rotary_reference))
register_triton(
    REGISTRY, OP.name, "loong_kernels.ops.wide_norm_rotary.triton_kernels:wide_norm_rotary_triton", _triton_supports
)
