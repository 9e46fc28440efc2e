"""An engine that is nothing but state: rows of a few tensors, divided among ranks, and updates that change them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from loong_core.checkpoint.pieces import Piece, StatePiece
from loong_core.device.cpu import CpuDevice
from loong_core.engine.base import Engine, ForwardStep, StepLoss

SHAPES = {"a.weight": (6, 4), "b.weight": (12,)}


class TensorEngine(Engine):
    """Rank `r` of `n` holds the `r`-th share of the rows of each tensor, for weights and one moment."""

    def __init__(self, shapes: dict[str, tuple[int, ...]] | None = None) -> None:
        rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.stages = []
        self.device = CpuDevice()
        self.updates = 0
        self.held: dict[tuple[str, Piece], Tensor] = {}
        for name, shape in (shapes or SHAPES).items():
            rows = shape[0] // size
            piece = Piece(name, shape, (rank * rows, *([0] * (len(shape) - 1))), (rows, *shape[1:]))
            for kind in ("weight", "exp_avg"):
                self.held[kind, piece] = torch.zeros(piece.sizes)

    def accumulate(self, microbatches: Sequence[Any], forward_step: ForwardStep) -> StepLoss:
        raise NotImplementedError

    evaluate = accumulate

    def grad_norm(self) -> float:
        raise NotImplementedError

    def apply(self, lr: float) -> None:
        """Give each element a value that depends on its place and on the number of updates."""
        self.updates += 1
        for (kind, piece), values in self.held.items():
            whole = torch.arange(float(torch.Size(piece.global_shape).numel())).view(piece.global_shape)
            values.copy_((whole + len(kind))[piece.slices] * self.updates)

    def discard(self) -> None:
        raise NotImplementedError

    def set_updates(self, updates: int) -> None:
        self.updates = updates

    def state_pieces(self, *, optimizer: bool = True) -> Iterator[StatePiece]:
        for (kind, piece), values in self.held.items():
            if optimizer or kind == "weight":
                yield StatePiece(kind, piece, values)

    def gradient_pieces(self) -> Iterator[StatePiece]:
        raise NotImplementedError

    def weight_pieces(self) -> Iterable[StatePiece]:
        return self.state_pieces(optimizer=False)

    def load_state(self, read: Callable[[StatePiece], Tensor | None], *, optimizer: bool = True) -> None:
        for (kind, piece), values in self.held.items():
            if (optimizer or kind == "weight") and (stored := read(StatePiece(kind, piece))) is not None:
                values.copy_(stored)

    def values(self) -> dict[str, Tensor]:
        """What this rank holds, by key."""
        return {f"{kind}/{piece.name}": values for (kind, piece), values in self.held.items()}
