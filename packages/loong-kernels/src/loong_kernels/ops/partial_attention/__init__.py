"""Attention over part of the keys, to be joined with the other parts: a step of ring attention.

The softmax over all keys is an average of the softmaxes over parts of them, weighted by the parts' sums of exponentials
(Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867). Forward and backward are two ops, because backward
takes the joined output and log-sum-exp, which no part knows by itself; neither is differentiable by autograd.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loong_kernels.ops.attention.hardware import HALF_DTYPES, no_cudnn, no_nvidia_gpu, widest_cudnn_head
from loong_kernels.ops.partial_attention.pairs import SequencePairs
from loong_kernels.ops.partial_attention.reference import (
    partial_attention_backward_reference,
    partial_attention_reference,
)
from loong_kernels.registry import REGISTRY, Implementation

__all__ = ["PartialAttentionCase", "SequencePairs", "partial_attention", "partial_attention_backward"]

FORWARD = REGISTRY.define(
    "partial_attention",
    "softmax attention over part of the keys, with its log-sum-exp",
    "loong_kernels.ops.partial_attention.samples:forward_samples",
)
BACKWARD = REGISTRY.define(
    "partial_attention_backward",
    "gradients of softmax attention that reach part of the keys",
    "loong_kernels.ops.partial_attention.samples:backward_samples",
)


class PartialAttentionCase(NamedTuple):
    """Shape class of both ops; `length_bits` is the bit length of the longest run of keys."""

    device: str
    dtype: torch.dtype
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool
    uniform: bool
    length_bits: int


def partial_attention(
    q: Tensor, k: Tensor, v: Tensor, pairs: SequencePairs, *, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """`softmax(q kᵀ * scale) v` over the keys given, and the logarithm of the softmax's denominator.

    Args:
        q: `[queries, heads, dim]`.
        k: `[keys, kv_heads, dim]`; `kv_heads` divides `heads`.
        v: as `k`.
        pairs: which queries see which keys.
        scale: factor on the scores; by default `dim ** -0.5`.

    Returns:
        `[queries, heads, dim]` in `q.dtype`, and `[queries, heads]` float32 (float64 for float64).
    """
    return FORWARD.serve(_case(q, k, pairs))(q, k, v, pairs, _scale(q, scale))


def partial_attention_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sum_exp: Tensor,
    pairs: SequencePairs,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients that these keys contribute.

    Args:
        grad_out: gradient of the attention over all keys, `[queries, heads, dim]`.
        q, k, v, pairs, scale: as for `partial_attention`.
        out: the attention over all keys, `[queries, heads, dim]`.
        log_sum_exp: over all keys, `[queries, heads]` float32 (float64 for float64).

    Returns:
        the part of the gradient of `q` that comes from these keys, and the gradients of `k` and `v`.
    """
    return BACKWARD.serve(_case(q, k, pairs))(grad_out, q, k, v, out, log_sum_exp, pairs, _scale(q, scale))


def _case(q: Tensor, k: Tensor, pairs: SequencePairs) -> PartialAttentionCase:
    queries, heads, head_dim = q.shape
    keys, kv_heads, _ = k.shape
    if heads % kv_heads:
        raise ValueError(f"partial_attention: {heads} query heads are not a multiple of {kv_heads} key/value heads")
    uniform = pairs.uniform(queries, keys)
    length_bits = pairs.max_seqlen_k.bit_length()
    return PartialAttentionCase(q.device.type, q.dtype, heads, kv_heads, head_dim, pairs.causal, uniform, length_bits)


def _scale(q: Tensor, scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if scale is None else scale


def _flash_supports(case: PartialAttentionCase) -> str | None:
    if case.dtype not in HALF_DTYPES:
        return "takes bfloat16 and float16 only"
    if case.head_dim > 256 or case.head_dim % 8:
        return f"takes a head_dim that is a multiple of 8, at most 256, not {case.head_dim}"
    return None


def _cudnn_supports(case: PartialAttentionCase) -> str | None:
    if not case.uniform:
        return "takes runs of one length only"
    if case.dtype not in HALF_DTYPES:
        return "takes bfloat16 and float16 only"
    if case.head_dim > widest_cudnn_head() or case.head_dim % 8:
        return f"takes a head_dim that is a multiple of 8, at most {widest_cudnn_head()} here, not {case.head_dim}"
    return None if case.length_bits > 1 else "takes runs of at least 2 tokens"


for _op, _reference, _way in (
    (FORWARD, partial_attention_reference, "forward"),
    (BACKWARD, partial_attention_backward_reference, "backward"),
):
    REGISTRY.register(Implementation("reference", _op.name, ("*",), _reference))
    REGISTRY.register(
        Implementation(
            "flash",
            _op.name,
            ("cuda",),
            f"loong_kernels.ops.partial_attention.fused:flash_{_way}",
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
            _op.name,
            ("cuda",),
            f"loong_kernels.ops.partial_attention.fused:cudnn_{_way}",
            priority=100,
            available=no_cudnn,
            supports=_cudnn_supports,
            needs="an NVIDIA GPU of compute capability 8.0 or later, and torch with cuDNN 9",
            uses=frozenset({"cudnn"}),
            nondeterministic_on=frozenset({"cuda"}),
        )
    )
