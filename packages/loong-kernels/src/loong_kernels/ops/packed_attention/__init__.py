"""Scaled dot-product attention over sequences of unequal lengths, packed end to end without padding."""

from __future__ import annotations

from torch import Tensor

from loong_kernels.ops.packed_attention.reference import packed_attention_reference


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
    if q.shape[1] % k.shape[1]:
        raise ValueError(
            f"packed_attention: {q.shape[1]} query heads are not a multiple of {k.shape[1]} key/value heads"
        )
    return packed_attention_reference(
        q, k, v, cu_seqlens, max_seqlen, causal, q.shape[-1] ** -0.5 if scale is None else scale
    )
