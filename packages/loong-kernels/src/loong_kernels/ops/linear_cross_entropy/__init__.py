"""Cross-entropy of a linear head, without ever holding all logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from loong_kernels.gradient_sum import check_sum
from loong_kernels.ops.linear_cross_entropy.chunked import linear_cross_entropy_chunked
from loong_kernels.ops.linear_cross_entropy.kept import linear_cross_entropy_kept
from loong_kernels.ops.linear_cross_entropy.reference import linear_cross_entropy_reference
from loong_kernels.ops.linear_cross_entropy.settings import HeadSettings
from loong_kernels.registry import REGISTRY, Implementation
from loong_kernels.triton_toolchain import register_triton, unsupported_dtype

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

OP = REGISTRY.define(
    "linear_cross_entropy",
    "cross-entropy of a linear head, never holding all logits",
    "loong_kernels.ops.linear_cross_entropy.samples:samples",
)


class LinearCrossEntropyCase(NamedTuple):
    """Shape class of `linear_cross_entropy`; `parallel` says that the vocabulary is split over ranks."""

    device: str
    dtype: torch.dtype
    weight_dtype: torch.dtype
    hidden: int
    vocabulary: int
    parallel: bool


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    ignore_index: int = -100,
    chunk_size: int | None = None,
    group: ProcessGroup | None = None,
    vocab_start: int = 0,
    valid_vocab: int | None = None,
    softcap: float | None = None,
    weight_grad_into: Tensor | None = None,
) -> Tensor:
    """Per-token loss `-log softmax(hidden weightᵀ)[label]`, with gradients for any per-token upstream gradient.

    Never holds all logits: they live one chunk at a time. For the gradients they are computed anew chunk by chunk
    (`chunked`, `triton`), or `[tokens, vocabulary]` exponentials are kept in the dtype of `hidden` (`kept`: a product
    less; on a GPU it serves calls whose exponentials are a small part of the device's memory).

    Args:
        hidden: `[tokens, hidden]`.
        weight: `[vocabulary, hidden]`, or this rank's rows of it (see `group`).
        labels: `[tokens]` int64, ids of the whole vocabulary, or `ignore_index`.
        ignore_index: label of tokens whose loss and gradients are zero.
        chunk_size: vocabulary rows whose logits are held at once; by default what a memory budget allows.
        group: process group over whose ranks the vocabulary is split. Every rank passes the same `hidden` and
            `labels` and gets the same loss. **The gradient of `hidden` is this rank's part of it**: the sum over the
            group is the whole one, and belongs to whatever brought `hidden` to every rank (the backward of a copy to,
            or of a gather from, the group's ranks). The upstream gradient must be the same on every rank.
        vocab_start: id of the weight's first row in the whole vocabulary.
        valid_vocab: size of the true vocabulary; rows from it on are padding and take no part. None: all rows count.
        softcap: logits become `softcap * tanh(logits / softcap)` (Gemma 2); None: as they are.
        weight_grad_into: `[vocabulary, hidden]` float32 (float64 for float64); if given, backward adds the weight's
            gradient to it, unrounded, and returns none for the weight.

    Returns:
        `[tokens]` float32 (float64 for float64), 0 where the label is `ignore_index` and NaN where it is any other
        id that no row has (a check would wait for the device; NaN shows in the loss). The gradient of `weight` is
        accumulated in float32 and returned in the weight's dtype.

    Raises:
        ValueError: a shape does not fit; the message says which.
    """
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1] or labels.shape != hidden.shape[:1]:
        raise ValueError(
            "linear_cross_entropy wants hidden [tokens, hidden], weight [vocabulary, hidden] and labels [tokens]; got "
            f"{list(hidden.shape)}, {list(weight.shape)}, {list(labels.shape)}"
        )
    check_sum("linear_cross_entropy", weight, weight_grad_into)
    settings = HeadSettings(ignore_index, chunk_size, group, vocab_start, valid_vocab, softcap, weight_grad_into)
    case = LinearCrossEntropyCase(
        hidden.device.type, hidden.dtype, weight.dtype, hidden.shape[1], weight.shape[0], group is not None
    )
    return OP.serve(case)(hidden, weight, labels, settings)


def _reference_supports(case: LinearCrossEntropyCase) -> str | None:
    return "takes the whole vocabulary on one rank" if case.parallel else None


def _triton_supports(case: LinearCrossEntropyCase) -> str | None:
    return unsupported_dtype(case.dtype, case.weight_dtype)


def _kept_supports(case: LinearCrossEntropyCase) -> str | None:
    if torch.float16 in (case.dtype, case.weight_dtype):
        return "keeps exponentials whose range float16 does not have"
    return _triton_supports(case)


REGISTRY.register(
    Implementation("reference", OP.name, ("*",), linear_cross_entropy_reference, supports=_reference_supports)
)
REGISTRY.register(Implementation("chunked", OP.name, ("*",), linear_cross_entropy_chunked, priority=10))
REGISTRY.register(
    Implementation("kept_torch", OP.name, ("*",), linear_cross_entropy_kept, priority=None, needs="any device; by name")
)
register_triton(
    REGISTRY,
    OP.name,
    "loong_kernels.ops.linear_cross_entropy.triton_maths:linear_cross_entropy_triton",
    _triton_supports,
)
register_triton(
    REGISTRY,
    OP.name,
    "loong_kernels.ops.linear_cross_entropy.triton_kept:linear_cross_entropy_triton_kept",
    _kept_supports,
    name="kept",
    priority=110,
)
