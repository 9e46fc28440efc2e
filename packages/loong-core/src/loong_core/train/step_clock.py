"""Times each step and turns times into tokens (or samples) per second and MFU."""

from __future__ import annotations

from time import perf_counter
from typing import Literal

import torch

from loong_core.device import Device
from loong_core.parallel.crew import Crew
from loong_core.train.metrics import utilisation

Unit = Literal["tokens", "samples"]
"""What a task counts."""


class StepClock:
    """Told of a step's begin, its data's arrival and its end.

    Validation and saving lie between a step's end and the next one's begin and are not counted.

    Args:
        device: whose memory is watched.
        ranks: of the whole run.
        units_per_step: tokens, or samples, of one global batch.
        flops_per_unit: of forward and backward.
        peak_flops: of one rank's device, None if not known.
        unit: what is counted.
    """

    def __init__(
        self,
        device: Device,
        ranks: int,
        units_per_step: int,
        flops_per_unit: float,
        peak_flops: float | None,
        unit: Unit = "tokens",
    ) -> None:
        self._device = device
        self._crew = Crew()
        self._ranks = ranks
        self._units = units_per_step
        self._flops = flops_per_unit
        self._unit = unit
        self._peak_flops = peak_flops
        self._begin = self._data_ready = 0.0

    def start(self) -> None:
        """A step begins."""
        self._begin = perf_counter()

    def data_ready(self) -> None:
        """Its microbatches are there."""
        self._data_ready = perf_counter()

    def finish(self, step: int, signal_number: int) -> tuple[dict[str, float | int | None], int]:
        """It was applied: its figures (of the slowest rank), and the signal that any rank has noted. Collective."""
        here = [
            perf_counter() - self._begin,
            self._data_ready - self._begin,
            float(self._device.memory().peak),
            float(signal_number),
        ]
        seconds, waited, memory, agreed_signal = self._crew.largest(torch.tensor(here, dtype=torch.float64)).tolist()
        per_second = self._units / seconds
        figures: dict[str, float | int | None] = {
            self._unit: step * self._units,
            f"{self._unit}_per_second": per_second,
            "mfu": utilisation(per_second, self._flops, self._ranks, self._peak_flops),
            "memory_bytes": int(memory),
            "step_seconds": seconds,
            "data_seconds": waited,
        }
        return figures, int(agreed_signal)
