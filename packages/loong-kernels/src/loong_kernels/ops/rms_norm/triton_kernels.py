"""RMSNorm in Triton: a program holds a few whole vectors in registers; nothing but the inputs is saved for backward."""

# Triton types a kernel's arguments and adds launch options when it is launched.
# ruff: noqa: ANN001, ANN201, ANN202
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from loong_kernels.tiles import covering_power_of_two, tiles_over

ELEMENTS_IN_REGISTERS = 1024
"""A program of the forward takes as many vectors as this allows, and at least one."""
BACKWARD_PROGRAMS = 1024
"""At most so many programs share the vectors in the backward; each leaves one partial sum of the weight's gradient."""


@triton.jit
def inverse_rms_of(x, hidden, eps):
    """One over the root mean square of each row of a block."""
    # The compiler passes Python floats as float64, an eager launch as float32.
    return tl.rsqrt((tl.sum(x * x, axis=1) / hidden + eps).to(tl.float32))


@triton.jit
def _forward_kernel(
    x_ptr, weight_ptr, out_ptr, rows, inner, stride_outer, stride_inner, hidden, eps,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)[None, :]
    mask = (row < rows)[:, None] & (column < hidden)
    wide_row = row.to(tl.int64)
    x_row = (wide_row // inner) * stride_outer + (wide_row % inner) * stride_inner
    x = tl.load(x_ptr + x_row[:, None] + column, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=column < hidden, other=0.0).to(tl.float32)
    inverse_rms = inverse_rms_of(x, hidden, eps)
    out = x * inverse_rms[:, None] * weight
    tl.store(out_ptr + wide_row[:, None] * hidden + column, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _backward_kernel(
    upstream_ptr, x_ptr, weight_ptr, x_gradient_ptr, weight_parts_ptr, rows,
    upstream_inner, upstream_stride_outer, upstream_stride_inner, x_inner, x_stride_outer, x_stride_inner,
    hidden, eps, BLOCKS_EACH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    column = tl.arange(0, COLUMNS)[None, :]
    weight = tl.load(weight_ptr + column, mask=column < hidden, other=0.0).to(tl.float32)
    weight_part = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for block in range(BLOCKS_EACH):
        row = (program * BLOCKS_EACH + block) * ROWS + tl.arange(0, ROWS)
        mask = (row < rows)[:, None] & (column < hidden)
        wide_row = row.to(tl.int64)
        x_row = (wide_row // x_inner) * x_stride_outer + (wide_row % x_inner) * x_stride_inner
        upstream_row = (wide_row // upstream_inner) * upstream_stride_outer + (
            wide_row % upstream_inner
        ) * upstream_stride_inner
        x = tl.load(x_ptr + x_row[:, None] + column, mask=mask, other=0.0).to(tl.float32)
        upstream = tl.load(upstream_ptr + upstream_row[:, None] + column, mask=mask, other=0.0).to(tl.float32)
        inverse_rms = inverse_rms_of(x, hidden, eps)[:, None]
        normed = x * inverse_rms
        weight_part += upstream * normed
        weighted = upstream * weight
        shared = tl.sum(weighted * normed, axis=1)[:, None] / hidden
        x_gradient = (weighted - normed * shared) * inverse_rms
        target = x_gradient_ptr + wide_row[:, None] * hidden + column
        tl.store(target, x_gradient.to(x_gradient_ptr.dtype.element_ty), mask=mask)
    part = tl.sum(weight_part, axis=0)[None, :]
    tl.store(weight_parts_ptr + program * hidden + column, part, mask=column < hidden)


def rms_norm_triton(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The op in Triton; see `loong_kernels.rms_norm` for the meaning."""
    return _RMSNorm.apply(x, weight, eps)  # type: ignore[no-any-return]


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rows = _Rows(x)
        weight = weight.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        block, warps = vectors_in_registers(rows.hidden)
        if rows.count:
            _forward_kernel[(tiles_over(rows.count, block["ROWS"]),)](
                rows.tensor, weight, out, rows.count, *rows.strides, rows.hidden, eps, **block,
                num_warps=warps,
            )  # fmt: skip
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        rows, upstream = _Rows(x), _Rows(gradients[0])
        block, warps = vectors_in_registers(rows.hidden)
        blocks = tiles_over(rows.count, block["ROWS"])
        blocks_each = covering_power_of_two(tiles_over(blocks, BACKWARD_PROGRAMS))  # few values: few compilations
        programs = tiles_over(blocks, blocks_each)
        x_gradient = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        weight_parts = torch.empty((programs, rows.hidden), dtype=torch.float32, device=x.device)
        if programs:
            _backward_kernel[(programs,)](
                upstream.tensor, rows.tensor, weight, x_gradient, weight_parts, rows.count,
                *upstream.strides, *rows.strides, rows.hidden, ctx.eps, blocks_each, **block,
                num_warps=warps,
            )  # fmt: skip
        return x_gradient, weight_parts.sum(0).to(weight.dtype), None


class _Rows:
    """A tensor `[..., hidden]` seen as rows: row `r` starts at `(r // inner) * outer + (r % inner) * stride`.

    Three-dimensional slices of a wider projection (queries or keys within it) are read where they lie; what else does
    not have contiguous vectors is copied.
    """

    def __init__(self, x: Tensor) -> None:
        x = x if x.stride(-1) == 1 else x.contiguous()
        x = x if x.ndim <= 3 else x.reshape(-1, x.shape[-1])
        self.tensor = x
        self.hidden = x.shape[-1]
        self.count = x.numel() // self.hidden
        if x.ndim == 3:
            self.strides = (x.shape[1], x.stride(0), x.stride(1))
        else:
            self.strides = (1, x.stride(0) if x.ndim == 2 else self.hidden, 0)


def vectors_in_registers(hidden: int) -> tuple[dict[str, int], int]:
    """How many vectors of `hidden` elements a program takes at once, as the kernels' arguments, and its warps."""
    columns = covering_power_of_two(hidden)
    block = {"ROWS": max(1, ELEMENTS_IN_REGISTERS // columns), "COLUMNS": columns}
    return block, min(16, max(4, block["ROWS"] * block["COLUMNS"] // 1024))
