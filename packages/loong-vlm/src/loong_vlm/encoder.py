"""Tower and projector: within a model's first stage, or as a module by itself whose features travel to the model."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from loong_core.parallel.collectives import own_tokens
from loong_core.parallel.context import ParallelContext
from loong_vlm.data.batch import Pictures
from loong_vlm.features import ImageFeatures
from loong_vlm.parts import ModelParts


def build_parts(
    parts: ModelParts, context: ParallelContext, within: ParallelContext, dtype: torch.dtype
) -> tuple[nn.Module, nn.Module]:
    """Tower and projector, uninitialised.

    Args:
        parts: the model.
        context: whose tensor ranks share the tower; each has the projector whole.
        within: whose tensor ranks take part in them together: each reads some of the features, so that gradients of
            what a rank holds whole are partial sums.
        dtype: of the parameters.
    """
    tower = parts.tower_kind.build(parts.tower, context, dtype)
    projector = parts.projector_kind.build(parts.projector, ParallelContext.single(context.device), dtype)
    whole = [*projector.parameters(), *(tower.parameters() if context.tensor.size == 1 else ())]
    for parameter in whole:
        parameter.sequence_parallel = within.sequence_parallel  # type: ignore[attr-defined]
    return tower, projector


def smallest_picture(parts: ModelParts) -> Pictures:
    """The smallest image that the tower takes, all zeros: what is encoded, and shown nowhere, where there is none.

    Whatever engines do around the use of tower and projector (gathering weights, reducing gradients) then happens on
    every rank alike.
    """
    grid = parts.tower.smallest
    return Pictures(torch.zeros(prod(grid), parts.tower.patch_dim), torch.tensor([grid]), ("image",))


class VisionEncoder(nn.Module):
    """Tower and projector of a model whose images are encoded apart from its text. Weights are uninitialised.

    Tensor ranks share the tower, and each has the projector whole, of whose rows it hands out its run.

    Args:
        parts: the whole model.
        context: the encoder's.
        dtype: of the parameters.
    """

    def __init__(self, parts: ModelParts, context: ParallelContext, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.axis = context.tensor
        self.tower, self.projector = build_parts(parts, context, context, dtype)

    def forward(self, pictures: Pictures) -> Tensor:
        """Encode some images.

        Args:
            pictures: the same on every tensor rank, patches on the device.

        Returns:
            `[ceil(rows / tensor), hidden_size]`, this rank's run of the rows: of each feature, in order, its embedding
            and what enters the first layers (`ImageFeatures`).
        """
        found: ImageFeatures = self.projector(self.tower(pictures.patches, pictures.grid_thw), pictures.grid_thw)
        rows = torch.stack([found.embeddings, *found.deep], dim=1).flatten(0, 1)
        return own_tokens(rows, self.axis)
