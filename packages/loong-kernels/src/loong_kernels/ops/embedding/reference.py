"""Rows of a table in plain PyTorch: what every implementation must equal."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from loong_kernels.gradient_sum import with_gradient_into


def embedding_reference(
    ids: Tensor, weight: Tensor, vocab_start: int | None, weight_grad_into: Tensor | None
) -> Tensor:
    """`weight[ids]`, zeros where the row is elsewhere; a gradient that is added to a sum is made dense first."""
    return look_up(ids, with_gradient_into(weight, weight_grad_into), vocab_start)


def look_up(ids: Tensor, weight: Tensor, vocab_start: int | None) -> Tensor:
    """The rows of `ids`, with torch's own gradient."""
    if vocab_start is None:
        return F.embedding(ids, weight)
    elsewhere = rows_elsewhere(ids, weight.shape[0], vocab_start)
    return F.embedding((ids - vocab_start).masked_fill(elsewhere, 0), weight).masked_fill(elsewhere[:, None], 0)


def rows_elsewhere(ids: Tensor, rows: int, vocab_start: int) -> Tensor:
    """Which ids have no row in `[vocab_start, vocab_start + rows)`, `[tokens]` bool."""
    return (ids < vocab_start) | (ids >= vocab_start + rows)
