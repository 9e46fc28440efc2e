"""Rows of a table, whose gradient is added to a running sum row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from loong_kernels.ops.embedding.reference import look_up, rows_elsewhere

AddRows = Callable[[Tensor, Tensor, Tensor], None]
"""`(total, rows, upstream)`: `total[rows[i]] += upstream[i]`, nothing where `rows[i]` is `len(total)`."""


def embedding_scattered(
    ids: Tensor, weight: Tensor, vocab_start: int | None, weight_grad_into: Tensor | None
) -> Tensor:
    """The op with torch's `index_add_`."""
    return embedding_adding(ids, weight, vocab_start, weight_grad_into, _index_add)


def embedding_adding(
    ids: Tensor, weight: Tensor, vocab_start: int | None, weight_grad_into: Tensor | None, add_rows: AddRows
) -> Tensor:
    """The op with a gradient by `add_rows`; without a sum to add to it is torch's own."""
    if weight_grad_into is None:
        return look_up(ids, weight, vocab_start)
    return _Embedding.apply(ids, weight, vocab_start, weight_grad_into, add_rows)  # type: ignore[no-any-return]


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, ids: Tensor, weight: Tensor, vocab_start: int | None, weight_grad_into: Tensor, add_rows: AddRows
    ) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.vocab_start, ctx.weight_grad_into, ctx.add_rows = vocab_start, weight_grad_into, add_rows
        return look_up(ids, weight, vocab_start)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None, None, None]:
        (ids,) = ctx.saved_tensors
        total: Tensor = ctx.weight_grad_into
        if ctx.vocab_start is not None:
            elsewhere = rows_elsewhere(ids, total.shape[0], ctx.vocab_start)
            ids = (ids - ctx.vocab_start).masked_fill(elsewhere, total.shape[0])
        ctx.add_rows(total, ids, gradients[0])
        return None, None, None, None, None


def _index_add(total: Tensor, rows: Tensor, upstream: Tensor) -> None:
    nowhere = rows == total.shape[0]
    upstream = upstream.to(total.dtype).masked_fill(nowhere[:, None], 0)
    total.index_add_(0, rows.masked_fill(nowhere, 0), upstream)
