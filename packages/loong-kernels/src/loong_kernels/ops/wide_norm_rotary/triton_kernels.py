"""Norm over all heads and interleaved rotary embedding in Triton: a program holds a token's even and odd elements."""

# Triton types a kernel's arguments and adds launch options when it is launched.
# ruff: noqa: ANN001, ANN202
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from loong_kernels.tiles import covering_power_of_two, tiles_over, warps_for

BACKWARD_PROGRAMS = 1024
"""At most so many programs share the tokens in the backward; each leaves one partial sum of the weight's gradient."""


@triton.jit
def _forward_kernel(
    x_ptr, weight_ptr, cos_ptr, sin_ptr, out_ptr, x_stride, cos_stride, sin_stride, width, half, eps,
    PAIRS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, PAIRS)
    mask = 2 * pair < width
    even = tl.load(x_ptr + row * x_stride + 2 * pair, mask=mask, other=0.0).to(tl.float32)
    odd = tl.load(x_ptr + row * x_stride + 2 * pair + 1, mask=mask, other=0.0).to(tl.float32)
    mean_square = (tl.sum(even * even, axis=0) + tl.sum(odd * odd, axis=0)) / width
    inverse = tl.rsqrt((mean_square + eps).to(tl.float32))
    even *= inverse * tl.load(weight_ptr + 2 * pair, mask=mask, other=0.0).to(tl.float32)
    odd *= inverse * tl.load(weight_ptr + 2 * pair + 1, mask=mask, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + row * cos_stride + pair % half, mask=mask, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + row * sin_stride + pair % half, mask=mask, other=0.0).to(tl.float32)
    out = out_ptr + row * width + 2 * pair
    tl.store(out, (even * cos - odd * sin).to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(out + 1, (even * sin + odd * cos).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _backward_kernel(
    upstream_ptr, x_ptr, weight_ptr, cos_ptr, sin_ptr, x_gradient_ptr, parts_ptr, tokens, x_stride, cos_stride,
    sin_stride, width, half, eps, TOKENS_EACH: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    pair = tl.arange(0, PAIRS)
    inside = 2 * pair < width
    even_weight = tl.load(weight_ptr + 2 * pair, mask=inside, other=0.0).to(tl.float32)
    odd_weight = tl.load(weight_ptr + 2 * pair + 1, mask=inside, other=0.0).to(tl.float32)
    even_part = tl.zeros((PAIRS,), dtype=tl.float32)
    odd_part = tl.zeros((PAIRS,), dtype=tl.float32)
    for number in range(TOKENS_EACH):
        token = program * TOKENS_EACH + number
        row = token.to(tl.int64)
        mask = inside & (token < tokens)
        even = tl.load(x_ptr + row * x_stride + 2 * pair, mask=mask, other=0.0).to(tl.float32)
        odd = tl.load(x_ptr + row * x_stride + 2 * pair + 1, mask=mask, other=0.0).to(tl.float32)
        mean_square = (tl.sum(even * even, axis=0) + tl.sum(odd * odd, axis=0)) / width
        inverse = tl.rsqrt((mean_square + eps).to(tl.float32))
        even *= inverse
        odd *= inverse
        cos = tl.load(cos_ptr + row * cos_stride + pair % half, mask=mask, other=0.0).to(tl.float32)
        sin = tl.load(sin_ptr + row * sin_stride + pair % half, mask=mask, other=0.0).to(tl.float32)
        first = tl.load(upstream_ptr + row * width + 2 * pair, mask=mask, other=0.0).to(tl.float32)
        second = tl.load(upstream_ptr + row * width + 2 * pair + 1, mask=mask, other=0.0).to(tl.float32)
        even_up = first * cos + second * sin
        odd_up = second * cos - first * sin
        even_part += even_up * even
        odd_part += odd_up * odd
        even_up *= even_weight
        odd_up *= odd_weight
        along = (tl.sum(even_up * even, axis=0) + tl.sum(odd_up * odd, axis=0)) / width
        target = x_gradient_ptr + row * width + 2 * pair
        tl.store(target, ((even_up - even * along) * inverse).to(x_gradient_ptr.dtype.element_ty), mask=mask)
        tl.store(target + 1, ((odd_up - odd * along) * inverse).to(x_gradient_ptr.dtype.element_ty), mask=mask)
    tl.store(parts_ptr + program.to(tl.int64) * width + 2 * pair, even_part, mask=inside)
    tl.store(parts_ptr + program.to(tl.int64) * width + 2 * pair + 1, odd_part, mask=inside)


def wide_norm_rotary_triton(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """The op in Triton; see `loong_kernels.wide_norm_rotary` for the meaning."""
    return _WideNormRotary.apply(x, weight, cos, sin, eps)  # type: ignore[no-any-return]


class _WideNormRotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
        x, cos, sin = (each if each.stride(-1) == 1 else each.contiguous() for each in (x, cos, sin))
        weight = weight.contiguous()
        (tokens, width), half = x.shape, cos.shape[1]
        out = torch.empty((tokens, width // (2 * half), 2 * half), dtype=x.dtype, device=x.device)
        if tokens:
            _forward_kernel[(tokens,)](
                x, weight, cos, sin, out, x.stride(0), cos.stride(0), sin.stride(0), width, half, eps,
                PAIRS=_pairs(width), num_warps=warps_for(_pairs(width)),
            )  # fmt: skip
        ctx.save_for_backward(x, weight, cos, sin)
        ctx.eps = eps
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, cos, sin = ctx.saved_tensors
        upstream = gradients[0].contiguous()
        (tokens, width), half = x.shape, cos.shape[1]
        tokens_each = covering_power_of_two(tiles_over(tokens, BACKWARD_PROGRAMS))  # few values: few compilations
        programs = tiles_over(tokens, tokens_each)
        x_gradient = torch.empty((tokens, width), dtype=x.dtype, device=x.device)
        parts = torch.empty((programs, width), dtype=torch.float32, device=x.device)
        if tokens:
            _backward_kernel[(programs,)](
                upstream, x, weight, cos, sin, x_gradient, parts, tokens, x.stride(0), cos.stride(0), sin.stride(0),
                width, half, ctx.eps, TOKENS_EACH=tokens_each, PAIRS=_pairs(width), num_warps=warps_for(_pairs(width)),
            )  # fmt: skip
        return x_gradient, parts.sum(0).to(weight.dtype), None, None, None


def _pairs(width: int) -> int:
    return covering_power_of_two(width // 2)
