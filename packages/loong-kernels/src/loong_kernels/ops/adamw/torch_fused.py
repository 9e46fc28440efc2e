"""AdamW by torch's fused kernel, with the gradient scaled before and the weight rounded after."""

from __future__ import annotations

import torch
from torch import Tensor

from loong_kernels.ops.adamw.settings import AdamWSettings


def adamw_torch_fused(
    weight: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    rounded: Tensor | None,
    settings: AdamWSettings,
) -> None:
    """The op by the kernel of `torch.optim.AdamW(fused=True)`."""
    if settings.gradient_scale != 1:
        gradient = gradient * settings.gradient_scale
    torch.ops.aten._fused_adamw_(
        [weight],
        [gradient],
        [exp_avg],
        [exp_avg_sq],
        [],
        [torch.tensor(float(settings.step), device=weight.device)],
        lr=settings.lr,
        beta1=settings.betas[0],
        beta2=settings.betas[1],
        weight_decay=settings.weight_decay,
        eps=settings.eps,
        amsgrad=False,
        maximize=False,
    )
    if rounded is not None:
        rounded.copy_(weight)
