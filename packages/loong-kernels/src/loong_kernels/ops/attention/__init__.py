"""Scaled dot-product attention with grouped queries over sequences of one length."""

from __future__ import annotations

from torch import Tensor

from loong_kernels.ops.attention.reference import attention_reference


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = True, scale: float | None = None) -> Tensor:
    """`softmax(q kᵀ * scale) v` for a batch of sequences of equal length.

    Query head `h` reads key/value head `h // (heads / kv_heads)` (Ainslie et al. 2023, https://arxiv.org/abs/2305.13245).

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
    if q.shape[2] % k.shape[2]:
        raise ValueError(f"attention: {q.shape[2]} query heads are not a multiple of {k.shape[2]} key/value heads")
    return attention_reference(q, k, v, causal, q.shape[-1] ** -0.5 if scale is None else scale)
