"""Cross-entropy of a linear head in plain PyTorch, all logits held: what every implementation must equal."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def linear_cross_entropy_reference(
    hidden: Tensor, weight: Tensor, labels: Tensor, ignore_index: int, valid_vocab: int, softcap: float | None
) -> Tensor:
    """`-log softmax(hidden weightᵀ)[label]` in float32 (float64 for float64) over the whole vocabulary."""
    exact = torch.promote_types(hidden.dtype, torch.float32)
    logits = hidden.to(exact) @ weight[:valid_vocab].to(exact).T
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return F.cross_entropy(logits, labels, ignore_index=ignore_index, reduction="none")
