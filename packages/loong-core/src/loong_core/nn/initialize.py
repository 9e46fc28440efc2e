"""Fresh weights, the same whatever the layout, device or number of ranks.

Each Hugging Face tensor is drawn in runs of rows from generators seeded by the run's seed, the tensor's name and the
run's number, in float32 on the host; a rank draws the runs that its part touches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import prod

import torch
from torch import Tensor, nn

from loong_core.checkpoint.pieces import Piece
from loong_core.checkpoint.weight_map import Placement, WeightMap
from loong_core.parallel.context import ParallelContext

_RUN_ELEMENTS = 2**22


def initialize(
    module: nn.Module,
    weight_map: WeightMap,
    context: ParallelContext,
    seed: int,
    std: float | Callable[[Piece], float],
) -> None:
    """Draw matrices and tables from a normal distribution, set norms' weights to one and biases to zero.

    Vectors that are neither have the attribute `drawn`.

    Args:
        module: a model, or a stage of one; filled in place.
        weight_map: its family's; canonical names seed the draws.
        context: the one that the module was built with.
        seed: of the run.
        std: standard deviation of the normal distribution (`initializer_range`), or what it is for a tensor.
    """

    @torch.no_grad()
    def fill(parameter: nn.Parameter, placement: Placement) -> None:
        if parameter.ndim == 1 and not getattr(parameter, "drawn", False):
            parameter.fill_(0.0 if placement.name.endswith("bias") else 1.0)
            return
        drawn = [_normal(piece, seed, std(piece) if callable(std) else std) for piece in placement.pieces]
        parameter.copy_(placement.to_local(drawn))

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        futures = [pool.submit(fill, *each) for each in weight_map.placements(module, context)]
        for future in futures:
            future.result()


def _normal(piece: Piece, seed: int, std: float) -> Tensor:
    """This box of the canonical tensor's draw, `piece.sizes` float32."""
    row_elements = prod(piece.global_shape[1:])
    run = max(1, _RUN_ELEMENTS // row_elements)  # rows drawn from one generator
    first, end = piece.offsets[0], piece.offsets[0] + piece.sizes[0]
    box = torch.empty(piece.sizes)
    for number in range(first // run, -(-end // run)):
        start, stop = number * run, min((number + 1) * run, piece.global_shape[0])
        digest = hashlib.sha256(f"{seed}/{piece.name}/{number}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
        drawn = torch.empty(stop - start, *piece.global_shape[1:]).normal_(0.0, std, generator=generator)
        low, high = max(start, first), min(stop, end)
        box[low - first : high - first] = drawn[(slice(low - start, high - start), *piece.slices[1:])]
    return box
