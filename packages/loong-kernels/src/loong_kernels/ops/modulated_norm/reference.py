"""The modulated layer norm in plain PyTorch: what every implementation must equal."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def modulated_norm_reference(x: Tensor, scale: Tensor, shift: Tensor, bounds: Tensor, eps: float) -> Tensor:
    """Normalise each vector, then apply its run's scale and shift, in float32 (float64 for float64)."""
    exact = torch.promote_types(x.dtype, torch.float32)
    normed = F.layer_norm(x.to(exact), x.shape[-1:], eps=eps)
    scale, shift = (by_token(each.to(exact), bounds, x.shape[0]) for each in (scale, shift))
    return (normed * (1 + scale) + shift).to(x.dtype)


def by_token(per_run: Tensor, bounds: Tensor, tokens: int) -> Tensor:
    """Each token's row of `[runs, hidden]`: `[tokens, hidden]`, or a single row that all share."""
    if per_run.shape[0] == 1:
        return per_run
    runs = torch.arange(per_run.shape[0], device=bounds.device)
    return per_run[torch.repeat_interleave(runs, bounds.diff(), output_size=tokens)]
