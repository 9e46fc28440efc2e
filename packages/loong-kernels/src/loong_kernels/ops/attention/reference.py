"""Scaled dot-product attention in plain PyTorch: what every implementation must equal."""

from __future__ import annotations

import torch
from torch import Tensor


def attention_reference(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    """`softmax(q kᵀ * scale) v` head by head, in float32 (float64 for float64), all scores held at once."""
    exact = torch.promote_types(q.dtype, torch.float32)
    group = q.shape[2] // k.shape[2]
    keys = k.to(exact).repeat_interleave(group, dim=2)  # [batch, seq, heads, dim]
    values = v.to(exact).repeat_interleave(group, dim=2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q.to(exact), keys) * scale
    if causal:
        queries, seen = scores.shape[-2:]
        future = torch.ones(queries, seen, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), values).to(q.dtype)
