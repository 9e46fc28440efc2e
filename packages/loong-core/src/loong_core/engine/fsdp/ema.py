"""A moving average of the weights, each rank keeping that of its own shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from loong_core.engine.fsdp.shard import ParameterShard
from loong_core.engine.settings import EmaSettings

EMA = "ema"
"""Kind of a piece of the run's state: what the weights were on average."""


class EmaWeights:
    """Averages of the weights that are trained; the others are their own average.

    Args:
        shards: what is averaged; the averages begin as their present values.
        settings: how fast they follow.
    """

    def __init__(self, shards: Sequence[ParameterShard], settings: EmaSettings) -> None:
        self._settings = settings
        self._shards = list(shards)
        self._averages = [shard.local.detach().clone() for shard in self._shards]
        self._by_name = {shard.name: average for shard, average in zip(self._shards, self._averages, strict=True)}

    def of(self, shard: ParameterShard) -> Tensor | None:
        """The average of a shard, as its `local`; None if it is not trained."""
        return self._by_name.get(shard.name)

    @torch.no_grad()
    def follow(self, updates: int) -> None:
        """Move towards the weights after the `updates`-th step."""
        if self._averages:
            weights = [shard.local.detach() for shard in self._shards]
            torch._foreach_lerp_(self._averages, weights, 1 - self._settings.decay_at(updates))  # type: ignore

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within, the weights are the averages; after, they are as before."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for shard, average in zip(self._shards, self._averages, strict=True):
            weight = shard.local.detach().clone()
            shard.local.detach().copy_(average)
            average.copy_(weight)
