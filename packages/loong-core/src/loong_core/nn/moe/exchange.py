"""Communication with a gradient between ranks that hold different numbers of rows.

As in `loong_core.parallel.collectives`, each function's backward is its transpose, and over an axis of size 1 it
returns its argument. The numbers of rows are known on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from loong_core.parallel.context import Axis


def exchange_rows(x: Tensor, axis: Axis, sent: Sequence[int], received: Sequence[int]) -> Tensor:
    """Send each rank of `axis` its run of rows, and receive one from each.

    Args:
        x: `[sum(sent), width]`, the run for rank 0 first.
        axis: the ranks.
        sent: rows for each rank.
        received: rows from each rank.

    Returns:
        `[sum(received), width]`, what rank 0 sent first.
    """
    return x if axis.size == 1 else _Exchange.apply(x, axis, list(sent), list(received))


def gather_rows(x: Tensor, axis: Axis, rows: Sequence[int]) -> Tensor:
    """Join the ranks' rows, `[rows[axis.rank], width]` to `[sum(rows), width]` in order of rank.

    Every rank gets all; backward sums the ranks' gradients and hands each rank its rows'.
    """
    return x if axis.size == 1 else _Gather.apply(x, axis, list(rows))


def sum_to_rows(x: Tensor, axis: Axis, rows: Sequence[int]) -> Tensor:
    """Sum the ranks' `x`, `[sum(rows), width]`, and keep this rank's rows, `[rows[axis.rank], width]`."""
    return x if axis.size == 1 else _SumToRows.apply(x, axis, list(rows))


def _all_to_all(x: Tensor, axis: Axis, sent: list[int], received: list[int]) -> Tensor:
    arrived = x.new_empty(sum(received), *x.shape[1:])
    dist.all_to_all_single(arrived, x.contiguous(), received, sent, group=axis.group)
    return arrived


def _all_gather(x: Tensor, axis: Axis, rows: list[int]) -> Tensor:
    most = max(rows)
    padded = F.pad(x, (0, 0) * (x.ndim - 1) + (0, most - x.shape[0])).contiguous()
    whole = x.new_empty(most * axis.size, *x.shape[1:])
    dist.all_gather_into_tensor(whole, padded, group=axis.group)
    return torch.cat([part[:held] for part, held in zip(whole.split(most or 1), rows)]) if most else whole


def _reduce_scatter(x: Tensor, axis: Axis, rows: list[int]) -> Tensor:
    most = max(rows)
    padded = x.new_zeros(axis.size, most, *x.shape[1:])
    for target, part in zip(padded, x.split(rows)):
        target[: part.shape[0]] = part
    mine = x.new_empty(most, *x.shape[1:])
    dist.reduce_scatter_tensor(mine, padded.flatten(0, 1), group=axis.group)
    return mine[: rows[axis.rank]]


class _Exchange(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis, sent: list[int], received: list[int]) -> Tensor:
        ctx.axis, ctx.sent, ctx.received = axis, sent, received
        return _all_to_all(x, axis, sent, received)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _all_to_all(grads[0], ctx.axis, ctx.received, ctx.sent), None, None, None


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis, rows: list[int]) -> Tensor:
        ctx.axis, ctx.rows = axis, rows
        return _all_gather(x, axis, rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _reduce_scatter(grads[0], ctx.axis, ctx.rows), None, None


class _SumToRows(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis, rows: list[int]) -> Tensor:
        ctx.axis, ctx.rows = axis, rows
        return _reduce_scatter(x, axis, rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _all_gather(grads[0], ctx.axis, ctx.rows), None, None
