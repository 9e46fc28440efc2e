"""How fast a device copies and its ranks talk: the figures `loong doctor` gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from loong_core.device.protocol import Device

_TRIALS = 5


@dataclass(frozen=True)
class Timing:
    """The best of several trials.

    Attributes:
        what: what was timed.
        size: bytes of the tensor.
        seconds: of one operation.
        rate: bytes a second; of an all-reduce the bus rate, `2 (n - 1) / n` times size over seconds, which does not
            depend on the number of ranks where the links are the limit.
    """

    what: str
    size: int
    seconds: float
    rate: float

    def __str__(self) -> str:
        return f"{self.what}, {self.size >> 20} MiB: {self.seconds * 1e3:.2f} ms, {self.rate / 1e9:.1f} GB/s"


def time_copies(device: Device, bound: torch.device) -> list[Timing]:
    """A copy within the device's memory and, where that is not the host's, one from the host to it."""
    size = 64 << 20 if bound.type == "cpu" else 256 << 20
    source = torch.zeros(size, dtype=torch.uint8, device=bound)
    target = torch.empty_like(source)
    timings = [_timing(device, f"copy on {device.name}", size, lambda: target.copy_(source), 1.0)]
    if bound.type != "cpu":
        host = torch.zeros(size, dtype=torch.uint8)
        timings.append(_timing(device, f"copy from host to {device.name}", size, lambda: target.copy_(host), 1.0))
    return timings


def time_all_reduce(device: Device, bound: torch.device) -> Timing:
    """An all-reduce over the ranks of the default process group. Collective."""
    size = 16 << 20 if bound.type == "cpu" else 256 << 20
    ranks = dist.get_world_size()
    values = torch.zeros(size // 4, device=bound)
    return _timing(
        device, f"all-reduce over {ranks} ranks", size, lambda: dist.all_reduce(values), 2 * (ranks - 1) / ranks
    )


def _timing(device: Device, what: str, size: int, operation: Callable[[], object], share: float) -> Timing:
    """Time an operation that moves `share * size` bytes, the first call left out."""
    operation()
    device.synchronize()
    best = float("inf")
    for _ in range(_TRIALS):
        start, end = device.event(), device.event()
        start.record()
        operation()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / 1e3)
    return Timing(what, size, best, share * size / best)
