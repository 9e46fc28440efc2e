"""GR00T as a whole: a vision-language model looks and reads, and the action head acts on what it has made of that.

Of the vision-language model there are only the layers up to the one whose hidden states the head takes, as they leave
it: no layer after it, no final norm, no vocabulary.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from loong_core.engine.base import LossTerms
from loong_core.parallel.context import ParallelContext
from loong_vla.data.images import augment
from loong_vla.families.groot.batch import GrootBatch
from loong_vla.families.groot.head import GrootHead, Seen
from loong_vla.families.groot.policy_config import GrootConfig
from loong_vlm.data.pixels.patches import Normalisation, cut_into_patches
from loong_vlm.model import VisionLanguageModel

_NORMALISATION = Normalisation((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
"""What both vision-language models make of bytes: from [0, 255] to [-1, 1]."""


class GrootPolicy(nn.Module):
    """A policy. Weights are uninitialised: draw them (`initialise_groot`) or load them.

    Args:
        config: what it is.
    """

    def __init__(self, config: GrootConfig) -> None:
        super().__init__()
        self.config = config
        alone = ParallelContext.single(torch.get_default_device())
        self.backbone = VisionLanguageModel(config.parts, alone, head=False)
        self.head = GrootHead(config.head)

    def forward(self, batch: GrootBatch) -> Tensor:
        """Velocity that the policy sees in the batch's noisy actions.

        Args:
            batch: prepared.

        Returns:
            `[batch, horizon, max_action_dim]`, float32 or wider; what it should be is `actions - noise`.
        """
        acted = batch.acted if self.training else replace(batch.acted, keep_state=None)
        return self.head(self._seen(batch), acted)

    @torch.no_grad()
    def sample(self, batch: GrootBatch, steps: int | None = None) -> Tensor:
        """Actions, `[batch, horizon, max_action_dim]`, from the batch's noise by Euler steps from time 0 to 1.

        Pictures and text are looked at once; `actions` and `time` of the batch are not looked at.
        """
        return self.head.sample(self._seen(batch), replace(batch.acted, keep_state=None), steps)

    def _seen(self, batch: GrootBatch) -> Seen:
        features = self.backbone(batch.vision)[batch.rows]  # [batch, longest, width]
        return Seen(features, batch.image_tokens, batch.text_tokens, batch.there)


def prepared(batch: GrootBatch, config: GrootConfig) -> GrootBatch:
    """The batch with its pictures as the tower reads them; to be called on the device."""
    if batch.vision.pictures.patches.shape[0]:
        return batch
    frames = (batch.images if batch.framed else config.frame.apply(batch.images)).float()
    if batch.changes is not None:
        scaled = (frames / 127.5 - 1).permute(0, 3, 1, 2)[None]
        frames = ((augment(scaled, batch.changes[None])[0] + 1) * 127.5).permute(0, 2, 3, 1)
    patches = cut_into_patches(frames.contiguous(), config.patch, config.parts.tower.merge)
    pictures = replace(
        batch.vision.pictures, patches=_NORMALISATION(patches.flatten(0, 1).unsqueeze(2), config.temporal)
    )
    return replace(batch, vision=replace(batch.vision, pictures=pictures), images=batch.images[:0], changes=None)


def groot_policy_loss(model: nn.Module, batch: GrootBatch, hidden: Tensor | None) -> LossTerms:
    """Squared error of the velocity, summed over the numbers that are trained.

    Numbers beyond a robot's own, and actions beyond the end of an episode, are not.
    """
    device = next(model.parameters()).device
    config: GrootConfig = model.config  # type: ignore[assignment]
    batch = prepared(batch.to(device, non_blocking=True), config)
    acted = batch.acted
    assert acted.actions is not None
    assert acted.trained is not None
    if model.training and config.head.dropout:
        # What is dropped depends on the samples and not on what ran before: a resumed run drops the same.
        torch.manual_seed(batch.seed)
    velocity = model(batch)
    error = (velocity - (acted.actions - acted.noise).to(velocity.dtype)).square()
    return LossTerms((error * acted.trained).sum(), acted.trained.sum())


def spare_frozen_blocks(model: nn.Module) -> None:
    """Nothing is dropped in a block of which nothing is trained."""
    for module in model.modules():
        if hasattr(module, "dropout") and not any(each.requires_grad for each in module.parameters()):
            module.dropout = 0.0  # type: ignore[assignment]
