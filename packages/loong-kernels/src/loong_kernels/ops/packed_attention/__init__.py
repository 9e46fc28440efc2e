"""Scaled dot-product attention over sequences of unequal lengths, packed end to end without padding."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loong_kernels.ops.attention.hardware import HALF_DTYPES, no_nvidia_gpu
from loong_kernels.ops.packed_attention.reference import packed_attention_reference
from loong_kernels.registry import REGISTRY, Implementation

OP = REGISTRY.define(
    "packed_attention",
    "softmax attention within sequences packed end to end",
    "loong_kernels.ops.packed_attention.samples:samples",
)


class PackedAttentionCase(NamedTuple):
    """Shape class of `packed_attention`; `length_bits` is the bit length of the longest sequence's length."""

    device: str
    dtype: torch.dtype
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool
    length_bits: int


def packed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    *,
    causal: bool = True,
    scale: float | None = None,
) -> Tensor:
    """`softmax(q kᵀ * scale) v` within each packed sequence; nothing crosses a boundary.

    Where all sequences share one length, `attention` on the reshaped tensors means the same and is faster.

    Args:
        q: `[tokens, heads, dim]`.
        k: `[tokens, kv_heads, dim]`; `kv_heads` divides `heads`.
        v: as `k`.
        cu_seqlens: `[sequences + 1]` int32 on the tensors' device: 0, each sequence's end, the last being `tokens`.
        max_seqlen: length of the longest sequence.
        causal: a token sees itself and what came before it in its sequence; otherwise all of its sequence.
        scale: factor on the scores; by default `dim ** -0.5`.

    Returns:
        `[tokens, heads, dim]` in `q.dtype`.

    Raises:
        ValueError: `kv_heads` does not divide `heads`.
    """
    _, heads, head_dim = q.shape
    kv_heads = k.shape[1]
    if heads % kv_heads:
        raise ValueError(f"packed_attention: {heads} query heads are not a multiple of {kv_heads} key/value heads")
    case = PackedAttentionCase(q.device.type, q.dtype, heads, kv_heads, head_dim, causal, max_seqlen.bit_length())
    return OP.serve(case)(q, k, v, cu_seqlens, max_seqlen, causal, head_dim**-0.5 if scale is None else scale)


def _varlen_supports(case: PackedAttentionCase) -> str | None:
    if case.dtype not in HALF_DTYPES:
        return "takes bfloat16 and float16 only"
    if case.head_dim > 256 or case.head_dim % 8:
        return f"takes a head_dim that is a multiple of 8, at most 256, not {case.head_dim}"
    return None


REGISTRY.register(Implementation("reference", OP.name, ("*",), packed_attention_reference))
REGISTRY.register(
    Implementation(
        "segments",
        OP.name,
        ("*",),
        "loong_kernels.ops.packed_attention.segments:packed_attention_segments",
        priority=10,
        nondeterministic_on=frozenset({"cuda"}),
    )
)
REGISTRY.register(
    Implementation(
        "varlen",
        OP.name,
        ("cuda",),
        "loong_kernels.ops.packed_attention.varlen:packed_attention_varlen",
        priority=100,
        available=no_nvidia_gpu,
        supports=_varlen_supports,
        needs="an NVIDIA GPU of compute capability 8.0 or later",
        uses=frozenset({"flash"}),
        nondeterministic_on=frozenset({"cuda"}),
    )
)
