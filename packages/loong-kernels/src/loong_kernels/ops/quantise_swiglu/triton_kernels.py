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


@triton.jit
def _forward_kernel(
    gate_up_ptr, kept_ptr, row_values_ptr, row_scales_ptr, column_values_ptr, column_scales_ptr,
    rows, padded_rows, intermediate, stride,
    BY_ROW: tl.constexpr, BY_COLUMN: tl.constexpr, KEEP: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * 128 + tl.arange(0, 128)
    column = tl.program_id(1) * 128 + tl.arange(0, 128)
    held = (row < rows)[:, None]
    place = gate_up_ptr + row.to(tl.int64)[:, None] * stride + column[None, :]
    gate = tl.load(place, mask=held, other=0.0).to(tl.float32)
    up = tl.load(place + intermediate, mask=held, other=0.0).to(tl.float32)
    out = (gate * tl.sigmoid(gate) * up).to(kept_ptr.dtype.element_ty)
    if KEEP:
        tl.store(kept_ptr + row.to(tl.int64)[:, None] * intermediate + column[None, :], out, mask=held)
    write_square(
        out.to(tl.float32), row, column, row_values_ptr, row_scales_ptr, column_values_ptr, column_scales_ptr,
        padded_rows, intermediate, BY_ROW, BY_COLUMN, INTERPRETED,
    )  # fmt: skip


@triton.jit
def _backward_kernel(
    upstream_ptr, gate_up_ptr, kept_ptr, row_values_ptr, row_scales_ptr, column_values_ptr, column_scales_ptr,
    rows, padded_rows, intermediate, upstream_stride, stride,
    BY_ROW: tl.constexpr, BY_COLUMN: tl.constexpr, KEEP: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * 128 + tl.arange(0, 128)
    column = tl.program_id(1) * 128 + tl.arange(0, 128)
    wide, held = row.to(tl.int64)[:, None], (row < rows)[:, None]
    place = gate_up_ptr + wide * stride + column[None, :]
    gate = tl.load(place, mask=held, other=0.0).to(tl.float32)
    up = tl.load(place + intermediate, mask=held, other=0.0).to(tl.float32)
    upstream = tl.load(upstream_ptr + wide * upstream_stride + column[None, :], mask=held, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    of_up = (upstream * gate * sigmoid).to(kept_ptr.dtype.element_ty)
    of_gate = (upstream * up * sigmoid * (1 + gate * (1 - sigmoid))).to(kept_ptr.dtype.element_ty)
    if KEEP:
        target = kept_ptr + wide * 2 * intermediate + column[None, :]
        tl.store(target, of_gate, mask=held)
        tl.store(target + intermediate, of_up, mask=held)
    write_square(
        of_gate.to(tl.float32), row, column, row_values_ptr, row_scales_ptr, column_values_ptr, column_scales_ptr,
        padded_rows, 2 * intermediate, BY_ROW, BY_COLUMN, INTERPRETED,
    )  # fmt: skip
    write_square(
        of_up.to(tl.float32), row, column + intermediate, row_values_ptr, row_scales_ptr, column_values_ptr,
        column_scales_ptr, padded_rows, 2 * intermediate, BY_ROW, BY_COLUMN, INTERPRETED,
    )  # fmt: skip


def quantise_swiglu_triton(gate_up: Tensor, grain: Grain, by_row: bool, by_column: bool, keep: bool) -> SwiGLUInBits:
    """The forward op in Triton; see `loong_kernels.ops.quantise_swiglu` for the meaning."""
    gate_up = _rows_of(gate_up)
    rows, intermediate = gate_up.shape[0], gate_up.shape[1] // 2
    made = _empty(rows, intermediate, grain, by_row, by_column, gate_up.device)
    kept = gate_up.new_empty(rows if keep else 0, intermediate)
    if rows:
        _forward_kernel[(padded(rows) // TILE, intermediate // TILE)](
            gate_up, kept, *pointers(made), rows, padded(rows), intermediate, gate_up.stride(0),
            by_row, by_column, keep, INTERPRETED=triton.knobs.runtime.interpret, num_warps=8,
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
        _backward_kernel[(padded(rows) // TILE, intermediate // TILE)](
            upstream, gate_up, kept, *pointers(made), rows, padded(rows), intermediate,
            upstream.stride(0), gate_up.stride(0),
            by_row, by_column, keep, INTERPRETED=triton.knobs.runtime.interpret, num_warps=16,
        )  # fmt: skip
    return SwiGLUInBits(made, kept if keep else None)


def _empty(rows: int, width: int, grain: Grain, by_row: bool, by_column: bool, device: torch.device) -> Quantised:
    return Quantised(
        empty_operand(padded(rows), width, grain, device) if by_row else None,
        empty_operand(width, padded(rows), grain, device) if by_column else None,
    )


def _rows_of(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
