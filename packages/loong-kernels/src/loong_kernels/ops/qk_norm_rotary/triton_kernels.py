"""Split, norms and rotary embedding in Triton: a program takes all query and key heads of some tokens.

A head is held as the two halves of its rotated part and the rest, so that partners are in the same place. The forward
reads the projection where it lies; the backward reads it again, and writes the whole gradient of the projection, the
values' part included, so nothing has to be put together afterwards.
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

from loong_kernels.ops.qk_norm_rotary.layout import HeadLayout
from loong_kernels.tiles import covering_power_of_two, tiles_over

BACKWARD_PROGRAMS = 1056
"""At most so many programs share the tokens in the backward; each leaves one partial sum of the weights' gradients."""
ELEMENTS_AT_ONCE = 4096
"""A program takes as many heads at once as this allows."""


@triton.jit
def _norm(first, second, rest, head_dim, eps, REST: tl.constexpr):
    squares = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
    if REST > 0:
        squares += tl.sum(rest * rest, axis=1)
    return tl.rsqrt((squares / head_dim + eps).to(tl.float32))[:, None]


@triton.jit
def _forward_heads(
    x_ptr, out_ptr, weight_ptr, cos, sin, head_dim, eps, HEADS: tl.constexpr, NORM: tl.constexpr,
    HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, REST: tl.constexpr, REST_BLOCK: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, HALF_BLOCK)[None, :]
    rest_column = 2 * HALF + tl.arange(0, REST_BLOCK)[None, :]
    for start in range(0, HEADS, HEADS_BLOCK):
        head = start + tl.arange(0, HEADS_BLOCK)[:, None]
        mask = (head < HEADS) & (column < HALF)
        rest_mask = (head < HEADS) & (rest_column < head_dim)
        source = x_ptr + head * head_dim
        target = out_ptr + head * head_dim
        first = tl.load(source + column, mask=mask, other=0.0).to(tl.float32)
        second = tl.load(source + HALF + column, mask=mask, other=0.0).to(tl.float32)
        rest = first
        if REST > 0:
            rest = tl.load(source + rest_column, mask=rest_mask, other=0.0).to(tl.float32)
        if NORM:
            inverse_rms = _norm(first, second, rest, head_dim, eps, REST)
            first *= inverse_rms * tl.load(weight_ptr + column, mask=column < HALF, other=0.0).to(tl.float32)
            second *= inverse_rms * tl.load(weight_ptr + HALF + column, mask=column < HALF, other=0.0).to(tl.float32)
            if REST > 0:
                weight = tl.load(weight_ptr + rest_column, mask=rest_column < head_dim, other=0.0).to(tl.float32)
                rest *= inverse_rms * weight
        tl.store(target + column, (first * cos - second * sin).to(out_ptr.dtype.element_ty), mask=mask)
        tl.store(target + HALF + column, (second * cos + first * sin).to(out_ptr.dtype.element_ty), mask=mask)
        if REST > 0:
            tl.store(target + rest_column, rest.to(out_ptr.dtype.element_ty), mask=rest_mask)


@triton.jit
def _forward_kernel(
    qkv_ptr, q_ptr, k_ptr, q_weight_ptr, k_weight_ptr, cos_ptr, sin_ptr,
    stride, cos_stride, sin_stride, head_dim, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, NORM: tl.constexpr, HALF: tl.constexpr, HALF_BLOCK: tl.constexpr,
    REST: tl.constexpr, REST_BLOCK: tl.constexpr, HEADS_BLOCK: tl.constexpr, KV_BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, HALF_BLOCK)[None, :]
    cos = tl.load(cos_ptr + token * cos_stride + column, mask=column < HALF, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + token * sin_stride + column, mask=column < HALF, other=0.0).to(tl.float32)
    x_ptr = qkv_ptr + token * stride
    _forward_heads(
        x_ptr, q_ptr + token * HEADS * head_dim, q_weight_ptr, cos, sin, head_dim, eps, HEADS, NORM,
        HALF, HALF_BLOCK, REST, REST_BLOCK, HEADS_BLOCK,
    )  # fmt: skip
    _forward_heads(
        x_ptr + HEADS * head_dim, k_ptr + token * KV_HEADS * head_dim, k_weight_ptr, cos, sin, head_dim, eps,
        KV_HEADS, NORM, HALF, HALF_BLOCK, REST, REST_BLOCK, KV_BLOCK,
    )  # fmt: skip


@triton.jit
def _backward_heads(
    upstream_ptr, stride_head, x_ptr, gradient_ptr, weight_ptr, cos, sin, head_dim, eps,
    first_part, second_part, rest_part, live,
    HEADS: tl.constexpr, NORM: tl.constexpr, HALF: tl.constexpr, HALF_BLOCK: tl.constexpr,
    REST: tl.constexpr, REST_BLOCK: tl.constexpr, HEADS_BLOCK: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, HALF_BLOCK)[None, :]
    rest_column = 2 * HALF + tl.arange(0, REST_BLOCK)[None, :]
    for start in range(0, HEADS, HEADS_BLOCK):
        head = start + tl.arange(0, HEADS_BLOCK)[:, None]
        mask = (head < HEADS) & (column < HALF) & live
        rest_mask = (head < HEADS) & (rest_column < head_dim) & live
        upstream = upstream_ptr + head * stride_head
        rotated_first = tl.load(upstream + column, mask=mask, other=0.0).to(tl.float32)
        rotated_second = tl.load(upstream + HALF + column, mask=mask, other=0.0).to(tl.float32)
        first_up = rotated_first * cos + rotated_second * sin
        second_up = rotated_second * cos - rotated_first * sin
        rest_up = first_up
        if REST > 0:
            rest_up = tl.load(upstream + rest_column, mask=rest_mask, other=0.0).to(tl.float32)
        if NORM:
            source = x_ptr + head * head_dim
            first = tl.load(source + column, mask=mask, other=0.0).to(tl.float32)
            second = tl.load(source + HALF + column, mask=mask, other=0.0).to(tl.float32)
            rest = first
            if REST > 0:
                rest = tl.load(source + rest_column, mask=rest_mask, other=0.0).to(tl.float32)
            inverse_rms = _norm(first, second, rest, head_dim, eps, REST)
            first *= inverse_rms
            second *= inverse_rms
            first_part += first_up * first
            second_part += second_up * second
            first_up *= tl.load(weight_ptr + column, mask=column < HALF, other=0.0).to(tl.float32)
            second_up *= tl.load(weight_ptr + HALF + column, mask=column < HALF, other=0.0).to(tl.float32)
            shared = tl.sum(first_up * first, axis=1) + tl.sum(second_up * second, axis=1)
            if REST > 0:
                rest *= inverse_rms
                rest_part += rest_up * rest
                rest_up *= tl.load(weight_ptr + rest_column, mask=rest_column < head_dim, other=0.0).to(tl.float32)
                shared += tl.sum(rest_up * rest, axis=1)
            shared = (shared / head_dim)[:, None]
            first_up = (first_up - first * shared) * inverse_rms
            second_up = (second_up - second * shared) * inverse_rms
            if REST > 0:
                rest_up = (rest_up - rest * shared) * inverse_rms
        target = gradient_ptr + head * head_dim
        tl.store(target + column, first_up.to(gradient_ptr.dtype.element_ty), mask=mask)
        tl.store(target + HALF + column, second_up.to(gradient_ptr.dtype.element_ty), mask=mask)
        if REST > 0:
            tl.store(target + rest_column, rest_up.to(gradient_ptr.dtype.element_ty), mask=rest_mask)
    return first_part, second_part, rest_part


@triton.jit
def _store_part(
    parts_ptr, first_part, second_part, rest_part, head_dim,
    HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, REST: tl.constexpr, REST_BLOCK: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, HALF_BLOCK)
    tl.store(parts_ptr + column, tl.sum(first_part, axis=0), mask=column < HALF)
    tl.store(parts_ptr + HALF + column, tl.sum(second_part, axis=0), mask=column < HALF)
    if REST > 0:
        rest_column = 2 * HALF + tl.arange(0, REST_BLOCK)
        tl.store(parts_ptr + rest_column, tl.sum(rest_part, axis=0), mask=rest_column < head_dim)


@triton.jit
def _backward_kernel(
    q_up_ptr, k_up_ptr, v_up_ptr, qkv_ptr, gradient_ptr, q_weight_ptr, k_weight_ptr, cos_ptr, sin_ptr, parts_ptr,
    tokens, q_token, q_head, k_token, k_head, v_token, v_head, stride, cos_stride, sin_stride, head_dim, eps,
    TOKENS_EACH: tl.constexpr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, NORM: tl.constexpr, HALF: tl.constexpr, HALF_BLOCK: tl.constexpr,
    REST: tl.constexpr, REST_BLOCK: tl.constexpr, HEADS_BLOCK: tl.constexpr, KV_BLOCK: tl.constexpr,
    VALUES_BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    column = tl.arange(0, HALF_BLOCK)[None, :]
    q_first = tl.zeros((HEADS_BLOCK, HALF_BLOCK), dtype=tl.float32)
    q_second = tl.zeros((HEADS_BLOCK, HALF_BLOCK), dtype=tl.float32)
    q_rest = tl.zeros((HEADS_BLOCK, REST_BLOCK), dtype=tl.float32)
    k_first = tl.zeros((KV_BLOCK, HALF_BLOCK), dtype=tl.float32)
    k_second = tl.zeros((KV_BLOCK, HALF_BLOCK), dtype=tl.float32)
    k_rest = tl.zeros((KV_BLOCK, REST_BLOCK), dtype=tl.float32)
    for index in range(TOKENS_EACH):
        token = (program * TOKENS_EACH + index).to(tl.int64)
        live = token < tokens
        angle_mask = (column < HALF) & live
        cos = tl.load(cos_ptr + token * cos_stride + column, mask=angle_mask, other=0.0).to(tl.float32)
        sin = tl.load(sin_ptr + token * sin_stride + column, mask=angle_mask, other=0.0).to(tl.float32)
        x_ptr = qkv_ptr + token * stride
        target_ptr = gradient_ptr + token * (HEADS + 2 * KV_HEADS) * head_dim
        q_first, q_second, q_rest = _backward_heads(
            q_up_ptr + token * q_token, q_head, x_ptr, target_ptr, q_weight_ptr, cos, sin, head_dim, eps,
            q_first, q_second, q_rest, live, HEADS, NORM, HALF, HALF_BLOCK, REST, REST_BLOCK, HEADS_BLOCK,
        )  # fmt: skip
        k_first, k_second, k_rest = _backward_heads(
            k_up_ptr + token * k_token, k_head, x_ptr + HEADS * head_dim, target_ptr + HEADS * head_dim, k_weight_ptr,
            cos, sin, head_dim, eps, k_first, k_second, k_rest, live, KV_HEADS, NORM, HALF, HALF_BLOCK,
            REST, REST_BLOCK, KV_BLOCK,
        )  # fmt: skip
        element = tl.arange(0, VALUES_BLOCK)
        values_mask = (element < KV_HEADS * head_dim) & live
        place = v_up_ptr + token * v_token + (element // head_dim) * v_head + element % head_dim
        values = tl.load(place, mask=values_mask, other=0.0)
        tl.store(target_ptr + (HEADS + KV_HEADS) * head_dim + element, values, mask=values_mask)
    if NORM:
        parts_ptr += program * 2 * head_dim
        _store_part(parts_ptr, q_first, q_second, q_rest, head_dim, HALF, HALF_BLOCK, REST, REST_BLOCK)
        _store_part(parts_ptr + head_dim, k_first, k_second, k_rest, head_dim, HALF, HALF_BLOCK, REST, REST_BLOCK)


def qk_norm_rotary_triton(
    qkv: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    layout: HeadLayout,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The op in Triton; see `loong_kernels.qk_norm_rotary` for the meaning."""
    return _QKNormRotary.apply(qkv, q_weight, k_weight, cos, sin, layout, eps)  # type: ignore[no-any-return]


class _QKNormRotary(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        q_weight: Tensor | None,
        k_weight: Tensor | None,
        cos: Tensor,
        sin: Tensor,
        layout: HeadLayout,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        qkv, cos, sin = _with_contiguous_vectors(qkv), _with_contiguous_vectors(cos), _with_contiguous_vectors(sin)
        tokens, norm = qkv.shape[0], q_weight is not None
        q_weight, k_weight = (qkv if weight is None else weight.contiguous() for weight in (q_weight, k_weight))
        q, k = (
            torch.empty((tokens, heads, layout.head_dim), dtype=qkv.dtype, device=qkv.device)
            for heads in (layout.heads, layout.kv_heads)
        )
        if tokens:
            _forward_kernel[(tokens,)](
                qkv, q, k, q_weight, k_weight, cos, sin,
                qkv.stride(0), cos.stride(0), sin.stride(0), layout.head_dim, eps,
                **_shape(layout, norm, 2 * cos.shape[-1]),
            )  # fmt: skip
        ctx.save_for_backward(cos, sin, *((qkv, q_weight, k_weight) if norm else ()))
        ctx.layout, ctx.eps = layout, eps
        return q, k, layout.split(qkv)[2]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin, *saved = ctx.saved_tensors
        layout: HeadLayout = ctx.layout
        q_up, k_up, v_up = (_with_contiguous_vectors(gradient) for gradient in gradients)
        tokens, norm = q_up.shape[0], bool(saved)
        gradient = torch.empty((tokens, layout.width), dtype=q_up.dtype, device=q_up.device)
        qkv, q_weight, k_weight = saved or (gradient, gradient, gradient)
        tokens_each = covering_power_of_two(tiles_over(tokens, BACKWARD_PROGRAMS))  # few values: few compilations
        programs = tiles_over(tokens, tokens_each)
        parts = torch.empty((programs if norm else 0, 2, layout.head_dim), dtype=torch.float32, device=q_up.device)
        if tokens:
            _backward_kernel[(programs,)](
                q_up, k_up, v_up, qkv, gradient, q_weight, k_weight, cos, sin, parts, tokens,
                q_up.stride(0), q_up.stride(1), k_up.stride(0), k_up.stride(1), v_up.stride(0), v_up.stride(1),
                qkv.stride(0), cos.stride(0), sin.stride(0), layout.head_dim, ctx.eps, TOKENS_EACH=tokens_each,
                **_shape(layout, norm, 2 * cos.shape[-1]),
                VALUES_BLOCK=covering_power_of_two(layout.kv_heads * layout.head_dim),
            )  # fmt: skip
        if not norm:
            return gradient, None, None, None, None, None, None
        q_gradient, k_gradient = parts.sum(0).unbind(0)
        return gradient, q_gradient.to(q_weight.dtype), k_gradient.to(k_weight.dtype), None, None, None, None


def _shape(layout: HeadLayout, norm: bool, rotary_dim: int) -> dict[str, int | bool]:
    """The kernels' compile-time arguments."""
    half, rest = rotary_dim // 2, layout.head_dim - rotary_dim
    half_block = covering_power_of_two(half)
    most = max(1, ELEMENTS_AT_ONCE // covering_power_of_two(layout.head_dim))
    return {
        "HEADS": layout.heads,
        "KV_HEADS": layout.kv_heads,
        "NORM": norm,
        "HALF": half,
        "HALF_BLOCK": half_block,
        "REST": rest,
        "REST_BLOCK": covering_power_of_two(rest) if rest else half_block,
        "HEADS_BLOCK": min(most, covering_power_of_two(layout.heads)),
        "KV_BLOCK": min(most, covering_power_of_two(layout.kv_heads)),
    }


def _with_contiguous_vectors(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
