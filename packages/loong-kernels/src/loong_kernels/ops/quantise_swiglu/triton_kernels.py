"""SwiGLU and its gradient in Triton, rounded to 8 bits while they are in registers: a program takes 128 by 128."""

# Triton types a kernel's arguments and adds launch options when it is launched.
# ruff: noqa: ANN001, ANN202
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from loong_kernels.fp8.formats import TILE, Grain, Quantised, padded
from loong_kernels.ops.quantise.triton_kernels import empty_operand, pointers, write_square
from loong_kernels.ops.quantise_swiglu import SwiGLUInBits

FORWARD_LAUNCH = {"num_warps": 4, "maxnreg": 168}
BACKWARD_LAUNCH = {"num_warps": 8, "maxnreg": 128}
"""The fastest of those measured on an H200; registers for two or three programs on a multiprocessor."""


@triton.jit
def _swiglu(gate_up_ptr, kept_ptr, row, column, rows, intermediate, stride, KEEP: tl.constexpr):
    wide, held = row.to(tl.int64)[:, None], (row < rows)[:, None]
    place = gate_up_ptr + wide * stride + column[None, :]
    gate = tl.load(place, mask=held, other=0.0).to(tl.float32)
    up = tl.load(place + intermediate, mask=held, other=0.0).to(tl.float32)
    out = (gate * tl.sigmoid(gate) * up).to(kept_ptr.dtype.element_ty)
    if KEEP:
        tl.store(kept_ptr + wide * intermediate + column[None, :], out, mask=held)
    return out


@triton.jit
def _forward_kernel(
    gate_up_ptr, kept_ptr, row_values_ptr, row_scales_ptr, column_values_ptr, column_scales_ptr,
    rows, padded_rows, intermediate, stride,
    BY_ROW: tl.constexpr, BY_COLUMN: tl.constexpr, KEEP: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1) * 128 + tl.arange(0, 64)
    column = tl.program_id(0) * 128 + tl.arange(0, 128)
    upper = _swiglu(gate_up_ptr, kept_ptr, row, column, rows, intermediate, stride, KEEP)
    lower = _swiglu(gate_up_ptr, kept_ptr, row + 64, column, rows, intermediate, stride, KEEP)
    write_square(
        upper, lower, row, column, row_values_ptr, row_scales_ptr, column_values_ptr, column_scales_ptr,
        padded_rows, intermediate, BY_ROW, BY_COLUMN, INTERPRETED,
    )  # fmt: skip


@triton.jit
def _gradient(
    upstream_ptr, gate_up_ptr, kept_ptr, row, column, of_up, rows, intermediate, upstream_stride, stride,
    KEEP: tl.constexpr,
):  # fmt: skip
    wide, held = row.to(tl.int64)[:, None], (row < rows)[:, None]
    place = gate_up_ptr + wide * stride + column[None, :]
    gate = tl.load(place, mask=held, other=0.0).to(tl.float32)
    upstream = tl.load(upstream_ptr + wide * upstream_stride + column[None, :], mask=held, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    if of_up:
        gradient = upstream * gate * sigmoid
    else:
        up = tl.load(place + intermediate, mask=held, other=0.0).to(tl.float32)
        gradient = upstream * up * sigmoid * (1 + gate * (1 - sigmoid))
    gradient = gradient.to(kept_ptr.dtype.element_ty)
    if KEEP:
        target = kept_ptr + wide * 2 * intermediate + of_up * intermediate + column[None, :]
        tl.store(target, gradient, mask=held)
    return gradient


@triton.jit
def _backward_kernel(
    upstream_ptr, gate_up_ptr, kept_ptr, row_values_ptr, row_scales_ptr, column_values_ptr, column_scales_ptr,
    rows, padded_rows, intermediate, upstream_stride, stride,
    BY_ROW: tl.constexpr, BY_COLUMN: tl.constexpr, KEEP: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    # The halves of a square, gate's and up's, are made by neighbours, which find what they share in the cache.
    of_up = tl.program_id(0) % 2
    row = tl.program_id(1) * 128 + tl.arange(0, 64)
    column = tl.program_id(0) // 2 * 128 + tl.arange(0, 128)
    upper = _gradient(
        upstream_ptr, gate_up_ptr, kept_ptr, row, column, of_up, rows, intermediate, upstream_stride, stride, KEEP
    )
    lower = _gradient(
        upstream_ptr, gate_up_ptr, kept_ptr, row + 64, column, of_up, rows, intermediate, upstream_stride, stride, KEEP
    )
    write_square(
        upper, lower, row, column + of_up * intermediate, row_values_ptr, row_scales_ptr, column_values_ptr,
        column_scales_ptr, padded_rows, 2 * intermediate, BY_ROW, BY_COLUMN, INTERPRETED,
    )  # fmt: skip


def quantise_swiglu_triton(gate_up: Tensor, grain: Grain, by_row: bool, by_column: bool, keep: bool) -> SwiGLUInBits:
    """The forward op in Triton; see `loong_kernels.ops.quantise_swiglu` for the meaning."""
    gate_up = _rows_of(gate_up)
    rows, intermediate = gate_up.shape[0], gate_up.shape[1] // 2
    made = _empty(rows, intermediate, grain, by_row, by_column, gate_up.device)
    kept = gate_up.new_empty(rows if keep else 0, intermediate)
    if rows:
        _forward_kernel[(intermediate // TILE, padded(rows) // TILE)](
            gate_up, kept, *pointers(made), rows, padded(rows), intermediate, gate_up.stride(0),
            by_row, by_column, keep, INTERPRETED=triton.knobs.runtime.interpret, **FORWARD_LAUNCH,
        )  # fmt: skip
    return SwiGLUInBits(made, kept if keep else None)


def quantise_swiglu_gradient_triton(
    upstream: Tensor, gate_up: Tensor, grain: Grain, by_row: bool, by_column: bool, keep: bool
) -> SwiGLUInBits:
    """The backward op in Triton; see `loong_kernels.ops.quantise_swiglu` for the meaning."""
    gate_up, upstream = _rows_of(gate_up), _rows_of(upstream)
    rows, intermediate = gate_up.shape[0], gate_up.shape[1] // 2
    made = _empty(rows, 2 * intermediate, grain, by_row, by_column, gate_up.device)
    kept = gate_up.new_empty(rows if keep else 0, 2 * intermediate)
    if rows:
        _backward_kernel[(2 * intermediate // TILE, padded(rows) // TILE)](
            upstream, gate_up, kept, *pointers(made), rows, padded(rows), intermediate,
            upstream.stride(0), gate_up.stride(0),
            by_row, by_column, keep, INTERPRETED=triton.knobs.runtime.interpret, **BACKWARD_LAUNCH,
        )  # fmt: skip
    return SwiGLUInBits(made, kept if keep else None)


def _empty(rows: int, width: int, grain: Grain, by_row: bool, by_column: bool, device: torch.device) -> Quantised:
    return Quantised(
        empty_operand(padded(rows), width, grain, device) if by_row else None,
        empty_operand(width, padded(rows), grain, device) if by_column else None,
    )


def _rows_of(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
