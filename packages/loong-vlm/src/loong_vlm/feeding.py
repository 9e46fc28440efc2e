"""How an encoder with a layout of its own feeds the language model: who encodes what, and who wants it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from loong_core.engine.components.features import FedFeatures
from loong_core.engine.components.feeding import Chosen, Feeding, Item
from loong_core.nn.token_features import TokenFeatures
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_vlm.data.batch import Pictures, VisionBatch
from loong_vlm.encoder import smallest_picture
from loong_vlm.encoding_plan import image_items, shown_by_ranks
from loong_vlm.parts import ModelParts


class ImageFeeding(Feeding):
    """Images are encoded where there is least to do; each rank is sent what its own tokens and its own layers read.

    A feature travels in as many rows as there are places for it: its embedding, and one for each layer that takes it
    (DeepStack). The first stage wants embeddings, and each stage the rows of its own layers.

    Args:
        parts: the model.
        context: the language model's.
    """

    def __init__(self, parts: ModelParts, context: ParallelContext) -> None:
        self.parts = parts
        self.context = context
        self.rows_of_feature = 1 + parts.projector.deep
        self.places = places_of_stages(parts, context.layout)

    def items(self, batch: VisionBatch) -> Sequence[Item]:
        """Each image, by what it costs."""
        return image_items(batch, self.parts, self.rows_of_feature)

    def encode(self, stage: nn.Module, chosen: Sequence[Chosen]) -> Tensor:
        """Their rows, or none of the smallest image's."""
        found = [each.batch.pictures.select(each.items) for each in chosen if each.items]
        pictures = Pictures.join(found) if found else smallest_picture(self.parts)
        rows = stage(pictures.to(self.context.device, non_blocking=True))
        return rows if found else rows[:0]

    def wanted(self, batch: VisionBatch, context: ParallelContext) -> Sequence[Tensor]:
        """By stage, context rank and tensor rank."""
        ranks = shown_by_ranks(batch.shown_by(context), context.tensor.size)
        last = max(stage for stage, own in enumerate(self.places) if own)
        return [
            torch.cat([features * self.rows_of_feature + place for place in own] or [features[:0]])
            for own in self.places[: last + 1]
            for _, features in ranks
        ]

    def fed(self, batch: VisionBatch, features: FedFeatures) -> VisionBatch:
        """The microbatch with this rank's rows, taken in the forward of a stage that reads them."""
        context = self.context
        places = self.places[context.pipeline.rank]
        if not places:
            return batch
        ranks = shown_by_ranks(batch.shown_by(context), context.tensor.size)
        rows, _ = ranks[context.context.rank * context.tensor.size + context.tensor.rank]

        def taken() -> TokenFeatures:
            of_place = dict(zip(places, features().unflatten(0, (len(places), len(rows))).unbind(), strict=True))
            deep = tuple(of_place.get(place) for place in range(1, self.rows_of_feature))
            return TokenFeatures(rows.to(context.device, non_blocking=True), of_place.get(0), deep)

        return replace(batch, fed=taken)


def places_of_stages(parts: ModelParts, layout: Layout) -> list[list[int]]:
    """Of each pipeline rank which of a feature's rows it reads: 0 is the embedding, `n` what enters layer `n - 1`."""
    config = parts.language.config
    stages = layout.stage_layers(config.num_layers, config.layer_costs())
    return [
        [0] * (rank == 0) + [1 + layer for layers in own for layer in layers if layer < parts.projector.deep]
        for rank, own in enumerate(stages)
    ]
