"""Grouped 8-bit products in Triton: a program makes a tile of one expert's result, which it finds from the offsets.

Each 128 elements of the sum are multiplied by the tensor cores without scales and added to a float32 sum with theirs.
"""

# Triton types a kernel's arguments and adds launch options when it is launched.
# ruff: noqa: ANN001, ANN202
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from loong_kernels.fp8.formats import Operand
from loong_kernels.tiles import covering_power_of_two

ROWS = 64
LAUNCH = {"num_warps": 4, "num_stages": 3}
"""Several programs on a multiprocessor: some scale while another multiplies."""


@triton.jit
def _product_kernel(
    left_values, left_scales_ptr, right_values, right_scales_ptr, offsets_ptr, out_ptr,
    left_rows, columns, expert_scales, scales_stride, experts,
    SIDE_BY_SIDE: tl.constexpr, BLOCKS: tl.constexpr, EXPERTS: tl.constexpr, ROWS: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    column_tiles = columns // 128
    column_tile = tl.program_id(0) % column_tiles
    tile = tl.program_id(0) // column_tiles
    number = tl.arange(0, EXPERTS)
    known = number < experts
    ends = tl.load(offsets_ptr + number, mask=known, other=0)
    starts = tl.load(offsets_ptr + number - 1, mask=known & (number > 0), other=0)
    tiles = tl.where(known, (ends - starts + ROWS - 1) // ROWS, 0)
    last = tl.cumsum(tiles, axis=0)
    expert = tl.sum(tl.where(known & (last <= tile), 1, 0), axis=0)
    if expert < experts:
        own = number == expert
        within = tile - tl.sum(tl.where(own, last - tiles, 0), axis=0)
        first = tl.sum(tl.where(own, starts, 0), axis=0) + within * ROWS
        row = first + tl.arange(0, ROWS)
        held = row < tl.sum(tl.where(own, ends, 0), axis=0)
        # Where this expert's matrix begins. Rows of `left` after its own are the next expert's, and are not stored.
        top, beginning = expert * columns, 0
        if SIDE_BY_SIDE:
            top, beginning = 0, expert * (BLOCKS * 128)
        top += column_tile * 128
        left_scales = left_scales_ptr + row
        right_scales = right_scales_ptr + expert * expert_scales + column_tile * scales_stride
        total = tl.zeros((ROWS, 128), dtype=tl.float32)
        for block in range(BLOCKS):
            a = left_values.load([first, block * 128])
            b = right_values.load([top, beginning + block * 128])
            if INTERPRETED:
                product = tl.dot(a.to(tl.float32), tl.trans(b.to(tl.float32)), input_precision="ieee")
            else:
                product = tl.dot(a, tl.trans(b))
            scale = tl.load(left_scales, mask=held, other=0.0) * tl.load(right_scales)
            total += product * scale[:, None]
            left_scales += left_rows
            right_scales += 1
        column = column_tile * 128 + tl.arange(0, 128)
        target = out_ptr + row.to(tl.int64)[:, None] * columns + column[None, :]
        tl.store(target, total.to(out_ptr.dtype.element_ty), mask=held[:, None])


def grouped_scaled_product_triton(
    left: Operand, rows: int, right: Operand, offsets: Tensor, dtype: torch.dtype, side_by_side: bool
) -> Tensor:
    """The op in Triton; see `loong_kernels.ops.grouped_scaled_product` for the meaning."""
    experts, summed = offsets.shape[0], left.values.shape[1]
    columns = right.values.shape[0] if side_by_side else right.values.shape[0] // experts
    out = torch.empty(rows, columns, dtype=dtype, device=offsets.device)
    if rows:
        # At most one tile of each expert is not full.
        most_tiles = rows // ROWS + min(experts, rows)
        scales_stride = right.scales.shape[1]
        _product_kernel[(most_tiles * columns // 128,)](
            TensorDescriptor.from_tensor(left.values, [ROWS, 128]), left.scales,
            TensorDescriptor.from_tensor(right.values, [128, 128]), right.scales, offsets, out,
            left.values.shape[0], columns,
            summed // 128 if side_by_side else columns // 128 * scales_stride, scales_stride, experts,
            side_by_side, summed // 128, covering_power_of_two(experts), ROWS,
            INTERPRETED=triton.knobs.runtime.interpret, **LAUNCH,
        )  # fmt: skip
    return out
