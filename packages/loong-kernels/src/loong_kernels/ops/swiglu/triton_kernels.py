"""SwiGLU in Triton: one pass over the fused projection forward, one backward; only the projection is saved."""

# Triton types a kernel's arguments and adds launch options when it is launched.
# ruff: noqa: ANN001, ANN202
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from loong_kernels.tiles import tiles_over

COLUMNS = 1024


@triton.jit
def _forward_kernel(gate_up_ptr, out_ptr, stride, intermediate, COLUMNS: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < intermediate
    gate = tl.load(gate_up_ptr + token * stride + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + token * stride + intermediate + column, mask=mask, other=0.0).to(tl.float32)
    out = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + token * intermediate + column, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _backward_kernel(
    upstream_ptr, gate_up_ptr, gradient_ptr, upstream_stride, stride, intermediate, COLUMNS: tl.constexpr
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < intermediate
    gate = tl.load(gate_up_ptr + token * stride + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + token * stride + intermediate + column, mask=mask, other=0.0).to(tl.float32)
    upstream = tl.load(upstream_ptr + token * upstream_stride + column, mask=mask, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    gate_gradient = upstream * up * sigmoid * (1 + gate * (1 - sigmoid))
    up_gradient = upstream * gate * sigmoid
    target = gradient_ptr + token * 2 * intermediate + column
    tl.store(target, gate_gradient.to(gradient_ptr.dtype.element_ty), mask=mask)
    tl.store(target + intermediate, up_gradient.to(gradient_ptr.dtype.element_ty), mask=mask)


def swiglu_triton(gate_up: Tensor) -> Tensor:
    """The op in Triton; see `loong_kernels.swiglu` for the meaning."""
    return _SwiGLU.apply(gate_up)  # type: ignore[no-any-return]


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate_up = _with_contiguous_vectors(gate_up)
        tokens, intermediate = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty((tokens, intermediate), dtype=gate_up.dtype, device=gate_up.device)
        if tokens:
            _forward_kernel[_grid(tokens, intermediate)](gate_up, out, gate_up.stride(0), intermediate, COLUMNS)
        ctx.save_for_backward(gate_up)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor]:
        (gate_up,) = ctx.saved_tensors
        upstream = _with_contiguous_vectors(gradients[0])
        tokens, intermediate = upstream.shape
        gradient = torch.empty(gate_up.shape, dtype=gate_up.dtype, device=gate_up.device)
        if tokens:
            _backward_kernel[_grid(tokens, intermediate)](
                upstream, gate_up, gradient, upstream.stride(0), gate_up.stride(0), intermediate, COLUMNS
            )
        return (gradient,)


def _with_contiguous_vectors(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _grid(tokens: int, intermediate: int) -> tuple[int, int]:
    return (tokens, tiles_over(intermediate, COLUMNS))
