"""Products of tokens that tensor ranks share with matrices that they share, communication hidden behind the products.

Between matrices each tensor rank has its run of the tokens, in equal runs of which the last may end in padding (see
`loong_core.parallel.collectives`). A product that reads all tokens begins with the rank's own while the others'
arrive; one whose result is summed over the ranks makes one run after the other, and sends the sum of a run on while
it makes the next. Nothing gathered is kept for backward, where tokens are gathered anew behind another product.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from loong_core.parallel.collectives import pass_on
from loong_core.parallel.context import Axis
from loong_kernels.products import add_product


def gathered_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, axis: Axis, tokens: int, *, weight_grad_into: Tensor | None
) -> Tensor:
    """`linear(gather_tokens(x), weight, bias)`: this rank's outputs of all tokens.

    Args:
        x: `[ceil(tokens / axis.size), in_features]`, this rank's run.
        weight: `[out_features, in_features]`, this rank's rows.
        bias: `[out_features]`, this rank's.
        axis: the ranks, more than one.
        tokens: how many there are in all.
        weight_grad_into: as of `loong_kernels.linear`.

    Returns:
        `[tokens, out_features]`.
    """
    return _GatheredLinear.apply(x, weight, bias, axis, tokens, weight_grad_into)  # type: ignore[no-any-return]


def scattered_linear(x: Tensor, weight: Tensor, axis: Axis, *, weight_grad_into: Tensor | None) -> Tensor:
    """`sum_to_tokens(linear(x, weight))`: the ranks' products summed, this rank's run of tokens.

    Args:
        x: `[tokens, in_features]`, this rank's inputs of all tokens.
        weight: `[out_features, in_features]`, this rank's columns.
        axis: the ranks, more than one.
        weight_grad_into: as of `loong_kernels.linear`.

    Returns:
        `[ceil(tokens / axis.size), out_features]`.
    """
    return _ScatteredLinear.apply(x, weight, axis, weight_grad_into)  # type: ignore[no-any-return]


class _GatheredLinear(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        axis: Axis,
        tokens: int,
        weight_grad_into: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.axis, ctx.tokens, ctx.weight_grad_into = axis, tokens, weight_grad_into
        y, _ = _gathered_product(x, weight.T, axis, tokens)
        return y if bias is None else y.add_(bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        upstream = grads[0]
        everyones = _Gathering(x, ctx.axis) if wants_weight else None
        x_gradient = of_weight = None
        summing = None
        if wants_x:
            of_all = x.new_empty(x.shape[0] * ctx.axis.size, x.shape[1])
            torch.mm(upstream, weight, out=of_all[: ctx.tokens])
            of_all[ctx.tokens :].zero_()
            x_gradient = torch.empty_like(x)
            summing = dist.reduce_scatter_tensor(x_gradient, of_all, group=ctx.axis.group, async_op=True)
        if everyones is not None:
            of_weight = _weight_gradient(upstream, everyones.arrived()[: ctx.tokens], ctx.weight_grad_into)
        of_bias = upstream.sum(0) if wants_bias else None
        if summing is not None:
            summing.wait()
        return x_gradient, of_weight, of_bias, None, None, None


class _ScatteredLinear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, axis: Axis, weight_grad_into: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.axis, ctx.weight_grad_into = axis, weight_grad_into
        return _summed_product(x, weight.T, axis)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, *_ = ctx.needs_input_grad
        x_gradient, of_weight = None, None
        if wants_x:
            x_gradient, upstream = _gathered_product(grads[0], weight, ctx.axis, x.shape[0])
        else:
            upstream = _Gathering(grads[0], ctx.axis).arrived()[: x.shape[0]]
        if wants_weight:
            of_weight = _weight_gradient(upstream, x, ctx.weight_grad_into)
        return x_gradient, of_weight, None, None


class _Gathering:
    """Runs of tokens on their way from every rank."""

    def __init__(self, x: Tensor, axis: Axis) -> None:
        self._own = x.contiguous()
        self._all = x.new_empty(x.shape[0] * axis.size, *x.shape[1:])
        self._request = dist.all_gather_into_tensor(self._all, self._own, group=axis.group, async_op=True)

    def arrived(self) -> Tensor:
        """`[run * ranks, ...]`."""
        assert self._request is not None
        self._request.wait()
        return self._all


def _gathered_product(x: Tensor, matrix: Tensor, axis: Axis, tokens: int) -> tuple[Tensor, Tensor]:
    """All ranks' `x` times `matrix`, `[tokens, columns]`, and all ranks' `x`, `[tokens, ...]`; first the own run."""
    gathering = _Gathering(x, axis)
    run = x.shape[0]
    start, stop = min(axis.rank * run, tokens), min((axis.rank + 1) * run, tokens)
    product = x.new_empty(tokens, matrix.shape[1])
    torch.mm(x[: stop - start], matrix, out=product[start:stop])
    everyones = gathering.arrived()[:tokens]
    for others in (slice(0, start), slice(stop, tokens)):
        if others.start < others.stop:
            torch.mm(everyones[others], matrix, out=product[others])
    return product, everyones


def _summed_product(x: Tensor, matrix: Tensor, axis: Axis) -> Tensor:
    """This rank's run of the ranks' sum of `x` times `matrix`.

    The sum of a run goes round the ranks and grows; the rank's own run is the last it adds to, when all others have.
    """
    tokens = x.shape[0]
    run = -(-tokens // axis.size)
    travelling = None
    total = x.new_empty(0)
    for step in range(axis.size):
        target = (axis.rank - 1 - step) % axis.size
        start, stop = min(target * run, tokens), min((target + 1) * run, tokens)
        total = x.new_empty(run, matrix.shape[1])
        torch.mm(x[start:stop], matrix, out=total[: stop - start])
        total[stop - start :].zero_()
        if travelling is not None:
            total += travelling.arrived()
        if step + 1 < axis.size:
            travelling = pass_on(total, axis, total.shape)
    return total


def _weight_gradient(upstream: Tensor, x: Tensor, weight_grad_into: Tensor | None) -> Tensor | None:
    """`upstream' x`, or None where it was added to a sum."""
    if weight_grad_into is None:
        return upstream.T @ x
    add_product(weight_grad_into, upstream.T, x)
    return None
