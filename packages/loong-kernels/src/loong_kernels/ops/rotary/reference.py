"""Rotary embedding in plain PyTorch: what every implementation must equal."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_reference(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate the pairs `(x[i], x[i + rotary_dim/2])` of every head by the angles whose `cos` and `sin` are given."""
    return _rotate(q, cos, sin), _rotate(k, cos, sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    exact = torch.promote_types(x.dtype, torch.float32)
    cos, sin = cos.to(exact)[:, None], sin.to(exact)[:, None]  # [tokens, 1, half]
    first, second = x[..., :half].to(exact), x[..., half : 2 * half].to(exact)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
    return torch.cat((rotated, x[..., 2 * half :]), dim=-1) if 2 * half < x.shape[-1] else rotated
