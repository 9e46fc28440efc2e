"""What is random about a sample, from the run's seed and the sample's number alone: the same for every layout."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


class SampleDraws:
    """The draws of the `number`-th sample of a run; each purpose has its own, whatever else is drawn."""

    def __init__(self, seed: int, number: int) -> None:
        self._key = f"{seed}/{number}"

    def uniform(self, purpose: str) -> float:
        """A number in [0, 1)."""
        return float(torch.rand((), generator=self._generator(purpose), dtype=torch.float64))

    def normal(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        """Standard normal numbers, float32 on the host."""
        return torch.randn(shape, generator=self._generator(purpose))

    def _generator(self, purpose: str) -> torch.Generator:
        digest = hashlib.sha256(f"{self._key}/{purpose}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
