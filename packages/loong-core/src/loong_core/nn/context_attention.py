"""Attention over sequences whose tokens are on several ranks.

Two ways, which combine. Ulysses (Jacobs et al. 2023, https://arxiv.org/abs/2309.14509): the ranks of a group exchange
tokens for heads, attend with their share of the heads to all the group's tokens, and exchange back. Ring (Liu et al.
2023, https://arxiv.org/abs/2310.01889): keys and values travel round the groups, and each group joins the attention
over its own keys with that over each other group's as they pass. `loong_core.data.context_cut` decides who has which
tokens.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from loong_core.data.context_cut import ContextShare
from loong_core.parallel.collectives import heads_to_tokens, pass_on, tokens_to_heads
from loong_core.parallel.context import Axis
from loong_kernels import partial_attention, partial_attention_backward

_KEYS, _GRADIENTS = 0, 1
"""Tags of what is on its way round the ring together."""


def exchange_for_heads(q: Tensor, k: Tensor, v: Tensor, axis: Axis, share: ContextShare) -> tuple[Tensor, ...]:
    """This rank's share of the heads for all tokens of its group, in one exchange.

    With more ranks than key-value heads, or a number that does not divide them, each of these goes to every rank that
    has query heads which read it.

    Args:
        q: `[tokens, heads, head_dim]`.
        k, v: `[tokens, kv_heads, head_dim]`.
        axis: the group's ranks, a divisor of the heads.
        share: of this rank.

    Returns:
        q, k and v of `[the group's tokens, their heads / axis.size, head_dim]`.
    """
    if axis.size == 1:
        return q, k, v
    copies = axis.size // gcd(axis.size, k.shape[1])
    parts = [q, k.repeat_interleave(copies, dim=1), v.repeat_interleave(copies, dim=1)]
    by_rank = [part.unflatten(1, (axis.size, -1)) for part in parts]
    together = tokens_to_heads(torch.cat(by_rank, dim=2).flatten(1, 2), axis, share.group_tokens)
    return together.split([part.shape[2] for part in by_rank], dim=1)


def exchange_for_tokens(mixed: Tensor, axis: Axis, share: ContextShare) -> Tensor:
    """Back to this rank's tokens with all heads: `[tokens, heads, head_dim]`."""
    return heads_to_tokens(mixed, axis, share.group_tokens)


def ring_attention(q: Tensor, k: Tensor, v: Tensor, axis: Axis, share: ContextShare, scale: float) -> Tensor:
    """Causal attention of this group's queries to the keys of every group of the ring.

    Args:
        q: `[tokens, heads, head_dim]`, of this group.
        k, v: `[tokens, kv_heads, head_dim]`, of this group.
        axis: the ring; a rank of each group.
        share: of this rank.
        scale: factor on the scores.

    Returns:
        `[tokens, heads, head_dim]`.
    """
    return _RingAttention.apply(q, k, v, axis, share, scale)  # type: ignore[no-any-return]


class _RingAttention(Function):
    """Keys and values make one round in forward, and another in backward with their gradients behind them.

    While a group computes with what is there, the next keys are on their way.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, axis: Axis, share: ContextShare, scale: float) -> Tensor:
        ctx.axis, ctx.share, ctx.scale = axis, share, scale
        keys_values = torch.stack([k, v])  # [2, tokens, kv_heads, head_dim]
        joined = _Joined()
        for number, step in enumerate(share.steps):
            passing = _pass_keys(keys_values, axis, share, number)
            if step.pairs is not None:
                keys, values = _rows(keys_values, step.key_rows, dim=1)
                part = partial_attention(_rows(q, step.query_rows), keys, values, step.pairs, scale=scale)
                joined.add(*part, step.query_rows)
            keys_values = passing.arrived() if passing else keys_values
        out = joined.out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, joined.log_sum_exp)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, k, v, out, log_sum_exp = ctx.saved_tensors
        axis, share = ctx.axis, ctx.share
        exact = log_sum_exp.dtype
        keys_values = torch.stack([k, v])
        of_queries = torch.zeros_like(q, dtype=exact)
        travelling = None
        for number, step in enumerate(share.steps):
            passing = _pass_keys(keys_values, axis, share, number)
            found = None
            if step.pairs is not None:
                keys, values = _rows(keys_values, step.key_rows, dim=1)
                gradient, queries, joined, total = (
                    _rows(each, step.query_rows) for each in (grads[0], q, out, log_sum_exp)
                )
                found = partial_attention_backward(
                    gradient, queries, keys, values, joined, total, step.pairs, scale=ctx.scale
                )
                _add_rows(of_queries, found[0], step.query_rows)
            # What the groups so far have found of these keys' gradients came after the keys.
            of_keys = travelling.arrived() if travelling else torch.zeros_like(keys_values, dtype=exact)
            if found is not None:
                for sum_of, part in zip(of_keys, found[1:]):
                    _add_rows(sum_of, part, step.key_rows)
            travelling = pass_on(of_keys, axis, _shape(keys_values, axis, share, number + 1), _GRADIENTS)
            keys_values = passing.arrived() if passing else keys_values
        assert travelling is not None
        of_keys, of_values = travelling.arrived()  # after the last step they are home
        return of_queries.to(q.dtype), of_keys.to(k.dtype), of_values.to(v.dtype), None, None, None


class _Joined:
    """Attention over the parts so far, in float32 or wider."""

    out: Tensor
    log_sum_exp: Tensor

    def add(self, out: Tensor, log_sum_exp: Tensor, rows: Tensor | None) -> None:
        """Join the attention of some queries over further keys; the first part is of all queries.

        `out` moves towards the part's by the share that the part has in the sum of exponentials.
        """
        out = out.to(log_sum_exp.dtype)
        if not hasattr(self, "out"):
            self.out, self.log_sum_exp = out, log_sum_exp
            return
        before = _rows(self.log_sum_exp, rows)
        share = torch.sigmoid(log_sum_exp - before)[..., None]
        total = torch.logaddexp(before, log_sum_exp)
        if rows is None:
            self.out.lerp_(out, share)
            self.log_sum_exp = total
        else:
            self.out[rows] = self.out[rows].lerp(out, share)
            self.log_sum_exp[rows] = total


def _pass_keys(keys_values: Tensor, axis: Axis, share: ContextShare, number: int) -> Any:
    """Begin to fetch what the step after step `number` needs; None after the last."""
    if number + 1 == axis.size:
        return None
    return pass_on(keys_values, axis, _shape(keys_values, axis, share, number + 1), _KEYS)


def _shape(keys_values: Tensor, axis: Axis, share: ContextShare, number: int) -> tuple[int, ...]:
    """Shape of the keys and values that are here in step `number`."""
    source = (axis.rank - number) % axis.size
    return (2, share.ring_tokens[source], *keys_values.shape[2:])


def _rows(x: Tensor, rows: Tensor | None, dim: int = 0) -> Tensor:
    return x if rows is None else x.index_select(dim, rows)


def _add_rows(x: Tensor, part: Tensor, rows: Tensor | None) -> None:
    """Add `part` to these rows of `x`, all of them where None."""
    if rows is None:
        x.add_(part)
    else:
        x.index_add_(0, rows, part.to(x.dtype))
