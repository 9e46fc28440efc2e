"""The element-wise steps of `kept` in Triton: one pass over the logits, as a rule."""

# Triton types a kernel's arguments and adds launch options when it is launched.
# ruff: noqa: ANN001, ANN202
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from loong_kernels.ops.linear_cross_entropy.chunk_maths import RunningSoftmax
from loong_kernels.ops.linear_cross_entropy.kept import kept_bytes, kept_loss, needs_gradient
from loong_kernels.ops.linear_cross_entropy.settings import HeadSettings
from loong_kernels.ops.linear_cross_entropy.triton_maths import linear_cross_entropy_triton, soft_capped
from loong_kernels.tiles import tiles_over

COLUMNS = 4096
KEPT_SHARE = 28
"""At most one part in so many of the device's memory is kept (5 GB on an H200); longer calls compute logits twice."""


@triton.jit
def _write_exponentials(
    logits_ptr, kept_ptr, shift, rows, softcap, CAPPED: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    largest = shift
    exp_sum = 0.0
    for block in range(BLOCKS):
        column = block * COLUMNS + tl.arange(0, COLUMNS)
        mask = column < rows
        logits = soft_capped(tl.load(logits_ptr + column, mask=mask, other=0.0).to(tl.float32), softcap, CAPPED)
        logits = tl.where(mask, logits, float("-inf"))
        largest = tl.maximum(largest, tl.max(logits, axis=0))
        exponential = tl.exp(logits - shift)
        exp_sum += tl.sum(exponential, axis=0)
        if CAPPED:
            capped = tl.where(mask, logits, 0.0) / softcap
            exponential *= (1 - capped * capped).to(tl.float32)
        tl.store(kept_ptr + column, exponential.to(kept_ptr.dtype.element_ty), mask=mask)
    return largest, exp_sum


@triton.jit
def _exponentials_kernel(
    logits_ptr, labels_ptr, kept_ptr, shift_ptr, exp_sum_ptr, label_logit_ptr, label_found_ptr,
    first_row, stride, kept_stride, rows, softcap,
    CAPPED: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    logits_ptr += token * stride
    kept_ptr += token * kept_stride
    column = tl.arange(0, COLUMNS)
    first = soft_capped(tl.load(logits_ptr + column, mask=column < rows, other=0.0).to(tl.float32), softcap, CAPPED)
    shift = tl.max(tl.where(column < rows, first, float("-inf")), axis=0)
    largest, exp_sum = _write_exponentials(logits_ptr, kept_ptr, shift, rows, softcap, CAPPED, BLOCKS, COLUMNS)
    if largest - shift > 40.0:  # exp(40) times a large vocabulary is still far from overflow
        shift = largest
        largest, exp_sum = _write_exponentials(logits_ptr, kept_ptr, shift, rows, softcap, CAPPED, BLOCKS, COLUMNS)
    tl.store(shift_ptr + token, shift)
    tl.store(exp_sum_ptr + token, exp_sum)
    label = tl.load(labels_ptr + token) - first_row
    if (label >= 0) & (label < rows):
        tl.store(label_logit_ptr + token, soft_capped(tl.load(logits_ptr + label).to(tl.float32), softcap, CAPPED))
        tl.store(label_found_ptr + token, 1.0)


@triton.jit
def _scale_kernel(x_ptr, factor_ptr, out_ptr, stride, hidden, COLUMNS: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < hidden
    x = tl.load(x_ptr + token * stride + column, mask=mask, other=0.0).to(tl.float32)
    out = x * tl.load(factor_ptr + token)
    tl.store(out_ptr + token * hidden + column, out.to(out_ptr.dtype.element_ty), mask=mask)


class TritonKeptMaths:
    """The steps in Triton, for float32 arithmetic.

    The shift is the largest logit among the first rows; only where another is larger by more than 40 is the token's
    row of logits read once more.
    """

    def exponentials(
        self, logits: Tensor, labels: Tensor, first_row: int, softcap: float | None, kept: Tensor, state: RunningSoftmax
    ) -> None:
        """See `KeptMaths.exponentials`."""
        tokens, rows = logits.shape
        _exponentials_kernel[(tokens,)](
            logits, labels, kept, state.maximum, state.exp_sum, state.label_logit, state.label_found,
            first_row, logits.stride(0), kept.stride(0), rows, softcap or 1.0, softcap is not None,
            tiles_over(rows, COLUMNS), COLUMNS,
            num_warps=8,
        )  # fmt: skip

    def scaled(self, x: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
        """See `KeptMaths.scaled`."""
        x = x if x.stride(-1) == 1 else x.contiguous()
        tokens, hidden = x.shape
        out = torch.empty((tokens, hidden), dtype=dtype, device=x.device)
        if tokens:
            _scale_kernel[(tokens, tiles_over(hidden, COLUMNS))](x, factor, out, x.stride(0), hidden, COLUMNS)
        return out


def linear_cross_entropy_triton_kept(hidden: Tensor, weight: Tensor, labels: Tensor, settings: HeadSettings) -> Tensor:
    """The op, keeping exponentials where there is a backward and they are few, else computing logits twice."""
    if not needs_gradient(hidden, weight) or settings.chunk_size or _is_large(hidden, weight, settings):
        return linear_cross_entropy_triton(hidden, weight, labels, settings)
    return kept_loss(hidden, weight, labels.contiguous(), settings, TritonKeptMaths())


def _is_large(hidden: Tensor, weight: Tensor, settings: HeadSettings) -> bool:
    if not hidden.is_cuda:
        return False
    memory = torch.cuda.get_device_properties(hidden.device).total_memory
    return kept_bytes(hidden, weight, settings) > memory // KEPT_SHARE
