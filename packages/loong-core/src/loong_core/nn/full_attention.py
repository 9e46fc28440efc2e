"""Attention without a mask within packed sequences, and from packed queries to other packed keys.

Both take their dense form where lengths are equal, and self-attention runs over context ranks as in
`loong_core.nn.context_attention`.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor
from torch.autograd import Function

from loong_core.data.context_cut import ContextShare
from loong_core.nn.context_attention import exchange_for_heads, exchange_for_tokens, ring_attention
from loong_core.parallel.context import ParallelContext
from loong_kernels import SequencePairs, attention, packed_attention, partial_attention, partial_attention_backward


class PackedSequences(Protocol):
    """Where sequences begin and end among tokens; with a share, among those of its group of Ulysses ranks."""

    @property
    def cu_seqlens(self) -> Tensor:
        """`[sequences + 1]` int32."""
        ...

    @property
    def max_seqlen(self) -> int:
        """Length of the longest."""
        ...

    @property
    def uniform_length(self) -> int | None:
        """Length of each, None if they differ."""
        ...

    @property
    def share(self) -> ContextShare | None:
        """This context rank's share, None where the sequences are whole."""
        ...


def full_attention(q: Tensor, k: Tensor, v: Tensor, sequences: PackedSequences, context: ParallelContext) -> Tensor:
    """Each token attends to all tokens of its sequence.

    Args:
        q, k, v: `[tokens, heads, head_dim]`, this context rank's.
        sequences: where they begin and end.
        context: its axes `ulysses` and `ring`.

    Returns:
        `[tokens, heads, head_dim]`.
    """
    share, scale = sequences.share, q.shape[-1] ** -0.5
    if share is not None:
        q, k, v = exchange_for_heads(q, k, v, context.ulysses, share)
    if share is not None and context.ring.size > 1:
        mixed = ring_attention(q, k, v, context.ring, share, scale)
    elif sequences.uniform_length is not None:
        q, k, v = (each.unflatten(0, (-1, sequences.uniform_length)) for each in (q, k, v))
        mixed = attention(q, k, v, causal=False, scale=scale).flatten(0, 1)
    else:
        mixed = packed_attention(q, k, v, sequences.cu_seqlens, sequences.max_seqlen, causal=False, scale=scale)
    return mixed if share is None else exchange_for_tokens(mixed, context.ulysses, share)


def cross_attention(q: Tensor, k: Tensor, v: Tensor, pairs: SequencePairs) -> Tensor:
    """Each run of queries attends to all keys of its own run of keys.

    Args:
        q: `[queries, heads, head_dim]`.
        k, v: `[keys, heads, head_dim]`.
        pairs: which queries see which keys; not causal.

    Returns:
        `[queries, heads, head_dim]`.
    """
    if pairs.uniform(q.shape[0], k.shape[0]):
        q, k, v = (each.unflatten(0, (pairs.runs, -1)) for each in (q, k, v))
        return attention(q, k, v, causal=False).flatten(0, 1)
    return _CrossAttention.apply(q, k, v, pairs)  # type: ignore[no-any-return]


class _CrossAttention(Function):
    """Attention over all the keys is attention over a part that is everything."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, pairs: SequencePairs) -> Tensor:
        out, log_sum_exp = partial_attention(q, k, v, pairs)
        ctx.save_for_backward(q, k, v, out, log_sum_exp)
        ctx.pairs = pairs
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, log_sum_exp = ctx.saved_tensors
        return *partial_attention_backward(gradients[0], q, k, v, out, log_sum_exp, ctx.pairs), None
