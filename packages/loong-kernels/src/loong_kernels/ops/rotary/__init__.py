"""Rotary position embedding (Su et al. 2021, https://arxiv.org/abs/2104.09864), half-split pairing."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loong_kernels.ops.rotary.reference import rotary_reference
from loong_kernels.registry import REGISTRY, Implementation
from loong_kernels.triton_toolchain import register_triton, unsupported_dtype

OP = REGISTRY.define(
    "rotary", "queries and keys rotated by their positions' angles", "loong_kernels.ops.rotary.samples:samples"
)


class RotaryCase(NamedTuple):
    """Shape class of `rotary`."""

    device: str
    dtype: torch.dtype
    angle_dtype: torch.dtype
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by their positions' angles.

    Pair `i` of a head is `(x[i], x[i + rotary_dim/2])` (the half-split pairing of transformers' `rotate_half`);
    elements from `rotary_dim` on pass through.

    Args:
        q: `[tokens, heads, head_dim]`.
        k: `[tokens, kv_heads, head_dim]`.
        cos: `[tokens, rotary_dim/2]`, best in float32; no gradient flows into it.
        sin: as `cos`.

    Returns:
        The rotated `(q, k)`, new tensors in the dtypes of `q` and `k`; the arithmetic is float32 (float64 for float64).
    """
    case = RotaryCase(q.device.type, q.dtype, cos.dtype, q.shape[1], k.shape[1], q.shape[2], 2 * cos.shape[-1])
    return OP.serve(case)(q, k, cos.detach(), sin.detach())


def _triton_supports(case: RotaryCase) -> str | None:
    return unsupported_dtype(case.dtype, case.angle_dtype)


REGISTRY.register(Implementation("reference", OP.name, ("*",), rotary_reference))
register_triton(REGISTRY, OP.name, "loong_kernels.ops.rotary.triton_kernels:rotary_triton", _triton_supports)
