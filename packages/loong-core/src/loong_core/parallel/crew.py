"""Ranks that decide together: small host-side exchanges, so that no rank goes on where another has failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


class Crew:
    """All ranks of the default process group, on the host; a process without one is a crew of one.

    Every method is collective.
    """

    @property
    def size(self) -> int:
        """Number of ranks."""
        return dist.get_world_size() if dist.is_initialized() else 1

    @property
    def rank(self) -> int:
        """This rank."""
        return dist.get_rank() if dist.is_initialized() else 0

    def least(self, value: int) -> int:
        """The smallest of the ranks' values."""
        return int(self._reduce(torch.tensor(value), dist.ReduceOp.MIN)) if self.size > 1 else value

    def largest(self, values: Tensor) -> Tensor:
        """The elementwise maximum of the ranks' host tensors."""
        return self._reduce(values, dist.ReduceOp.MAX) if self.size > 1 else values

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in order, on every rank."""
        if self.size == 1:
            return [value]
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, value)
        return gathered

    def from_first(self, value: T | None) -> T:
        """Rank 0's value, on every rank."""
        told = [value]
        if self.size > 1:
            dist.broadcast_object_list(told, src=0)
        return told[0]  # type: ignore[return-value]

    def on_first(self, action: Callable[[], T]) -> T:
        """Do something on rank 0 alone; its result, or its error, is every rank's."""
        outcome: tuple[T | None, Exception | None] = (None, None)
        if self.rank == 0:
            try:
                outcome = (action(), None)
            except Exception as error:
                outcome = (None, error)
        result, error = self.from_first(outcome)
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def findings(self, found: list[str]) -> list[str]:
        """What the ranks found wrong, joined in order of rank, each once."""
        if self.least(0 if found else 1):
            return []
        return list(dict.fromkeys(finding for each in self.gather(found) for finding in each))

    @staticmethod
    def _reduce(values: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        reduced = values.clone()
        dist.all_reduce(reduced, operation)
        return reduced
