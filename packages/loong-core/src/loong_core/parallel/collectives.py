"""Communication with a gradient, over one axis of a layout.

Each function's backward is its transpose as a linear map on the values that the ranks hold together, with the usual
reading of a replicated value: its gradient on a rank is that rank's share, and the sum over the ranks is the whole.
Tokens that tensor ranks share are split in equal runs; where the degree does not divide them, the last run ends in
zeros. Over an axis of size 1 every function returns its argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from loong_core.parallel.context import Axis


def copy_to_all(x: Tensor, axis: Axis) -> Tensor:
    """Use a value that every rank of `axis` holds: identity; backward sums the ranks' gradients."""
    return x if axis.size == 1 else _Copy.apply(x, axis)


def sum_over(x: Tensor, axis: Axis) -> Tensor:
    """Sum the ranks' `x`; every rank gets the sum, and backward hands each the same gradient."""
    return x if axis.size == 1 else _Sum.apply(x, axis)


def own_tokens(x: Tensor, axis: Axis) -> Tensor:
    """This rank's run, `[ceil(tokens / axis.size), ...]`, of tokens `[tokens, ...]` that every rank holds.

    Nothing is communicated: in backward a rank's gradient of `x` is that of its run, and the sum over the ranks is the
    whole.
    """
    if axis.size == 1:
        return x
    run = -(-x.shape[0] // axis.size)
    own = x[axis.rank * run : (axis.rank + 1) * run]
    missing = run - own.shape[0]
    return F.pad(own, (0, 0) * (x.ndim - 1) + (0, missing)) if missing else own


def gather_tokens(x: Tensor, axis: Axis, tokens: int) -> Tensor:
    """Join the ranks' runs of tokens.

    Args:
        x: `[ceil(tokens / axis.size), ...]`, this rank's run.
        axis: the ranks that share the tokens.
        tokens: how many there are in all; zeros past them are cut off.

    Returns:
        `[tokens, ...]`, equal on every rank; backward sums the ranks' gradients and hands each rank its run's.
    """
    if axis.size == 1:
        return x
    whole = _GatherTokens.apply(x, axis)
    return whole if whole.shape[0] == tokens else whole[:tokens]  # a slice's backward copies, so none without need


def sum_to_tokens(x: Tensor, axis: Axis) -> Tensor:
    """Sum the ranks' `x`, `[tokens, ...]`, and keep this rank's run of tokens, `[ceil(tokens / axis.size), ...]`."""
    if axis.size == 1:
        return x
    missing = -x.shape[0] % axis.size
    if missing:
        x = F.pad(x, (0, 0) * (x.ndim - 1) + (0, missing))
    return _SumToTokens.apply(x, axis)


def gather_features(x: Tensor, axis: Axis) -> Tensor:
    """Join the ranks' last dimensions, `[..., features / axis.size]` to `[..., features]`, in order of rank.

    Every rank gets the whole; backward keeps this rank's features of a gradient that is the same on every rank.
    """
    return x if axis.size == 1 else _GatherFeatures.apply(x, axis)


def tokens_to_heads(x: Tensor, axis: Axis, tokens: Sequence[int]) -> Tensor:
    """Exchange a share of the tokens with all heads for all tokens with a share of the heads.

    Args:
        x: `[tokens[axis.rank], heads, ...]`.
        axis: the ranks; its size divides the heads.
        tokens: how many each rank has.

    Returns:
        `[sum(tokens), heads / axis.size, ...]`, this rank's run of the heads.
    """
    return x if axis.size == 1 else _TokensToHeads.apply(x, axis, tuple(tokens))


def heads_to_tokens(x: Tensor, axis: Axis, tokens: Sequence[int]) -> Tensor:
    """The inverse of `tokens_to_heads`."""
    return x if axis.size == 1 else _HeadsToTokens.apply(x, axis, tuple(tokens))


def exchange_rows(x: Tensor, axis: Axis, sent: Sequence[int], received: Sequence[int]) -> Tensor:
    """Send some rows to each rank, and receive some from each.

    Args:
        x: `[sum(sent), ...]`, those for the first rank first.
        axis: the ranks.
        sent: how many go to each.
        received: how many come from each.

    Returns:
        `[sum(received), ...]`, those from the first rank first; backward sends their gradients back.
    """
    return x if axis.size == 1 else _ExchangeRows.apply(x, axis, tuple(sent), tuple(received))


@dataclass(frozen=True)
class Passing:
    """A tensor on its way round a ring: sent to the next rank while the one of the rank before arrives.

    What was sent must not be written to before `arrived` returns.
    """

    sent: Tensor
    arriving: Tensor
    requests: Sequence[dist.Work]

    def arrived(self) -> Tensor:
        """What the rank before sent; later work on this rank's device stream finds it there."""
        for request in self.requests:
            request.wait()
        return self.arriving


def pass_on(x: Tensor, axis: Axis, shape: Sequence[int], tag: int = 0) -> Passing:
    """Begin to send `x` to the next rank of `axis`, and to receive a tensor of `shape` from the one before.

    Without a gradient. Returns at once. Passings that are under way together have tags of their own.
    """
    arriving = x.new_empty(shape)
    sent = x.contiguous()
    operations = [
        dist.P2POp(dist.isend, sent, group=axis.group, group_peer=(axis.rank + 1) % axis.size, tag=tag),
        dist.P2POp(dist.irecv, arriving, group=axis.group, group_peer=(axis.rank - 1) % axis.size, tag=tag),
    ]
    return Passing(sent, arriving, dist.batch_isend_irecv(operations))


def _all_gather(x: Tensor, axis: Axis) -> Tensor:
    """`[n, ...]` of every rank, `[n * axis.size, ...]`."""
    whole = x.new_empty(x.shape[0] * axis.size, *x.shape[1:])
    dist.all_gather_into_tensor(whole, x.contiguous(), group=axis.group)
    return whole


def _reduce_scatter(x: Tensor, axis: Axis) -> Tensor:
    """This rank's `[n / axis.size, ...]` of the sum of every rank's `[n, ...]`."""
    part = x.new_empty(x.shape[0] // axis.size, *x.shape[1:])
    dist.reduce_scatter_tensor(part, x.contiguous(), group=axis.group)
    return part


def _all_reduce(x: Tensor, axis: Axis) -> Tensor:
    """The sum of every rank's `x`, in new memory."""
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=axis.group)
    return total


class _Copy(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _all_reduce(grads[0], ctx.axis), None


class _Sum(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        return _all_reduce(x, axis)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0], None


class _GatherTokens(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return _all_gather(x, axis)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _reduce_scatter(grads[0], ctx.axis), None


class _SumToTokens(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return _reduce_scatter(x, axis)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _all_gather(grads[0], ctx.axis), None


class _GatherFeatures(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(axis.size)]
        dist.all_gather(parts, x.contiguous(), group=axis.group)
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0].chunk(ctx.axis.size, dim=-1)[ctx.axis.rank], None


def _to_heads(x: Tensor, axis: Axis, tokens: tuple[int, ...]) -> Tensor:
    """See `tokens_to_heads`."""
    by_rank = x.unflatten(1, (axis.size, -1)).transpose(0, 1).contiguous()  # [ranks, own tokens, heads / ranks, ...]
    whole = x.new_empty(sum(tokens), *by_rank.shape[2:])
    sent = [tokens[axis.rank]] * axis.size
    dist.all_to_all_single(whole, by_rank.flatten(0, 1), list(tokens), sent, group=axis.group)
    return whole


def _to_tokens(x: Tensor, axis: Axis, tokens: tuple[int, ...]) -> Tensor:
    """See `heads_to_tokens`."""
    own = tokens[axis.rank]
    by_rank = x.new_empty(axis.size * own, *x.shape[1:])
    dist.all_to_all_single(by_rank, x.contiguous(), [own] * axis.size, list(tokens), group=axis.group)
    return by_rank.unflatten(0, (axis.size, own)).transpose(0, 1).flatten(1, 2)


class _TokensToHeads(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis, tokens: tuple[int, ...]) -> Tensor:
        ctx.axis, ctx.tokens = axis, tokens
        return _to_heads(x, axis, tokens)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _to_tokens(grads[0], ctx.axis, ctx.tokens), None, None


class _HeadsToTokens(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis, tokens: tuple[int, ...]) -> Tensor:
        ctx.axis, ctx.tokens = axis, tokens
        return _to_tokens(x, axis, tokens)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _to_heads(grads[0], ctx.axis, ctx.tokens), None, None


def _exchanged(x: Tensor, axis: Axis, sent: tuple[int, ...], received: tuple[int, ...]) -> Tensor:
    """See `exchange_rows`."""
    whole = x.new_empty(sum(received), *x.shape[1:])
    dist.all_to_all_single(whole, x.contiguous(), list(received), list(sent), group=axis.group)
    return whole


class _ExchangeRows(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis, sent: tuple[int, ...], received: tuple[int, ...]) -> Tensor:
        ctx.axis, ctx.sent, ctx.received = axis, sent, received
        return _exchanged(x, axis, sent, received)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _exchanged(grads[0], ctx.axis, ctx.received, ctx.sent), None, None, None
