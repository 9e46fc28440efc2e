"""Dense attention by torch's scaled_dot_product_attention, one function a backend."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from loong_kernels.ops.attention.hardware import HALF_DTYPES

ALIGNMENT = 16
"""Bytes at whose multiples torch's GPU kernels read; for other addresses cuDNN returns wrong numbers and no error."""


def attention_sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    """Whatever backend torch prefers; key/value heads are repeated where that opens a backend that holds no scores."""
    if q.is_cuda and q.dtype not in HALF_DTYPES:
        group = q.shape[2] // k.shape[2]
        k, v = k.repeat_interleave(group, dim=2), v.repeat_interleave(group, dim=2)
    return _sdpa(q, k, v, causal, scale)


def attention_flash(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    """The flash backend or an error."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return _sdpa(q, k, v, causal, scale)


def attention_cudnn(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    """The cuDNN backend or an error."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return _sdpa(q, k, v, causal, scale)


def aligned(x: Tensor) -> Tensor:
    """`x` itself if a GPU kernel can read it where it lies, else a contiguous copy."""
    if not x.is_cuda:
        return x
    elements = ALIGNMENT // x.element_size()
    # The compiler keeps offsets from its tracing, and aligns what it hands to kernels like these itself.
    first = 0 if torch.compiler.is_compiling() else x.storage_offset()
    steps = [stride for size, stride in zip(x.shape[:-1], x.stride()[:-1]) if size > 1]
    fits = x.stride(-1) == 1 and all(number % elements == 0 for number in (first, *steps))
    return x if fits else x.clone(memory_format=torch.contiguous_format)


def with_aligned_gradient(out: Tensor) -> Tensor:
    """`out`, whose gradient reaches the kernel that made it in a form that it can read."""
    return _AlignedGradient.apply(out) if out.is_cuda and out.requires_grad else out  # type: ignore[no-any-return]


class _AlignedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor) -> Tensor:
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return aligned(gradients[0])


def _sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    """`[batch, seq, heads, dim]` in and out; that SDPA wants heads first is a matter of strides."""
    out = scaled_dot_product_attention(
        aligned(q).transpose(1, 2),
        aligned(k).transpose(1, 2),
        aligned(v).transpose(1, 2),
        is_causal=causal,
        scale=scale,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return with_aligned_gradient(out.transpose(1, 2))
