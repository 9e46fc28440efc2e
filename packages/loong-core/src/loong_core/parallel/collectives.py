"""Communication with a gradient, over one axis of a layout.

Each function's backward is its transpose as a linear map on the values that the ranks hold together, with the usual
reading of a replicated value: its gradient on a rank is that rank's share, and the sum over the ranks is the whole.
Tokens that tensor ranks share are split in equal runs; where the degree does not divide them, the last run ends in
zeros. Over an axis of size 1 every function returns its argument.
"""

from __future__ import annotations

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
