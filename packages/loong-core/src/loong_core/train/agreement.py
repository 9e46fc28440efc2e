"""The small exchanges by which all ranks stay of one mind. They travel on the host and do not wait for the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist


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
