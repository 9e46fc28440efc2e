"""AdamW in plain PyTorch: what every implementation must equal."""

from __future__ import annotations

import torch
from torch import Tensor

from loong_kernels.ops.adamw.settings import AdamWSettings


def adamw_reference(
    weight: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    rounded: Tensor | None,
    settings: AdamWSettings,
) -> None:
    """One update, in float32 (float64 for float64)."""
    exact = torch.promote_types(weight.dtype, torch.float32)
    first, second = settings.betas
    scaled = gradient.to(exact) * settings.gradient_scale
    mean = first * exp_avg.to(exact) + (1 - first) * scaled
    square = second * exp_avg_sq.to(exact) + (1 - second) * scaled.square()
    denominator = square.sqrt() / settings.root_correction + settings.eps
    updated = weight.to(exact) * settings.kept - settings.step_size * mean / denominator
    for tensor, values in ((weight, updated), (exp_avg, mean), (exp_avg_sq, square), (rounded, updated)):
        if tensor is not None:
            tensor.copy_(values)
