"""Cross-entropy of a linear head in plain PyTorch, all logits held: what every implementation must equal."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from loong_kernels.gradient_sum import with_gradient_into
from loong_kernels.ops.linear_cross_entropy.settings import HeadSettings


def linear_cross_entropy_reference(hidden: Tensor, weight: Tensor, labels: Tensor, settings: HeadSettings) -> Tensor:
    """`-log softmax(hidden weightᵀ)[label]` in float32 (float64 for float64), the whole vocabulary on one rank."""
    exact = torch.promote_types(hidden.dtype, torch.float32)
    weight = with_gradient_into(weight, settings.weight_grad_into)
    logits = hidden.to(exact) @ weight[: settings.rows_of(weight)].to(exact).T
    if settings.softcap is not None:
        logits = settings.softcap * torch.tanh(logits / settings.softcap)
    taken = labels != settings.ignore_index
    known = (labels >= settings.vocab_start) & (labels < settings.vocab_start + logits.shape[1])
    column = torch.where(known, labels - settings.vocab_start, 0)
    loss = F.cross_entropy(logits, column, reduction="none")
    return torch.where(taken, torch.where(known, loss, float("nan")), 0)
