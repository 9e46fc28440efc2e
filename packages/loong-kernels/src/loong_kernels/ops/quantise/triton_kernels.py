"""Rounding to 8 bits in Triton: a program reads a square of 128 by 128 once and writes it for both kinds of product.

Where a scale covers more than a square (grains `rows` and `tensor`), a pass before finds the largest elements.
"""

# Triton types a kernel's arguments and adds launch options when it is launched.
# ruff: noqa: ANN001, ANN201, ANN202
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from loong_kernels.fp8.formats import E4M3, TILE, Grain, Operand, Quantised, block_columns, padded
from loong_kernels.tiles import tiles_over

LAUNCH = {"num_warps": 4, "maxnreg": 168}
GRAINS: dict[Grain, int] = {"tiles": 0, "blocks": 1, "rows": 2, "tensor": 3}


@triton.jit
def scale_of(largest):
    """The scale for a largest element, as `loong_kernels.fp8.formats.scales_for`: from the bits of float32."""
    bits = largest.to(tl.int32, bitcast=True)
    exponent = (bits >> 23) & 0xFF
    biased = tl.maximum(exponent - 8 + tl.where((bits & 0x7FFFFF) > 0x600000, 1, 0), 27)
    scale = tl.where(exponent == 0xFF, float("nan"), (biased << 23).to(tl.float32, bitcast=True))
    return tl.where(largest == 0, 1.0, scale)


@triton.jit
def inverse_of(scale):
    """The reciprocal of a power of two, exactly."""
    bits = scale.to(tl.int32, bitcast=True)
    inverse = ((254 << 23) - (bits & 0x7F800000)).to(tl.float32, bitcast=True)
    return tl.where(scale == scale, inverse, scale)


@triton.jit
def to_e4m3(x, INTERPRETED: tl.constexpr):
    """Round to nearest, ties to even. The interpreter truncates, so there x is rounded by adding and subtracting."""
    if INTERPRETED:
        exponent = tl.maximum(((x.to(tl.int32, bitcast=True) >> 23) & 0xFF) - 127, -6)
        unit = ((exponent - 3 + 127) << 23).to(tl.float32, bitcast=True)
        shift = unit * 12582912.0  # 1.5 2^23 units: what is added to it is rounded to whole units
        x = (x + shift) - shift
    return x.to(tl.float8e4nv)


@triton.jit
def _write_by_row(x, row, column, values_ptr, scales_ptr, padded_rows, width, INTERPRETED: tl.constexpr):
    x = x.to(tl.float32)
    scale = scale_of(tl.max(tl.abs(x), axis=1))
    target = values_ptr + row.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(target, to_e4m3(x * inverse_of(scale)[:, None], INTERPRETED))
    tl.store(scales_ptr + (tl.min(column, axis=0) // 128).to(tl.int64) * padded_rows + row, scale)


@triton.jit
def _write_by_column(x, inverse, row, column, values_ptr, padded_rows, INTERPRETED: tl.constexpr):
    target = values_ptr + column.to(tl.int64)[None, :] * padded_rows + row[:, None]
    tl.store(target, to_e4m3(x.to(tl.float32) * inverse[None, :], INTERPRETED))


@triton.jit
def write_square(
    upper, lower, row, column, row_values_ptr, row_scales_ptr, column_values_ptr, column_scales_ptr, padded_rows, width,
    BY_ROW: tl.constexpr, BY_COLUMN: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Round a square with a scale for each 128 elements of a row or column, and write it for both products.

    It comes as two halves of 64 rows, in their own dtype, so that few registers hold it; `row` is the upper half's.
    """
    if BY_ROW:
        _write_by_row(upper, row, column, row_values_ptr, row_scales_ptr, padded_rows, width, INTERPRETED)
        _write_by_row(lower, row + 64, column, row_values_ptr, row_scales_ptr, padded_rows, width, INTERPRETED)
    if BY_COLUMN:
        largest = tl.maximum(tl.max(tl.abs(upper.to(tl.float32)), axis=0), tl.max(tl.abs(lower.to(tl.float32)), axis=0))
        scale = scale_of(largest)
        inverse = inverse_of(scale)
        _write_by_column(upper, inverse, row, column, column_values_ptr, padded_rows, INTERPRETED)
        _write_by_column(lower, inverse, row + 64, column, column_values_ptr, padded_rows, INTERPRETED)
        tl.store(column_scales_ptr + (tl.min(row, axis=0) // 128).to(tl.int64) * width + column, scale)


@triton.jit
def _largest_kernel(
    x_ptr, row_largest_ptr, column_largest_ptr, rows, stride, column_stride,
    GRAIN: tl.constexpr, BY_ROW: tl.constexpr, BY_COLUMN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * 128 + tl.arange(0, 128)
    column = tl.program_id(1) * 128 + tl.arange(0, 128)
    place = row.to(tl.int64)[:, None] * stride + column.to(tl.int64)[None, :] * column_stride
    size = tl.abs(tl.load(x_ptr + place, mask=(row < rows)[:, None], other=0.0).to(tl.float32))
    if GRAIN == 3:
        tl.atomic_max(row_largest_ptr, tl.max(tl.max(size, axis=1), axis=0).to(tl.int32, bitcast=True))
    else:
        if BY_ROW:
            tl.atomic_max(row_largest_ptr + row, tl.max(size, axis=1).to(tl.int32, bitcast=True))
        if BY_COLUMN:
            tl.atomic_max(column_largest_ptr + column, tl.max(size, axis=0).to(tl.int32, bitcast=True))


@triton.jit
def _quantise_kernel(
    x_ptr, row_largest_ptr, column_largest_ptr, row_values_ptr, row_scales_ptr, column_values_ptr, column_scales_ptr,
    rows, padded_rows, width, stride, column_stride, row_blocks, column_blocks,
    GRAIN: tl.constexpr, BY_ROW: tl.constexpr, BY_COLUMN: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(1) * 128 + tl.arange(0, 128)
    if GRAIN == 0:
        row = tl.program_id(0) * 128 + tl.arange(0, 64)
        place = x_ptr + row.to(tl.int64)[:, None] * stride + column.to(tl.int64)[None, :] * column_stride
        upper = tl.load(place, mask=(row < rows)[:, None], other=0.0)
        lower = tl.load(place + 64 * stride.to(tl.int64), mask=(row + 64 < rows)[:, None], other=0.0)
        write_square(
            upper, lower, row, column, row_values_ptr, row_scales_ptr, column_values_ptr, column_scales_ptr,
            padded_rows, width, BY_ROW, BY_COLUMN, INTERPRETED,
        )  # fmt: skip
    else:
        row = tl.program_id(0) * 128 + tl.arange(0, 128)
        place = row.to(tl.int64)[:, None] * stride + column.to(tl.int64)[None, :] * column_stride
        x = tl.load(x_ptr + place, mask=(row < rows)[:, None], other=0.0).to(tl.float32)
        row_target = row_values_ptr + row.to(tl.int64)[:, None] * width + column[None, :]
        column_target = column_values_ptr + column.to(tl.int64)[None, :] * padded_rows + row[:, None]
        if GRAIN == 2:
            if BY_ROW:
                scale = scale_of(tl.load(row_largest_ptr + row).to(tl.float32, bitcast=True))
                tl.store(row_target, to_e4m3(x * inverse_of(scale)[:, None], INTERPRETED))
                tl.store(row_scales_ptr + row, scale)
            if BY_COLUMN:
                scale = scale_of(tl.load(column_largest_ptr + column).to(tl.float32, bitcast=True))
                tl.store(column_target, to_e4m3(x * inverse_of(scale)[None, :], INTERPRETED))
                tl.store(column_scales_ptr + column, scale)
        else:
            if GRAIN == 1:
                scale = scale_of(tl.max(tl.max(tl.abs(x), axis=1), axis=0))
                if BY_ROW:
                    tl.store(row_scales_ptr + tl.program_id(0) * row_blocks + tl.program_id(1), scale)
                if BY_COLUMN:
                    tl.store(column_scales_ptr + tl.program_id(1) * column_blocks + tl.program_id(0), scale)
            else:
                scale = scale_of(tl.load(row_largest_ptr).to(tl.float32, bitcast=True))
                if BY_ROW:
                    tl.store(row_scales_ptr, scale)
                if BY_COLUMN:
                    tl.store(column_scales_ptr, scale)
            values = to_e4m3(x * inverse_of(scale), INTERPRETED)
            if BY_ROW:
                tl.store(row_target, values)
            if BY_COLUMN:
                tl.store(column_target, values)


def quantise_triton(x: Tensor, grain: Grain, by_row: bool, by_column: bool) -> Quantised:
    """The op in Triton; see `loong_kernels.ops.quantise.quantise` for the meaning."""
    rows, width = x.shape
    made = Quantised(
        empty_operand(padded(rows), width, grain, x.device) if by_row else None,
        empty_operand(width, padded(rows), grain, x.device) if by_column else None,
    )
    grid = (padded(rows) // TILE, width // TILE)
    if not rows:
        for operand in made:
            if operand is not None and grain in ("rows", "tensor"):
                operand.scales.fill_(1.0)
        return made
    row_largest = column_largest = torch.zeros(1, dtype=torch.int32, device=x.device)
    if grain == "rows":
        largest = torch.zeros(padded(rows) + width, dtype=torch.int32, device=x.device)
        row_largest, column_largest = largest[: padded(rows)], largest[padded(rows) :]
    if grain in ("rows", "tensor"):
        _largest_kernel[grid](
            x, row_largest, column_largest, rows, x.stride(0), x.stride(1), GRAINS[grain], by_row, by_column,
            num_warps=8,
        )  # fmt: skip
    row_values, row_scales, column_values, column_scales = pointers(made)
    _quantise_kernel[grid](
        x, row_largest, column_largest, row_values, row_scales, column_values, column_scales,
        rows, padded(rows), width, x.stride(0), x.stride(1), block_columns(width), block_columns(padded(rows)),
        GRAINS[grain], by_row, by_column, INTERPRETED=triton.knobs.runtime.interpret, **LAUNCH,
    )  # fmt: skip
    return made


def empty_operand(rows: int, summed: int, grain: Grain, device: torch.device) -> Operand:
    """An operand whose values are yet to be written; its scales' padding is 1."""
    values = torch.empty(rows, summed, dtype=E4M3, device=device)
    shape: tuple[int, ...] = (tiles_over(summed, TILE), rows)
    if grain == "blocks":
        return Operand(values, torch.ones(rows // TILE, block_columns(summed), device=device), grain)
    if grain != "tiles":
        shape = (rows,) if grain == "rows" else (1,)
    return Operand(values, torch.empty(shape, dtype=torch.float32, device=device), grain)


def pointers(made: Quantised) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Values and scales of both sides; of a side that is not wanted, the other's, which the kernel then leaves."""
    first = made.by_row or made.by_column
    second = made.by_column or made.by_row
    assert first is not None
    assert second is not None
    return first.values, first.scales, second.values, second.scales
