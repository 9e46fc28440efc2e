"""The loss of flow matching (Lipman et al. 2022, https://arxiv.org/abs/2210.02747): where noise comes from.

At level sigma a model sees `(1 - sigma) clean + sigma noise` and says the velocity, `noise - clean`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from loong_core.engine.base import LossTerms
from loong_dit.batch import DiffusionBatch


def velocity_loss(model: nn.Module, batch: DiffusionBatch, hidden: Tensor | None) -> LossTerms:
    """Sum over samples of their weighted mean squared errors, and how many samples there are. In float32 at least."""
    device = next(model.parameters()).device
    batch = batch.to(device, non_blocking=True)
    assert batch.target is not None
    assert batch.weights is not None
    said = model(batch)
    wide = torch.promote_types(said.dtype, torch.float32)
    errors = (said.to(wide) - batch.target.to(wide)).square().sum(-1)
    total = (errors * batch.weights.to(wide)).sum()
    return LossTerms(total, torch.tensor(batch.trained_samples, device=device))
