"""From a fused projection to queries, keys and values: the heads' RMSNorm and rotary embedding in one pass."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loong_kernels.ops.qk_norm_rotary.layout import HeadLayout
from loong_kernels.ops.qk_norm_rotary.reference import qk_norm_rotary_reference
from loong_kernels.registry import REGISTRY, Implementation
from loong_kernels.triton_toolchain import register_triton, unsupported_dtype

OP = REGISTRY.define(
    "qk_norm_rotary",
    "queries, keys and values of a fused projection, normalised and rotated",
    "loong_kernels.ops.qk_norm_rotary.samples:samples",
)


class QKNormRotaryCase(NamedTuple):
    """Shape class of `qk_norm_rotary`."""

    device: str
    dtype: torch.dtype
    angle_dtype: torch.dtype
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    normalised: bool


def qk_norm_rotary(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    heads: int,
    kv_heads: int,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    eps: float = 1e-6,
) -> tuple[Tensor, Tensor, Tensor]:
    """Split a fused projection, normalise each head of queries and keys (`rms_norm`), and rotate them (`rotary`).

    Args:
        qkv: `[tokens, (heads + 2 * kv_heads) * head_dim]`: queries, then keys, then values.
        cos: `[tokens, rotary_dim/2]`, best in float32; no gradient flows into it.
        sin: as `cos`.
        heads: of the queries.
        kv_heads: of the keys, and of the values.
        q_weight: `[head_dim]`, the queries' norm; None: they are not normalised.
        k_weight: likewise the keys'; both or neither.
        eps: added to the mean square.

    Returns:
        q `[tokens, heads, head_dim]` and k `[tokens, kv_heads, head_dim]`, new tensors in the dtype of `qkv`, computed
        in float32 (float64 for float64) and rounded once; and v `[tokens, kv_heads, head_dim]`, a view of `qkv`.

    Raises:
        ValueError: a shape does not fit, or only one weight is given; the message says which.
    """
    layout = HeadLayout(heads, kv_heads, qkv.shape[-1] // (heads + 2 * kv_heads))
    if qkv.ndim != 2 or qkv.shape[1] != layout.width or cos.shape != (qkv.shape[0], cos.shape[-1]):
        raise ValueError(
            f"qk_norm_rotary wants qkv [tokens, ({heads} + 2 * {kv_heads}) * head_dim] and angles [tokens, "
            f"rotary_dim/2]; got {list(qkv.shape)}, {list(cos.shape)}"
        )
    if (q_weight is None) != (k_weight is None):
        raise ValueError("qk_norm_rotary normalises queries and keys or neither: give both weights or none")
    case = QKNormRotaryCase(
        qkv.device.type, qkv.dtype, cos.dtype, heads, kv_heads, layout.head_dim, 2 * cos.shape[-1], q_weight is not None
    )
    return OP.serve(case)(qkv, q_weight, k_weight, cos.detach(), sin.detach(), layout, eps)


def _triton_supports(case: QKNormRotaryCase) -> str | None:
    return unsupported_dtype(case.dtype, case.angle_dtype)


REGISTRY.register(Implementation("reference", OP.name, ("*",), qk_norm_rotary_reference))
register_triton(
    REGISTRY, OP.name, "loong_kernels.ops.qk_norm_rotary.triton_kernels:qk_norm_rotary_triton", _triton_supports
)
