"""Who encodes which image of a microbatch, and to whom its features go.

The tensor and context ranks of a stage see the same images, and each holds tower and projector whole. Each image is
encoded once, by one of them; then every rank is sent just those features that its own tokens show. All of it is worked
out on the host from the grids, alike on every rank, so no rank waits for another to know what is to come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loong_vlm.data.batch import Shown, VisionBatch
from loong_vlm.parts import ModelParts

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class EncodingPlan:
    """One rank's part.

    Attributes:
        own: numbers of the images that this rank encodes, in order.
        send: `[sum(sent)]` int64, which of their features to send, those for the first rank first.
        sent: how many go to each rank, itself among them.
        received: how many come from each.
        order: `[shown]` int64, which of the features received goes to each of `rows`.
        rows: `[shown]` int64, rows of this rank's run of tokens that show features.
    """

    own: list[int]
    send: Tensor
    sent: list[int]
    received: list[int]
    order: Tensor
    rows: Tensor


def share_out(costs: Sequence[float], ranks: int) -> list[int]:
    """Which rank each image goes to: the dearest first, to the rank that has least to do."""
    loads = [0.0] * ranks
    found = [0] * len(costs)
    for number in sorted(range(len(costs)), key=lambda each: (-costs[each], each)):
        least = min(range(ranks), key=lambda rank: (loads[rank], rank))
        found[number] = least
        loads[least] += costs[number]
    return found


def plan_encoding(batch: VisionBatch, parts: ModelParts, rank: int, tensor: int) -> EncodingPlan:
    """This rank's part in encoding a microbatch.

    Args:
        batch: the microbatch, or this context rank's share of it.
        parts: the model.
        rank: among tensor and context ranks, tensor innermost.
        tensor: tensor ranks, which have equal runs of a context rank's tokens.
    """
    grids = [tuple(grid) for grid in batch.pictures.grid_thw.tolist()]
    counts = np.array([prod(parts.projector.feature_grid(grid)) for grid in grids], np.int64)
    wanted = [each for shown in batch.shown for each in _by_run(shown, tensor)]
    rows, own_wanted = wanted[rank]
    owners = np.array(share_out([parts.image_flops(grid) for grid in grids], len(wanted)), np.int64)
    owner_of = np.repeat(owners, counts)  # by feature
    own = np.flatnonzero(owners == rank)
    place = np.full(len(owner_of), -1, np.int64)  # of each feature among those that this rank encodes
    mine = owner_of == rank
    place[mine] = np.arange(int(mine.sum()))
    parcels = [place[features[owner_of[features] == rank]] for _, features in wanted]
    source = owner_of[own_wanted]
    arriving = np.argsort(source, kind="stable")  # received: by sender, and of each in the order wanted
    order = np.empty(len(arriving), np.int64)
    order[arriving] = np.arange(len(arriving))
    return EncodingPlan(
        own.tolist(),
        torch.from_numpy(np.concatenate(parcels)),
        [len(parcel) for parcel in parcels],
        np.bincount(source, minlength=len(wanted)).tolist(),
        torch.from_numpy(order),
        torch.from_numpy(rows),
    )


def _by_run(shown: Shown, tensor: int) -> list[tuple[Numbers, Numbers]]:
    """Rows within each tensor rank's run of a context rank's tokens, and the features shown there."""
    rows, features = shown.rows.numpy(), shown.features.numpy()
    run = -(-shown.tokens // tensor)
    runs = rows // run
    return [(rows[runs == rank] - rank * run, features[runs == rank]) for rank in range(tensor)]
