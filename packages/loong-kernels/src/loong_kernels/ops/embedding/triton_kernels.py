"""The table's gradient in Triton: tokens are sorted by id, and one program adds up all tokens of an id.

So each row of the sum is read and written once, in an order that does not change from run to run.
"""

# Triton types a kernel's arguments and adds launch options when it is launched.
# ruff: noqa: ANN001, ANN202
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from loong_kernels.ops.embedding.scattered import embedding_adding
from loong_kernels.tiles import covering_power_of_two, tiles_over

COLUMNS = 2048
TOKENS = 4
"""Tokens of an id that are read at once."""


@triton.jit
def _add_rows_kernel(
    total_ptr, ids_ptr, order_ptr, upstream_ptr, tokens, rows, hidden, upstream_stride,
    TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    row = tl.load(ids_ptr + place)
    before = tl.load(ids_ptr + place - 1, mask=place > 0, other=-1)
    if (row != before) & (row < rows):
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        added = tl.zeros((1, COLUMNS), dtype=tl.float32)
        start = place
        more = 1
        while more > 0:
            member = start + tl.arange(0, TOKENS)
            here = (member < tokens) & (tl.load(ids_ptr + member, mask=member < tokens, other=-1) == row)
            token = tl.load(order_ptr + member, mask=here, other=0)
            mask = here[:, None] & (column < hidden)
            values = tl.load(upstream_ptr + token[:, None] * upstream_stride + column, mask=mask, other=0.0)
            added += tl.sum(values.to(tl.float32), axis=0)[None, :]
            start += TOKENS
            more = (tl.sum(here.to(tl.int32), axis=0) == TOKENS).to(tl.int32)
        target = total_ptr + row * hidden + column
        mask = column < hidden
        tl.store(target, tl.load(target, mask=mask, other=0.0) + added, mask=mask)


def embedding_triton(ids: Tensor, weight: Tensor, vocab_start: int | None, weight_grad_into: Tensor | None) -> Tensor:
    """The op with its gradient in Triton; see `loong_kernels.embedding` for the meaning."""
    return embedding_adding(ids, weight, vocab_start, weight_grad_into, _add_rows)


def _add_rows(total: Tensor, rows: Tensor, upstream: Tensor) -> None:
    if not total.is_contiguous():
        raise ValueError("embedding: weight_grad_into must be contiguous")
    upstream = upstream if upstream.stride(-1) == 1 else upstream.contiguous()
    tokens, hidden = upstream.shape
    ids, order = torch.sort(rows, stable=True)
    columns = min(COLUMNS, covering_power_of_two(hidden))
    if tokens:
        _add_rows_kernel[(tokens, tiles_over(hidden, columns))](
            total,
            ids,
            order,
            upstream,
            tokens,
            total.shape[0],
            hidden,
            upstream.stride(0),
            TOKENS,
            columns,
            num_warps=8,
        )
