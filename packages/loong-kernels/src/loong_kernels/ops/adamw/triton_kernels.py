"""AdamW in Triton: one pass that scales the gradient, updates moments and weight, and rounds the weight."""

# Triton types a kernel's arguments and adds launch options when it is launched.
# ruff: noqa: ANN001, ANN202
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from loong_kernels.ops.adamw.settings import AdamWSettings
from loong_kernels.tiles import tiles_over

ELEMENTS = 2048


@triton.jit
def _update_kernel(
    weight_ptr, gradient_ptr, exp_avg_ptr, exp_avg_sq_ptr, rounded_ptr, elements,
    scale, first, first_rest, second, second_rest, kept, step_size, root_correction, eps,
    HAS_ROUNDED: tl.constexpr, ELEMENTS: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    mask = place < elements
    gradient = tl.load(gradient_ptr + place, mask=mask, other=0.0).to(tl.float32) * scale
    mean = tl.load(exp_avg_ptr + place, mask=mask, other=0.0).to(tl.float32)
    square = tl.load(exp_avg_sq_ptr + place, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + place, mask=mask, other=0.0).to(tl.float32)
    mean = first * mean + first_rest * gradient
    square = second * square + second_rest * gradient * gradient
    denominator = tl.sqrt_rn(square.to(tl.float32)) / root_correction + eps
    weight = weight * kept - step_size * mean / denominator
    tl.store(exp_avg_ptr + place, mean.to(exp_avg_ptr.dtype.element_ty), mask=mask)
    tl.store(exp_avg_sq_ptr + place, square.to(exp_avg_sq_ptr.dtype.element_ty), mask=mask)
    tl.store(weight_ptr + place, weight.to(weight_ptr.dtype.element_ty), mask=mask)
    if HAS_ROUNDED:
        tl.store(rounded_ptr + place, weight.to(rounded_ptr.dtype.element_ty), mask=mask)


def adamw_triton(
    weight: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    rounded: Tensor | None,
    settings: AdamWSettings,
) -> None:
    """The op in Triton; see `loong_kernels.adamw` for the meaning."""
    elements = weight.numel()
    first, second = settings.betas
    if elements:
        _update_kernel[(tiles_over(elements, ELEMENTS),)](
            weight, gradient, exp_avg, exp_avg_sq, weight if rounded is None else rounded, elements,
            settings.gradient_scale, first, 1 - first, second, 1 - second, settings.kept, settings.step_size,
            settings.root_correction, settings.eps, rounded is not None, ELEMENTS,
        )  # fmt: skip
