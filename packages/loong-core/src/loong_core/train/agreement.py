"""The small exchanges by which all ranks stay of one mind. They travel on the host and do not wait for the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from loong_core.errors import LoongError


def largest(values: Sequence[float]) -> list[float]:
    """The maximum over all ranks of each value. Collective; a rank by itself gets its own values back."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return list(values)
    exchanged = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(exchanged, op=dist.ReduceOp.MAX)
    return exchanged.tolist()


def ranks_where(flag: bool) -> list[int]:
    """Numbers of the ranks whose `flag` is set. Collective."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [0] if flag else []
    flags = torch.zeros(dist.get_world_size())
    flags[dist.get_rank()] = float(flag)
    dist.all_reduce(flags)
    return flags.nonzero().flatten().tolist()


def on_first_rank[Result](action: Callable[[], Result]) -> Result:
    """What `action` returns on rank 0, on every rank; likewise the LoongError it raises. Collective.

    Without this, ranks that wait for a rank 0 that has refused the run would wait for their time-out.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return action()
    told: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            told = [action(), None]
        except LoongError as error:
            told = [None, error]
    dist.broadcast_object_list(told, src=0)
    if told[1] is not None:
        raise told[1]
    return told[0]
