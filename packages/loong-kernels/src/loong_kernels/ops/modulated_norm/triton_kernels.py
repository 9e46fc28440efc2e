"""The modulated layer norm in Triton: a program holds whole vectors in registers; only the inputs are saved."""

# Triton types a kernel's arguments and adds launch options when it is launched.
# ruff: noqa: ANN001, ANN202
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from loong_kernels.tiles import covering_power_of_two, warps_for
from loong_kernels.triton_runs import (
    halvings,
    programs_of_a_run,
    run_of,
    with_contiguous_vectors,
)


@triton.jit
def _normed(x, mask, hidden, eps):
    """A vector less its mean, over its standard deviation, and one over the latter."""
    mean = tl.sum(x, axis=0) / hidden
    centred = tl.where(mask, x - mean, 0.0)
    inverse = tl.rsqrt((tl.sum(centred * centred, axis=0) / hidden + eps).to(tl.float32))
    return centred * inverse, inverse


@triton.jit
def _forward_kernel(
    x_ptr, scale_ptr, shift_ptr, bounds_ptr, out_ptr, x_stride, modulation_stride, hidden, runs, eps,
    STEPS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    mask = column < hidden
    of_run = run_of(token, bounds_ptr, runs, STEPS).to(tl.int64) * modulation_stride + column
    x = tl.load(x_ptr + token.to(tl.int64) * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    normed, _ = _normed(x, mask, hidden, eps)
    scale = tl.load(scale_ptr + of_run, mask=mask, other=0.0).to(tl.float32)
    shift = tl.load(shift_ptr + of_run, mask=mask, other=0.0).to(tl.float32)
    out = normed * (1.0 + scale) + shift
    tl.store(out_ptr + token.to(tl.int64) * hidden + column, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _backward_kernel(
    upstream_ptr, x_ptr, scale_ptr, bounds_ptr, x_gradient_ptr, parts_ptr, upstream_stride, x_stride,
    modulation_stride, hidden, eps, PROGRAMS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(0)
    program = tl.program_id(1)
    column = tl.arange(0, COLUMNS)
    mask = column < hidden
    scale = tl.load(scale_ptr + run.to(tl.int64) * modulation_stride + column, mask=mask, other=0.0).to(tl.float32)
    scale_part = tl.zeros((COLUMNS,), dtype=tl.float32)
    shift_part = tl.zeros((COLUMNS,), dtype=tl.float32)
    token = tl.load(bounds_ptr + run) + program
    end = tl.load(bounds_ptr + run + 1)
    while token < end:
        row = token.to(tl.int64)
        x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
        upstream = tl.load(upstream_ptr + row * upstream_stride + column, mask=mask, other=0.0).to(tl.float32)
        normed, inverse = _normed(x, mask, hidden, eps)
        scale_part += upstream * normed
        shift_part += upstream
        weighted = upstream * (1.0 + scale)
        along_ones = tl.sum(weighted, axis=0) / hidden
        along_normed = tl.sum(weighted * normed, axis=0) / hidden
        x_gradient = (weighted - along_ones - normed * along_normed) * inverse
        tl.store(x_gradient_ptr + row * hidden + column, x_gradient.to(x_gradient_ptr.dtype.element_ty), mask=mask)
        token += PROGRAMS
    part = (run * PROGRAMS + program).to(tl.int64) * 2 * hidden + column
    tl.store(parts_ptr + part, scale_part, mask=mask)
    tl.store(parts_ptr + part + hidden, shift_part, mask=mask)


def modulated_norm_triton(x: Tensor, scale: Tensor, shift: Tensor, bounds: Tensor, eps: float) -> Tensor:
    """The op in Triton; see `loong_kernels.modulated_norm` for the meaning."""
    return _ModulatedNorm.apply(x, scale, shift, bounds, eps)  # type: ignore[no-any-return]


class _ModulatedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, bounds: Tensor, eps: float) -> Tensor:
        x, scale, shift = (with_contiguous_vectors(each) for each in (x, scale, shift))
        if scale.stride(0) != shift.stride(0):
            scale, shift = scale.contiguous(), shift.contiguous()
        (tokens, hidden), runs = x.shape, scale.shape[0]
        out = torch.empty((tokens, hidden), dtype=x.dtype, device=x.device)
        columns = covering_power_of_two(hidden)
        if tokens:
            _forward_kernel[(tokens,)](
                x, scale, shift, bounds, out, x.stride(0), scale.stride(0), hidden, runs, eps,
                STEPS=halvings(runs), COLUMNS=columns, num_warps=warps_for(columns),
            )  # fmt: skip
        ctx.save_for_backward(x, scale, bounds)
        ctx.eps, ctx.shift_dtype = eps, shift.dtype
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, bounds = ctx.saved_tensors
        upstream = with_contiguous_vectors(gradients[0])
        (tokens, hidden), runs = x.shape, scale.shape[0]
        programs, columns = programs_of_a_run(runs, tokens), covering_power_of_two(hidden)
        x_gradient = torch.empty((tokens, hidden), dtype=x.dtype, device=x.device)
        parts = torch.empty((runs, programs, 2, hidden), dtype=torch.float32, device=x.device)
        if runs:
            _backward_kernel[(runs, programs)](
                upstream, x, scale, bounds, x_gradient, parts, upstream.stride(0), x.stride(0), scale.stride(0),
                hidden, ctx.eps, PROGRAMS=programs, COLUMNS=columns, num_warps=warps_for(columns),
            )  # fmt: skip
        of_scale, of_shift = parts.sum(1).unbind(1)
        return x_gradient, of_scale.to(scale.dtype), of_shift.to(ctx.shift_dtype), None, None
