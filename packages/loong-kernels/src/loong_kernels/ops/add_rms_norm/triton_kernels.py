"""Sum and RMSNorm in Triton: both inputs are read once, and the total is all that is saved for backward.

The backward adds what comes to the total itself, so the one gradient it makes is that of both inputs.
"""

# Triton types a kernel's arguments and adds launch options when it is launched.
# ruff: noqa: ANN001, ANN202
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from loong_kernels.ops.rms_norm.triton_kernels import BACKWARD_PROGRAMS, inverse_rms_of, vectors_in_registers
from loong_kernels.tiles import covering_power_of_two, tiles_over


@triton.jit
def _forward_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, total_ptr, rows, x_stride, residual_stride, hidden, eps,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    mask = (row < rows) & (column < hidden)
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + row * residual_stride + column, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=column < hidden, other=0.0).to(tl.float32)
    total = (residual + x).to(total_ptr.dtype.element_ty)
    tl.store(total_ptr + row * hidden + column, total, mask=mask)
    total = total.to(tl.float32)
    out = total * inverse_rms_of(total, hidden, eps)[:, None] * weight
    tl.store(out_ptr + row * hidden + column, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _backward_kernel(
    out_upstream_ptr, total_upstream_ptr, total_ptr, weight_ptr, gradient_ptr, weight_parts_ptr, rows,
    out_stride, total_stride, hidden, eps, HAS_TOTAL: tl.constexpr, BLOCKS_EACH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    column = tl.arange(0, COLUMNS)[None, :]
    weight = tl.load(weight_ptr + column, mask=column < hidden, other=0.0).to(tl.float32)
    weight_part = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for block in range(BLOCKS_EACH):
        row = ((program * BLOCKS_EACH + block) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        mask = (row < rows) & (column < hidden)
        total = tl.load(total_ptr + row * hidden + column, mask=mask, other=0.0).to(tl.float32)
        upstream = tl.load(out_upstream_ptr + row * out_stride + column, mask=mask, other=0.0).to(tl.float32)
        added = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        if HAS_TOTAL:  # every load is under way before the first sum waits for one
            added = tl.load(total_upstream_ptr + row * total_stride + column, mask=mask, other=0.0).to(tl.float32)
        weighted = upstream * weight
        shared = tl.sum(weighted * total, axis=1)[:, None] / hidden
        inverse_rms = inverse_rms_of(total, hidden, eps)[:, None]
        normed = total * inverse_rms
        weight_part += upstream * normed
        gradient = (weighted - normed * (shared * inverse_rms)) * inverse_rms + added
        tl.store(gradient_ptr + row * hidden + column, gradient.to(gradient_ptr.dtype.element_ty), mask=mask)
    part = tl.sum(weight_part, axis=0)[None, :]
    tl.store(weight_parts_ptr + program * hidden + column, part, mask=column < hidden)


def add_rms_norm_triton(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The op in Triton; see `loong_kernels.add_rms_norm` for the meaning."""
    return _AddRMSNorm.apply(x, residual, weight, eps)  # type: ignore[no-any-return]


class _AddRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        x, residual, weight = _rows_of(x), _rows_of(residual), weight.contiguous()
        rows, hidden = x.shape
        out, total = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
        block, warps = vectors_in_registers(hidden)
        if rows:
            _forward_kernel[(tiles_over(rows, block["ROWS"]),)](
                x, residual, weight, out, total, rows, x.stride(0), residual.stride(0), hidden, eps, **block,
                num_warps=warps,
            )  # fmt: skip
        ctx.save_for_backward(total, weight)
        ctx.eps = eps
        ctx.set_materialize_grads(False)
        return out, total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        total, weight = ctx.saved_tensors
        out_upstream, total_upstream = gradients
        if out_upstream is None:
            return total_upstream, total_upstream, None, None
        out_upstream = _rows_of(out_upstream)
        rows, hidden = total.shape
        block, warps = vectors_in_registers(hidden)
        blocks = tiles_over(rows, block["ROWS"])
        blocks_each = covering_power_of_two(tiles_over(blocks, BACKWARD_PROGRAMS))  # few values: few compilations
        programs = tiles_over(blocks, blocks_each)
        gradient = torch.empty_like(total)
        weight_parts = torch.empty((programs, hidden), dtype=torch.float32, device=total.device)
        also = out_upstream if total_upstream is None else _rows_of(total_upstream)
        if programs:
            _backward_kernel[(programs,)](
                out_upstream, also, total, weight, gradient, weight_parts, rows,
                out_upstream.stride(0), also.stride(0), hidden, ctx.eps, total_upstream is not None,
                blocks_each, **block, num_warps=2 * warps if warps < 8 else warps,
            )  # fmt: skip
        return gradient, gradient, weight_parts.sum(0).to(weight.dtype), None


def _rows_of(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
