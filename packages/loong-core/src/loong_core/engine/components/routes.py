"""Who encodes what, and to whom its features go: arithmetic on the host, alike on every rank of a model replica.

The ranks that hold one copy of the decoder (tensor x context x pipeline) are, for an encoder of tensor degree `t`, so
many lanes of `t` neighbouring ranks. A round is some microbatches; their items are dealt out to the lanes, the dearest
first, to the lane that has least to do (LPT, R. L. Graham 1969). Each rank of the decoder's first stage is then sent
the features that it wants, and so are those of later stages that want any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loong_core.engine.components.feeding import Item

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Route:
    """One rank's part in a round.

    Attributes:
        own: of each microbatch of the round the items that this rank's lane encodes.
        rows: features of these, on all ranks of the lane together.
        send: `[sum(sent)]` int64, rows of this rank's run of them, those for the first rank first.
        sent: how many go to each rank of the replica.
        received: how many come from each.
        order: `[wanted]` int64, which of the features received is each of those wanted, microbatch after microbatch.
        wanted: how many features of each microbatch this rank wants.
    """

    own: list[tuple[int, ...]]
    rows: int
    send: Tensor
    sent: list[int]
    received: list[int]
    order: Tensor
    wanted: list[int]


def deal_out(costs: Sequence[float], lanes: int) -> list[int]:
    """The lane of each item: the dearest first, to the lane with the least so far."""
    loads = [0.0] * lanes
    found = [0] * len(costs)
    for number in sorted(range(len(costs)), key=lambda each: (-costs[each], each)):
        least = min(range(lanes), key=loads.__getitem__)
        found[number] = least
        loads[least] += costs[number]
    return found


def find_route(
    items: Sequence[Sequence[Item]], wanted: Sequence[Sequence[Tensor]], rank: int, size: int, tensor: int
) -> Route:
    """This rank's part.

    Args:
        items: of each microbatch of the round.
        wanted: of each microbatch, for each rank of the decoder's first stages (the first ranks of the replica) the
            features that it wants.
        rank, size: this rank among the ranks of the replica.
        tensor: the encoder's tensor degree.
    """
    every = [(number, place, item) for number, of_batch in enumerate(items) for place, item in enumerate(of_batch)]
    lanes = deal_out([item.cost for *_, item in every], size // tensor)
    rows = np.array([item.rows for *_, item in every], np.int64)
    lane_of = np.repeat(np.array(lanes, np.int64), rows)  # by feature of the round
    place = np.empty(len(lane_of), np.int64)  # of each feature among its lane's
    counts = np.zeros(size // tensor, np.int64)
    for lane in range(size // tensor):
        mine = lane_of == lane
        counts[lane] = mine.sum()
        place[mine] = np.arange(counts[lane])
    run = np.maximum(-(-counts // tensor), 1)[lane_of]  # rows of each rank of the feature's lane
    owner, row = lane_of * tensor + place // run, place % run

    starts = np.cumsum([0] + [sum(item.rows for item in of_batch) for of_batch in items])
    wants = [  # features of the round, by rank that wants them
        np.concatenate([starts[number] + of_batch[consumer].numpy() for number, of_batch in enumerate(wanted)])
        if wanted
        else np.zeros(0, np.int64)
        for consumer in range(len(wanted[0]) if wanted else 0)
    ]
    parcels = [row[features[owner[features] == rank]] for features in wants]
    sent = [len(parcel) for parcel in parcels] + [0] * (size - len(parcels))
    own_wants = wants[rank] if rank < len(wants) else np.zeros(0, np.int64)
    source = owner[own_wants]
    arriving = np.argsort(source, kind="stable")
    order = np.empty(len(arriving), np.int64)
    order[arriving] = np.arange(len(arriving))
    lane = rank // tensor
    return Route(
        own=[
            tuple(at for (number, at, _), taker in zip(every, lanes, strict=True) if number == batch and taker == lane)
            for batch in range(len(items))
        ],
        rows=int(counts[lane]),
        send=torch.from_numpy(np.concatenate([*parcels, np.zeros(0, np.int64)])),
        sent=sent,
        received=np.bincount(source, minlength=size).tolist(),
        order=torch.from_numpy(order),
        wanted=[len(of_batch[rank]) if rank < len(of_batch) else 0 for of_batch in wanted],
    )
