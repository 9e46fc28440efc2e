"""Tensors put together on the host from the boxes that ranks hold of them: for small ones, such as adapters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from loong_core.checkpoint.pieces import StatePiece
from loong_core.parallel.context import ParallelContext


def gathered(pieces: Iterable[StatePiece], context: ParallelContext, *, first_only: bool = False) -> dict[str, Tensor]:
    """Whole tensors by name, on the host, in the dtype that they are held in. Collective over the context's ranks.

    Args:
        pieces: this rank's boxes; copies are fine, and empty ones are passed over.
        context: whose ranks hold the tensors together.
        first_only: whether the first rank alone gets them, and the others nothing.
    """
    mine = [
        (each.piece, each.tensor.detach().cpu())
        for each in pieces
        if each.tensor is not None and 0 not in each.piece.sizes
    ]
    everyone: list[Any] = [mine]
    if context.world_size > 1:
        everyone = [None] * context.world_size
        if first_only:
            dist.gather_object(mine, everyone if context.rank == 0 else None, dst=context.first_rank)
        else:
            dist.all_gather_object(everyone, mine)
    if first_only and context.rank > 0:
        return {}
    whole: dict[str, Tensor] = {}
    for piece, values in (entry for rank in everyone for entry in rank):
        if piece.name not in whole:
            whole[piece.name] = torch.empty(piece.global_shape, dtype=values.dtype)
        whole[piece.name][piece.slices] = values
    return whole
