"""Rows of a table by token id, the table's gradient without a dense tensor of its size."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loong_kernels.gradient_sum import check_sum
from loong_kernels.ops.embedding.reference import embedding_reference
from loong_kernels.ops.embedding.scattered import embedding_scattered
from loong_kernels.registry import REGISTRY, Implementation
from loong_kernels.triton_toolchain import register_triton, unsupported_dtype

OP = REGISTRY.define("embedding", "rows of a table by token id", "loong_kernels.ops.embedding.samples:samples")


class EmbeddingCase(NamedTuple):
    """Shape class of `embedding`; `partial` says that the table is part of a larger one."""

    device: str
    dtype: torch.dtype
    hidden: int
    partial: bool


def embedding(
    ids: Tensor, weight: Tensor, *, vocab_start: int | None = None, weight_grad_into: Tensor | None = None
) -> Tensor:
    """`weight[ids]`.

    Args:
        ids: `[tokens]` int64.
        weight: `[vocabulary, hidden]`, or some rows of it (see `vocab_start`).
        vocab_start: id of the weight's first row, where it is part of a larger table: ids whose row is not in it give
            zeros. None: it is the whole table, and every id has a row.
        weight_grad_into: `[vocabulary, hidden]` float32 (float64 for float64); if given, backward adds the weight's
            gradient to it, the rows that were looked up only, and returns none for the weight.

    Returns:
        `[tokens, hidden]` in the weight's dtype.

    Raises:
        ValueError: a shape does not fit; the message says which.
    """
    if ids.ndim != 1 or weight.ndim != 2:
        raise ValueError(
            f"embedding wants ids [tokens] and weight [vocabulary, hidden]; got {list(ids.shape)}, {list(weight.shape)}"
        )
    check_sum("embedding", weight, weight_grad_into)
    case = EmbeddingCase(weight.device.type, weight.dtype, weight.shape[1], vocab_start is not None)
    return OP.serve(case)(ids, weight, vocab_start, weight_grad_into)


def _triton_supports(case: EmbeddingCase) -> str | None:
    return unsupported_dtype(case.dtype)


# Without Triton a GPU adds rows of the same id in whatever order they come.
NONDETERMINISTIC = frozenset({"cuda"})
REGISTRY.register(
    Implementation("reference", OP.name, ("*",), embedding_reference, nondeterministic_on=NONDETERMINISTIC)
)
REGISTRY.register(
    Implementation("torch", OP.name, ("*",), embedding_scattered, priority=10, nondeterministic_on=NONDETERMINISTIC)
)
register_triton(REGISTRY, OP.name, "loong_kernels.ops.embedding.triton_kernels:embedding_triton", _triton_supports)
