"""The gated sum in Triton: one pass over the tokens each way."""

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
def _forward_kernel(
    stream_ptr, branch_ptr, gate_ptr, bounds_ptr, out_ptr, stream_stride, branch_stride, gate_stride, hidden, runs,
    STEPS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    mask = column < hidden
    row = token.to(tl.int64)
    run = run_of(token, bounds_ptr, runs, STEPS).to(tl.int64)
    stream = tl.load(stream_ptr + row * stream_stride + column, mask=mask, other=0.0).to(tl.float32)
    branch = tl.load(branch_ptr + row * branch_stride + column, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + run * gate_stride + column, mask=mask, other=0.0).to(tl.float32)
    out = stream + branch * gate
    tl.store(out_ptr + row * hidden + column, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _backward_kernel(
    upstream_ptr, branch_ptr, gate_ptr, bounds_ptr, branch_gradient_ptr, parts_ptr, upstream_stride, branch_stride,
    gate_stride, hidden, PROGRAMS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(0)
    program = tl.program_id(1)
    column = tl.arange(0, COLUMNS)
    mask = column < hidden
    gate = tl.load(gate_ptr + run.to(tl.int64) * gate_stride + column, mask=mask, other=0.0).to(tl.float32)
    gate_part = tl.zeros((COLUMNS,), dtype=tl.float32)
    token = tl.load(bounds_ptr + run) + program
    end = tl.load(bounds_ptr + run + 1)
    while token < end:
        row = token.to(tl.int64)
        upstream = tl.load(upstream_ptr + row * upstream_stride + column, mask=mask, other=0.0).to(tl.float32)
        branch = tl.load(branch_ptr + row * branch_stride + column, mask=mask, other=0.0).to(tl.float32)
        gate_part += upstream * branch
        gradient = (upstream * gate).to(branch_gradient_ptr.dtype.element_ty)
        tl.store(branch_gradient_ptr + row * hidden + column, gradient, mask=mask)
        token += PROGRAMS
    tl.store(parts_ptr + (run * PROGRAMS + program).to(tl.int64) * hidden + column, gate_part, mask=mask)


def gated_add_triton(stream: Tensor, branch: Tensor, gate: Tensor, bounds: Tensor) -> Tensor:
    """The op in Triton; see `loong_kernels.gated_add` for the meaning."""
    return _GatedAdd.apply(stream, branch, gate, bounds)  # type: ignore[no-any-return]


class _GatedAdd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stream: Tensor, branch: Tensor, gate: Tensor, bounds: Tensor) -> Tensor:
        stream, branch, gate = (with_contiguous_vectors(each) for each in (stream, branch, gate))
        (tokens, hidden), runs = stream.shape, gate.shape[0]
        out = torch.empty((tokens, hidden), dtype=stream.dtype, device=stream.device)
        columns = covering_power_of_two(hidden)
        if tokens:
            _forward_kernel[(tokens,)](
                stream, branch, gate, bounds, out, stream.stride(0), branch.stride(0), gate.stride(0), hidden, runs,
                STEPS=halvings(runs), COLUMNS=columns, num_warps=warps_for(columns),
            )  # fmt: skip
        ctx.save_for_backward(branch, gate, bounds)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        branch, gate, bounds = ctx.saved_tensors
        upstream = with_contiguous_vectors(gradients[0])
        (tokens, hidden), runs = branch.shape, gate.shape[0]
        programs, columns = programs_of_a_run(runs, tokens), covering_power_of_two(hidden)
        branch_gradient = torch.empty((tokens, hidden), dtype=branch.dtype, device=branch.device)
        parts = torch.empty((runs, programs, hidden), dtype=torch.float32, device=branch.device)
        if runs:
            _backward_kernel[(runs, programs)](
                upstream, branch, gate, bounds, branch_gradient, parts, upstream.stride(0), branch.stride(0),
                gate.stride(0), hidden, PROGRAMS=programs, COLUMNS=columns, num_warps=warps_for(columns),
            )  # fmt: skip
        return gradients[0], branch_gradient, parts.sum(1).to(gate.dtype), None
