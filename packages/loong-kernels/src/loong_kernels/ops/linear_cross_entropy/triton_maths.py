"""The element-wise steps of a chunk in Triton: each reads the logits once, where plain PyTorch makes five passes."""

# Triton types a kernel's arguments and adds launch options when it is launched.
# ruff: noqa: ANN001, ANN201, ANN202
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from loong_kernels.ops.linear_cross_entropy.chunk_maths import RunningSoftmax
from loong_kernels.ops.linear_cross_entropy.chunked import chunked_loss
from loong_kernels.ops.linear_cross_entropy.settings import HeadSettings
from loong_kernels.tiles import tiles_over

FOLD_COLUMNS = 4096
GRADIENT_COLUMNS = 2048


@triton.jit
def soft_capped(logits, softcap, CAPPED: tl.constexpr):
    """Logits after the soft cap, in float32."""
    if CAPPED:  # tanh(x) = 2 sigmoid(2x) - 1; the compiler passes softcap as float64
        logits = (softcap * (2 * tl.sigmoid((2 * logits / softcap).to(tl.float32)) - 1)).to(tl.float32)
    return logits


@triton.jit
def _fold_kernel(
    logits_ptr, labels_ptr, maximum_ptr, exp_sum_ptr, label_logit_ptr, label_found_ptr,
    first_row, stride, rows, softcap, CAPPED: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    maximum = tl.load(maximum_ptr + token)
    exp_sum = tl.load(exp_sum_ptr + token)
    for block in range(BLOCKS):
        column = block * COLUMNS + tl.arange(0, COLUMNS)
        logits = tl.load(logits_ptr + token * stride + column, mask=column < rows, other=float("-inf"))
        logits = soft_capped(logits.to(tl.float32), softcap, CAPPED)
        logits = tl.where(column < rows, logits, float("-inf"))
        larger = tl.maximum(maximum, tl.max(logits, axis=0))
        exp_sum = exp_sum * tl.exp(maximum - larger) + tl.sum(tl.exp(logits - larger), axis=0)
        maximum = larger
    tl.store(maximum_ptr + token, maximum)
    tl.store(exp_sum_ptr + token, exp_sum)
    label = tl.load(labels_ptr + token) - first_row
    if (label >= 0) & (label < rows):
        label_logit = tl.load(logits_ptr + token * stride + label).to(tl.float32)
        tl.store(label_logit_ptr + token, soft_capped(label_logit, softcap, CAPPED))
        tl.store(label_found_ptr + token, 1.0)


@triton.jit
def _gradient_kernel(
    logits_ptr, labels_ptr, log_exp_sum_ptr, upstream_ptr, gradient_ptr,
    first_row, stride, rows, softcap, CAPPED: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < rows
    logits = tl.load(logits_ptr + token * stride + column, mask=mask, other=0.0).to(tl.float32)
    capped = soft_capped(logits, softcap, CAPPED)
    label = tl.load(labels_ptr + token) - first_row
    gradient = tl.exp(capped - tl.load(log_exp_sum_ptr + token)) - (column == label).to(tl.float32)
    gradient *= tl.load(upstream_ptr + token)
    if CAPPED:
        gradient *= 1 - (capped / softcap) * (capped / softcap)
    tl.store(gradient_ptr + token * rows + column, gradient.to(gradient_ptr.dtype.element_ty), mask=mask)


class TritonChunkMaths:
    """The steps in Triton, for float32 arithmetic."""

    def fold(
        self, logits: Tensor, labels: Tensor, first_row: int, softcap: float | None, state: RunningSoftmax
    ) -> None:
        """See `ChunkMaths.fold`."""
        tokens, rows = logits.shape
        _fold_kernel[(tokens,)](
            logits, labels, state.maximum, state.exp_sum, state.label_logit, state.label_found,
            first_row, logits.stride(0), rows, softcap or 1.0, softcap is not None,
            tiles_over(rows, FOLD_COLUMNS), FOLD_COLUMNS,
            num_warps=8,
        )  # fmt: skip

    def gradient(
        self,
        logits: Tensor,
        labels: Tensor,
        first_row: int,
        softcap: float | None,
        log_exp_sum: Tensor,
        upstream: Tensor,
        dtype: torch.dtype,
    ) -> Tensor:
        """See `ChunkMaths.gradient`."""
        tokens, rows = logits.shape
        gradient = logits if dtype == logits.dtype else torch.empty_like(logits, dtype=dtype)
        _gradient_kernel[(tokens, tiles_over(rows, GRADIENT_COLUMNS))](
            logits, labels, log_exp_sum, upstream, gradient,
            first_row, logits.stride(0), rows, softcap or 1.0, softcap is not None, GRADIENT_COLUMNS, num_warps=4,
        )  # fmt: skip
        return gradient


def linear_cross_entropy_triton(hidden: Tensor, weight: Tensor, labels: Tensor, settings: HeadSettings) -> Tensor:
    """The op with its element-wise steps in Triton; the products are torch's."""
    return chunked_loss(hidden, weight, labels.contiguous(), settings, TritonChunkMaths())
