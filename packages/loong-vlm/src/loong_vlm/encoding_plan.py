"""What a microbatch's images are to whoever shares them out: what each costs, and which features whose tokens show.

The tensor and context ranks of a stage see the same images. Each image is encoded once, by one of them; then every rank
is sent just those features that its own tokens show. All of it is worked out on the host from the grids, alike on every
rank, so no rank waits for another to know what is to come.
"""

from __future__ import annotations

from math import prod

from torch import Tensor

from loong_core.engine.components.feeding import Item
from loong_core.engine.components.routes import Route, find_route
from loong_vlm.data.batch import Shown, VisionBatch
from loong_vlm.parts import ModelParts


def image_items(batch: VisionBatch, parts: ModelParts, rows_of_feature: int = 1) -> list[Item]:
    """Each image of a microbatch: how many rows its features become, and what encoding it takes."""
    grids = [tuple(grid) for grid in batch.pictures.grid_thw.tolist()]
    return [Item(prod(parts.projector.feature_grid(grid)) * rows_of_feature, parts.image_flops(grid)) for grid in grids]


def shown_by_ranks(shown: tuple[Shown, ...], tensor: int) -> list[tuple[Tensor, Tensor]]:
    """For each tensor rank of each context rank, tensor innermost: rows of its run that show features, and which.

    Args:
        shown: of each context rank.
        tensor: ranks that have equal runs of a context rank's tokens.
    """
    found = []
    for each in shown:
        run = -(-each.tokens // tensor)
        runs = each.rows // run
        found += [(each.rows[runs == rank] - rank * run, each.features[runs == rank]) for rank in range(tensor)]
    return found


def plan_encoding(batch: VisionBatch, parts: ModelParts, rank: int, tensor: int) -> tuple[Route, Tensor]:
    """One rank's part in encoding a microbatch whose images the ranks of a stage share among them.

    Args:
        batch: the microbatch, or this context rank's share of it.
        parts: the model.
        rank: among tensor and context ranks, tensor innermost.
        tensor: tensor ranks, which have equal runs of a context rank's tokens.

    Returns:
        what it encodes and sends to whom, and the rows of its run of tokens that show what it receives.
    """
    ranks = shown_by_ranks(batch.shown, tensor)
    wanted = [features for _, features in ranks]
    route = find_route([image_items(batch, parts)], [wanted], rank, len(ranks), 1)
    return route, ranks[rank][0]
