"""Which adapters are put where, what their tensors are called, and how a fresh one is drawn."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from loong_core.checkpoint.pieces import Piece
from loong_core.errors import UserError

ADAPTER_PREFIX = "base_model.model."
"""What PEFT puts before the name of the layer that a tensor adapts."""
ALL_LINEAR = "all-linear"
"""As a target: every linear layer of the blocks, but the experts of a mixture."""
A, B, MAGNITUDE = ".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector"
"""Endings of an adapter's tensors."""


@dataclass(frozen=True)
class LoraSettings:
    """What adapters to put where.

    Attributes:
        rank: inner width of an adapter.
        alpha: the adapter's output is multiplied by `alpha / rank`.
        dropout: share of the adapter's inputs dropped in training.
        targets: patterns of Hugging Face layer names (`q_proj`, `layers.3.mlp.*`), or `all-linear`.
        rslora: multiply by `alpha / sqrt(rank)` instead (arXiv:2312.03732).
        dora: train the magnitude of each row apart from its direction (arXiv:2402.09353).
        seed: of the draw of `A`, which is the same for every layout.

    Raises:
        UserError: numbers out of range, or dropout with dora.
    """

    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    targets: tuple[str, ...] = (ALL_LINEAR,)
    rslora: bool = False
    dora: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise UserError(f"lora.rank is {self.rank}; it must be at least 1")
        if not 0 <= self.dropout < 1:
            raise UserError(f"lora.dropout is {self.dropout}; it must be at least 0 and below 1")
        if self.dora and self.dropout:
            raise UserError(f"lora.dropout is {self.dropout} and lora.dora true; with dora set dropout to 0")
        if not self.targets:
            raise UserError(f"lora.targets is empty; name layers, or {ALL_LINEAR}")

    @property
    def scale(self) -> float:
        """What an adapter's output is multiplied by."""
        return self.alpha / (sqrt(self.rank) if self.rslora else self.rank)


def drawn(piece: Piece, seed: int) -> Tensor:
    """This box of an `A` drawn as PEFT draws it: uniform within `1 / sqrt(in)` (He et al. 2015 with slope sqrt(5))."""
    digest = hashlib.sha256(f"{seed}/{piece.name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    bound = 1 / sqrt(piece.global_shape[1])
    whole = torch.empty(piece.global_shape).uniform_(-bound, bound, generator=generator)
    return whole[piece.slices]
