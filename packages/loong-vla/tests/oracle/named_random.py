"""Random tensors that any environment draws alike: seeded by a name, from torch's generator on the host."""

from __future__ import annotations

import hashlib

import torch


def named_random(name: str, shape: tuple[int, ...], scale: float = 1.0) -> torch.Tensor:
    """Standard normal float64 values times `scale`, decided by the name."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little")
    drawn = torch.empty(shape, dtype=torch.float64).normal_(generator=torch.Generator().manual_seed(seed))
    return drawn * scale


def random_weight(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A weight of a toy model: every element random, in a size at which nothing saturates."""
    fan_in = max(1, int(torch.tensor(shape[1:]).prod())) if len(shape) > 1 else 16
    return named_random(name, shape, fan_in**-0.5)
