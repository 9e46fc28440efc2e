"""Grouped linear layers as a loop over the experts: what every implementation must equal."""

from __future__ import annotations

import torch
from torch import Tensor

from loong_kernels.gradient_sum import with_gradient_into


def grouped_linear_reference(x: Tensor, weight: Tensor, offsets: Tensor, weight_grad_into: Tensor | None) -> Tensor:
    """`x[rows of expert] @ weight[expert]ᵀ`, expert by expert; waits for the device to learn the runs."""
    weight = with_gradient_into(weight, weight_grad_into)
    ends = offsets.tolist()
    runs = zip([0, *ends[:-1]], ends, weight.unbind(0))
    return torch.cat([x[start:end] @ expert.T for start, end, expert in runs])
