"""Gradients of experts' weights as a loop over the experts: what every implementation must equal."""

from __future__ import annotations

import torch
from torch import Tensor


def grouped_weight_gradient_reference(
    upstream: Tensor, x: Tensor, offsets: Tensor, total: Tensor | None
) -> Tensor | None:
    """Expert by expert, in float32 or wider; waits for the device to learn the runs."""
    exact = torch.promote_types(x.dtype, torch.float32)
    ends = offsets.tolist()
    runs = list(zip([0, *ends[:-1]], ends))
    gradient = torch.stack([upstream[start:end].to(exact).T @ x[start:end].to(exact) for start, end in runs])
    if total is None:
        return gradient.to(x.dtype)
    total.add_(gradient)
    return None
