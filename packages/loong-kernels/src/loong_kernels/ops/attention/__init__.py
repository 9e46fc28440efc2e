"""Scaled dot-product attention with grouped queries over sequences of one length."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loong_kernels.ops.attention.hardware import HALF_DTYPES, no_cudnn, no_nvidia_gpu, widest_cudnn_head
from loong_kernels.ops.attention.reference import attention_reference
from loong_kernels.registry import REGISTRY, Implementation

OP = REGISTRY.define(
    "attention",
    "softmax attention of a batch of sequences of one length",
    "loong_kernels.ops.attention.samples:samples",
)


class AttentionCase(NamedTuple):
    """Shape class of `attention`; `length_bits` is the bit length of the sequence length (its power of two)."""

    device: str
    dtype: torch.dtype
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool
    length_bits: int


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = True, scale: float | None = None) -> Tensor:
    """`softmax(q kᵀ * scale) v` for a batch of sequences of equal length.

    Query head `h` reads key/value head `h // (heads / kv_heads)` (Ainslie et al. 2023,
    https://arxiv.org/abs/2305.13245).

    Args:
        q: `[batch, seq, heads, dim]`.
        k: `[batch, seq, kv_heads, dim]`; `kv_heads` divides `heads`.
        v: as `k`.
        causal: a token sees itself and what came before it; otherwise all of its sequence.
        scale: factor on the scores; by default `dim ** -0.5`.

    Returns:
        `[batch, seq, heads, dim]` in `q.dtype`.

    Raises:
        ValueError: `kv_heads` does not divide `heads`.
    """
    _, length, heads, head_dim = q.shape
    kv_heads = k.shape[2]
    if heads % kv_heads:
        raise ValueError(f"attention: {heads} query heads are not a multiple of {kv_heads} key/value heads")
    case = AttentionCase(q.device.type, q.dtype, heads, kv_heads, head_dim, causal, int(length).bit_length())
    return OP.serve(case)(q, k, v, causal, head_dim**-0.5 if scale is None else scale)


def _flash_supports(case: AttentionCase) -> str | None:
    if case.dtype not in HALF_DTYPES:
        return "takes bfloat16 and float16 only"
    return None if case.head_dim <= 256 else f"takes a head_dim of at most 256, not {case.head_dim}"


def _cudnn_supports(case: AttentionCase) -> str | None:
    if case.dtype not in HALF_DTYPES:
        return "takes bfloat16 and float16 only"
    if case.head_dim > widest_cudnn_head() or case.head_dim % 8:
        return f"takes a head_dim that is a multiple of 8, at most {widest_cudnn_head()} here, not {case.head_dim}"
    return None if case.length_bits > 1 else "takes sequences of at least 2 tokens"


REGISTRY.register(Implementation("reference", OP.name, ("*",), attention_reference))
REGISTRY.register(
    Implementation(
        "sdpa",
        OP.name,
        ("*",),
        "loong_kernels.ops.attention.sdpa:attention_sdpa",
        priority=10,
        nondeterministic_on=frozenset({"cuda"}),
    )
)
REGISTRY.register(
    Implementation(
        "flash",
        OP.name,
        ("cuda",),
        "loong_kernels.ops.attention.sdpa:attention_flash",
        priority=50,
        available=no_nvidia_gpu,
        supports=_flash_supports,
        needs="an NVIDIA GPU of compute capability 8.0 or later",
        uses=frozenset({"flash"}),
        nondeterministic_on=frozenset({"cuda"}),
    )
)
REGISTRY.register(
    Implementation(
        "cudnn",
        OP.name,
        ("cuda",),
        "loong_kernels.ops.attention.sdpa:attention_cudnn",
        priority=100,
        available=no_cudnn,
        supports=_cudnn_supports,
        needs="an NVIDIA GPU of compute capability 8.0 or later, and torch with cuDNN 9",
        uses=frozenset({"cudnn"}),
        nondeterministic_on=frozenset({"cuda"}),
    )
)
