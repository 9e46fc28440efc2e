"""The gated sum in plain PyTorch: what every implementation must equal."""

from __future__ import annotations

import torch
from torch import Tensor

from loong_kernels.ops.modulated_norm.reference import by_token


def gated_add_reference(stream: Tensor, branch: Tensor, gate: Tensor, bounds: Tensor) -> Tensor:
    """Multiply by the run's gate and add, in float32 (float64 for float64)."""
    exact = torch.promote_types(stream.dtype, torch.float32)
    gate = by_token(gate.to(exact), bounds, stream.shape[0])
    return (stream.to(exact) + branch.to(exact) * gate).to(stream.dtype)
