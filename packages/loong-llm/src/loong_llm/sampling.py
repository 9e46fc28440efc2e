"""Choosing the next token from its scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loong_core.config.sections import LARGEST_SEED
from loong_core.errors import UserError


@dataclass(frozen=True)
class Sampling:
    """How to choose.

    Attributes:
        temperature: scores are divided by it; 0 takes the best token every time.
        top_k: only so many of the best tokens can be chosen; None: all.
        top_p: only the fewest best tokens whose probabilities sum to this (Holtzman et al. 2020); 1: all.
        seed: decides the draws; each prompt draws from numbers of its own, whatever shares its batch.

    Raises:
        UserError: a value that means nothing.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature {self.temperature} must be 0 (the best token) or a positive number")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k {self.top_k} must be at least 1")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p {self.top_p} must be above 0 and at most 1")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise UserError(f"seed {self.seed} must be from 0 to {LARGEST_SEED}")
        if self.temperature == 0 and (self.top_k is not None or self.top_p < 1):
            raise UserError("top_k and top_p would have no effect at temperature 0; set a temperature")

    def generators(self, count: int) -> list[torch.Generator]:
        """One source of random numbers for each of `count` prompts."""
        return [torch.Generator().manual_seed(self.seed + 0x9E3779B1 * number) for number in range(count)]

    def choose(self, scores: Tensor, generators: Sequence[torch.Generator]) -> list[int]:
        """The next token of each sequence.

        A uniform number is looked up in the running sum of the sorted probabilities, so that draws are made on the
        host and are the same for every device.

        Args:
            scores: `[sequences, vocab_size]`.
            generators: one a sequence.
        """
        if self.temperature == 0:
            return scores.argmax(-1).tolist()
        scores, ids = (scores.float() / self.temperature).sort(dim=-1, descending=True, stable=True)
        scores, ids = scores[:, : self.top_k], ids[:, : self.top_k]
        running = scores.softmax(-1).cumsum(-1)  # [sequences, choices]
        # A token stays if those before it sum to less than top_p, so the first always does.
        kept = running.roll(1, -1).index_fill(-1, torch.zeros(1, dtype=torch.int64, device=ids.device), 0) < self.top_p
        total = running.gather(-1, kept.sum(-1, keepdim=True) - 1)
        drawn = torch.tensor([torch.rand((), generator=generator).item() for generator in generators])
        place = torch.searchsorted(running, drawn.to(running)[:, None] * total, right=True)
        place = place.minimum(kept.sum(-1, keepdim=True) - 1)
        return ids.gather(-1, place)[:, 0].tolist()
