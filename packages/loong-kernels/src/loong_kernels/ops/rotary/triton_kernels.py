"""Rotary embedding in Triton: a program rotates all heads of one token, queries and keys together.

The backward is the same kernel with the angles negated, for a rotation's transpose is its inverse; only `cos` and `sin`
are saved.
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

from loong_kernels.tiles import covering_power_of_two


@triton.jit
def _rotate_heads(
    x_ptr, out_ptr, stride_head, cos, sin, head_dim, HEADS: tl.constexpr,
    HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, REST_BLOCK: tl.constexpr, HEADS_BLOCK: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, HALF_BLOCK)[None, :]
    for start in range(0, HEADS, HEADS_BLOCK):
        head = start + tl.arange(0, HEADS_BLOCK)[:, None]
        source = x_ptr + head * stride_head
        target = out_ptr + head * head_dim
        mask = (head < HEADS) & (column < HALF)
        first = tl.load(source + column, mask=mask, other=0.0).to(tl.float32)
        second = tl.load(source + HALF + column, mask=mask, other=0.0).to(tl.float32)
        tl.store(target + column, (first * cos - second * sin).to(out_ptr.dtype.element_ty), mask=mask)
        tl.store(target + HALF + column, (second * cos + first * sin).to(out_ptr.dtype.element_ty), mask=mask)
        if REST_BLOCK > 0:
            rest = 2 * HALF + tl.arange(0, REST_BLOCK)[None, :]
            rest_mask = (head < HEADS) & (rest < head_dim)
            tl.store(target + rest, tl.load(source + rest, mask=rest_mask, other=0.0), mask=rest_mask)


@triton.jit
def _rotary_kernel(
    q_ptr, k_ptr, q_out_ptr, k_out_ptr, cos_ptr, sin_ptr,
    q_stride_token, q_stride_head, k_stride_token, k_stride_head, cos_stride, sin_stride, head_dim,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, NEGATE: tl.constexpr, HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr, REST_BLOCK: tl.constexpr, HEADS_BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, HALF_BLOCK)[None, :]
    cos = tl.load(cos_ptr + token * cos_stride + column, mask=column < HALF, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + token * sin_stride + column, mask=column < HALF, other=0.0).to(tl.float32)
    if NEGATE:
        sin = -sin
    _rotate_heads(
        q_ptr + token * q_stride_token, q_out_ptr + token * HEADS * head_dim, q_stride_head, cos, sin, head_dim, HEADS,
        HALF, HALF_BLOCK, REST_BLOCK, HEADS_BLOCK,
    )  # fmt: skip
    _rotate_heads(
        k_ptr + token * k_stride_token, k_out_ptr + token * KV_HEADS * head_dim, k_stride_head, cos, sin, head_dim,
        KV_HEADS, HALF, HALF_BLOCK, REST_BLOCK, HEADS_BLOCK,
    )  # fmt: skip


def rotary_triton(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The op in Triton; see `loong_kernels.rotary` for the meaning."""
    return _Rotary.apply(q, k, cos, sin)  # type: ignore[no-any-return]


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = _with_contiguous_vectors(cos), _with_contiguous_vectors(sin)
        ctx.save_for_backward(cos, sin)
        return _launch(q, k, cos, sin, negate=False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return *_launch(gradients[0], gradients[1], cos, sin, negate=True), None, None


def _launch(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, negate: bool) -> tuple[Tensor, Tensor]:
    q, k = _with_contiguous_vectors(q), _with_contiguous_vectors(k)
    tokens, heads, head_dim = q.shape
    half = cos.shape[-1]
    q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    k_out = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    rest = head_dim - 2 * half
    if tokens:
        _rotary_kernel[(tokens,)](
            q, k, q_out, k_out, cos, sin,
            q.stride(0), q.stride(1), k.stride(0), k.stride(1), cos.stride(0), sin.stride(0),
            head_dim, HEADS=heads, KV_HEADS=k.shape[1], NEGATE=negate,
            HALF=half, HALF_BLOCK=covering_power_of_two(half),
            REST_BLOCK=covering_power_of_two(rest) if rest else 0,
            HEADS_BLOCK=min(16, covering_power_of_two(max(heads, k.shape[1]))),
        )  # fmt: skip
    return q_out, k_out


def _with_contiguous_vectors(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
