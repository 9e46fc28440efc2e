"""What a Pi policy is trained on: how far the velocity it sees is from the way the actions were noised."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from loong_core.engine.base import LossTerms
from loong_vla.data.images import augment, fit_pictures
from loong_vla.families.pi.batch import PiBatch
from loong_vla.families.pi.config import PiConfig


def prepared(batch: PiBatch, image_size: int) -> PiBatch:
    """The batch with its pictures as the tower sees them; to be called on the device."""
    if batch.images.dtype != torch.uint8:
        return batch
    images = fit_pictures(batch.images, image_size)
    return replace(batch, images=images if batch.changes is None else augment(images, batch.changes), changes=None)


def pi_loss(model: nn.Module, batch: PiBatch, hidden: Tensor | None) -> LossTerms:
    """Squared error of the velocity, summed over the numbers that are trained.

    Numbers beyond a robot's own, and actions beyond the end of an episode, are not.
    """
    device = next(model.parameters()).device
    config: PiConfig = model.config  # type: ignore[assignment]
    batch = prepared(batch.to(device, non_blocking=True), config.image_size)
    velocity = model(batch)
    error = (velocity - (batch.noise - batch.actions).to(velocity.dtype)).square()
    return LossTerms((error * batch.trained).sum(), batch.trained.sum())
